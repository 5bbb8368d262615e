//! Answers: JSON with a tag, so that nothing is sent twice, and refusals in words.

use std::hash::{DefaultHasher, Hasher as _};
use std::io;

use axum::Json;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use serde_json::json;

/// Returns a number that differs when the value does.
pub(super) fn tag(value: &impl Serialize) -> u64 {
    struct Into(DefaultHasher);

    impl io::Write for Into {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut hasher = Into(DefaultHasher::new());
    // Neither the hasher nor our own types can fail.
    let _ = serde_json::to_writer(&mut hasher, value);
    hasher.0.finish()
}

/// Answers with a value, or says that it is still the one that the client has.
pub(super) fn json(headers: &HeaderMap, tag: u64, value: &impl Serialize) -> Response {
    let tag = format!("\"{tag:016x}\"");
    let known = headers.get(header::IF_NONE_MATCH).and_then(|known| known.to_str().ok());
    if known == Some(&*tag) {
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response();
    }
    ([(header::ETAG, tag)], Json(value)).into_response()
}

/// Says why there is no answer.
pub(super) fn refusal(status: StatusCode, words: &str) -> Response {
    (status, Json(json!({ "error": words }))).into_response()
}
