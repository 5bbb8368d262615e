//! JSON responses with ETags, and error responses.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use rollway_net::JsonBody;
use serde::Serialize;
use serde_json::{Value, json};

/// Returns a hash of a value, without its field `now`.
pub(super) fn tag(value: &impl Serialize) -> u64 {
    let mut value = serde_json::to_value(value).unwrap_or_default();
    if let Value::Object(fields) = &mut value {
        fields.remove("now");
    }
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Responds with a value, or with `304` if the client has it.
pub(super) fn json(headers: &HeaderMap, value: &impl Serialize) -> Response {
    let tag = format!("\"{:016x}\"", tag(value));
    let known = headers.get(header::IF_NONE_MATCH).and_then(|known| known.to_str().ok());
    if known == Some(&*tag) {
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response();
    }
    ([(header::ETAG, tag)], JsonBody(value)).into_response()
}

pub(super) fn error_response(status: StatusCode, message: &str) -> Response {
    (status, JsonBody(json!({ "error": message }))).into_response()
}
