//! Protection against web pages: host name, origin and content type of requests.

use axum::body::HttpBody;
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::{
    CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderName, ORIGIN, TRANSFER_ENCODING,
};
use rollway_base::net::{host_of, is_loopback};
use rollway_model_api::{CallError, ErrorKind};

/// Checks a request without a key. A gateway on the loopback interface serves its own host names
/// only, because another site can point a name at this machine (DNS rebinding). Pages of other
/// origins are refused everywhere.
pub(super) fn check(listen: &str, headers: &HeaderMap) -> Result<(), CallError> {
    let host = text(headers, HOST);
    if is_loopback(host_of(listen)) && !is_loopback(host_of(host)) {
        let message = format!(
            "host {} refused: without authentication the gateway is for `localhost` and \
             `127.0.0.1` only",
            super::shortened(host)
        );
        return Err(CallError::new(ErrorKind::Forbidden, message));
    }
    let origin = text(headers, ORIGIN);
    let is_own = origin.split_once("://").is_some_and(|(_, origin)| origin == host);
    if headers.contains_key(ORIGIN) && !is_own {
        let message = format!(
            "origin {} refused: without authentication web pages of other sites have no access",
            super::shortened(origin)
        );
        return Err(CallError::new(ErrorKind::Forbidden, message));
    }
    Ok(())
}

/// Checks that the end of the body is unambiguous. The listener has refused requests that have a
/// `Content-Length` too.
pub(super) fn check_framing(headers: &HeaderMap) -> Result<(), CallError> {
    let mut encodings = headers.get_all(TRANSFER_ENCODING).iter();
    match (encodings.next(), encodings.next()) {
        (None, _) => Ok(()),
        (Some(encoding), None) if encoding.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(()),
        _ => {
            let message = "`Transfer-Encoding` must be `chunked` or absent";
            Err(CallError::new(ErrorKind::InvalidRequest, message))
        }
    }
}

/// Checks that a body is declared as JSON, and not compressed. A page of another site cannot send
/// this content type without the consent of the gateway.
pub(super) fn check_content_type(request: &Request) -> Result<(), CallError> {
    let encoding = text(request.headers(), CONTENT_ENCODING);
    if !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity") {
        let message = format!(
            "content encoding {:?} not supported: send the body uncompressed",
            super::shortened(encoding)
        );
        return Err(CallError::new(ErrorKind::UnsupportedMediaType, message));
    }
    let content_type = text(request.headers(), CONTENT_TYPE);
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    if request.body().is_end_stream() || essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let message = format!(
        "content type {:?} not supported: send `Content-Type: application/json`",
        super::shortened(content_type)
    );
    Err(CallError::new(ErrorKind::UnsupportedMediaType, message))
}

fn text(headers: &HeaderMap, name: HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}
