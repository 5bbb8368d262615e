//! Authentication: token, host name and origin of requests.

use std::net::SocketAddr;

use axum::http::{HeaderMap, header};
use rollway_base::Secret;
use rollway_base::net::{host_of, is_loopback};

/// Header that forms and simple requests of other sites cannot send.
pub(super) const MARK: &str = "x-rollway";

#[derive(Debug)]
pub(super) struct DashboardAuth {
    token: Secret,
    /// Listens on the loopback interface.
    is_private: bool,
    /// Speaks TLS.
    is_encrypted: bool,
    /// Name with the port, since cookies are shared between ports.
    cookie: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AuthError {
    /// Foreign host name.
    Host,
    /// Missing or wrong token.
    Token,
    /// Request of another site.
    Site,
}

impl DashboardAuth {
    pub(super) fn new(token: Secret, address: SocketAddr, is_encrypted: bool) -> Self {
        let is_private = address.ip().is_loopback();
        let cookie = format!("rollway_{}", address.port());
        Self { token, is_private, is_encrypted, cookie }
    }

    /// Rejects host names that another site could point at this machine (DNS rebinding).
    pub(super) fn host(&self, headers: &HeaderMap) -> Result<(), AuthError> {
        if !self.is_private {
            return Ok(());
        }
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
        if is_loopback(host_of(host)) { Ok(()) } else { Err(AuthError::Host) }
    }

    pub(super) fn is_token(&self, token: &str) -> bool {
        Secret::new(token).is_ok_and(|token| token == self.token)
    }

    /// Checks the token: a bearer token, or the cookie of a browser.
    pub(super) fn token(&self, headers: &HeaderMap) -> Result<(), AuthError> {
        let shown = headers.get(header::AUTHORIZATION).and_then(|it| it.to_str().ok());
        let shown = shown.and_then(|it| it.strip_prefix("Bearer "));
        let cookies = headers.get_all(header::COOKIE).into_iter();
        let mut cookies = cookies
            .filter_map(|cookie| cookie.to_str().ok())
            .flat_map(|cookies| cookies.split(';'))
            .filter_map(|cookie| cookie.trim().split_once('='))
            .filter(|(name, _)| *name == self.cookie)
            .map(|(_, token)| token);
        let is_known = shown.is_some_and(|token| self.is_token(token))
            || cookies.any(|token| self.is_token(token));
        if is_known { Ok(()) } else { Err(AuthError::Token) }
    }

    /// Checks that an action comes from our own pages or a program.
    pub(super) fn action(&self, headers: &HeaderMap) -> Result<(), AuthError> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let is_own_site = text("sec-fetch-site").is_none_or(|site| site == "same-origin");
        let host = text("host").unwrap_or("");
        let is_own_origin = text("origin").is_none_or(|origin| {
            origin.split_once("://").is_some_and(|(_, origin)| origin == host)
        });
        let is_ours = headers.contains_key(MARK) && is_own_site && is_own_origin;
        if is_ours { Ok(()) } else { Err(AuthError::Site) }
    }

    /// Returns the cookie that replaces the token in the address.
    pub(super) fn cookie(&self) -> String {
        let (name, token) = (&self.cookie, self.token.reveal());
        let secure = if self.is_encrypted { "; Secure" } else { "" };
        format!("{name}={token}; Path=/; HttpOnly; SameSite=Strict{secure}")
    }
}
