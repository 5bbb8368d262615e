//! Who is let in: those who show the token, from where it makes sense.

use std::net::SocketAddr;

use axum::http::{HeaderMap, header};
use rollway_base::Secret;

/// The header that no form and no simple request of another site can send.
pub(super) const MARK: &str = "x-rollway";

/// Knows the token, and under which names this server can be called.
#[derive(Debug)]
pub(super) struct DashboardAuth {
    token: Secret,
    /// Whether only this machine can reach it.
    is_private: bool,
    /// Cookies do not tell ports apart, so that the name does.
    cookie: String,
}

/// Why somebody is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AuthError {
    /// The server was called by a name that is not its own.
    Host,
    /// There was no token, or another one.
    Token,
    /// Another site has sent this.
    Site,
}

impl DashboardAuth {
    pub(super) fn new(token: Secret, address: SocketAddr) -> Self {
        let is_private = address.ip().is_loopback();
        Self { token, is_private, cookie: format!("rollway_{}", address.port()) }
    }

    pub(super) const fn is_private(&self) -> bool {
        self.is_private
    }

    /// Refuses names that a foreign page could have pointed at this machine: such a page would be
    /// of the same origin as ours in the eyes of a browser.
    pub(super) fn host(&self, headers: &HeaderMap) -> Result<(), AuthError> {
        if !self.is_private {
            return Ok(());
        }
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let is_ours = matches!(name, "localhost" | "127.0.0.1" | "[::1]");
        if is_ours { Ok(()) } else { Err(AuthError::Host) }
    }

    /// Tells whether this is the token.
    pub(super) fn opens(&self, token: &str) -> bool {
        Secret::new(token).is_ok_and(|token| token == self.token)
    }

    /// Wants the token: in the header of a program, or in the cookie of a browser.
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
        let is_known =
            shown.is_some_and(|token| self.opens(token)) || cookies.any(|token| self.opens(token));
        if is_known { Ok(()) } else { Err(AuthError::Token) }
    }

    /// Wants that an act comes from our own pages, or from a program.
    pub(super) fn act(&self, headers: &HeaderMap) -> Result<(), AuthError> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let is_own_site = text("sec-fetch-site").is_none_or(|site| site == "same-origin");
        let host = text("host").unwrap_or("");
        let is_own_origin = text("origin")
            .is_none_or(|origin| origin.split_once("://").is_some_and(|(_, place)| place == host));
        let is_ours = headers.contains_key(MARK) && is_own_site && is_own_origin;
        if is_ours { Ok(()) } else { Err(AuthError::Site) }
    }

    /// Returns the cookie for whoever came with the token in the address.
    pub(super) fn cookie(&self) -> String {
        let (name, token) = (&self.cookie, self.token.reveal());
        format!("{name}={token}; Path=/; HttpOnly; SameSite=Strict")
    }
}
