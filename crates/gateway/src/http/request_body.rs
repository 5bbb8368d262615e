//! Request bodies within their limits, and headers of client retries.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderMap, Request};
use bytes::Bytes;
use http_body_util::{BodyExt, Collected, LengthLimitError, Limited};
use rollway_model_api::{CallError, CallLabels, ErrorKind};
use tokio::time::timeout;

use rollway_recording::RetryHeaders;

/// Reads the body of a request, and no more of it than allowed.
pub(crate) async fn body(
    request: Request<Body>,
    limit: usize,
    wait_limit: Duration,
) -> Result<Bytes, CallError> {
    let content_length = request.headers().get(CONTENT_LENGTH);
    let content_length = content_length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if content_length.is_some_and(|length| length > limit as u64) {
        return Err(too_large(limit));
    }
    let read = async {
        let collected = Limited::new(request.into_body(), limit).collect().await;
        collected.map(Collected::to_bytes).map_err(|error| {
            if error.is::<LengthLimitError>() {
                return too_large(limit);
            }
            let message = format!("the request body is incomplete: {error}");
            CallError::new(ErrorKind::InvalidRequest, message)
        })
    };
    timeout(wait_limit, read).await.unwrap_or_else(|_| {
        let message = format!("the request body did not arrive within {wait_limit:?}");
        Err(CallError::new(ErrorKind::InvalidRequest, message))
    })
}

fn too_large(limit: usize) -> CallError {
    let message = format!("the request body has more than the limit of {limit} bytes");
    CallError::new(ErrorKind::TooLarge, message)
}

/// Parses the headers that identify client retries.
pub(super) fn retry_headers(headers: &HeaderMap) -> Result<RetryHeaders, CallError> {
    let idempotency_key = short_text(headers, "Idempotency-Key")?;
    let count = headers.get("x-stainless-retry-count").and_then(|value| value.to_str().ok());
    let is_retry = count.and_then(|count| count.parse::<u32>().ok()).is_some_and(|count| count > 0);
    Ok(RetryHeaders { idempotency_key, is_retry })
}

/// Parses the labels of a call.
pub(super) fn labels(headers: &HeaderMap) -> Result<CallLabels, CallError> {
    Ok(CallLabels {
        agent: short_text(headers, "X-Rollway-Agent")?,
        parent: short_text(headers, "X-Rollway-Parent")?,
    })
}

fn short_text(headers: &HeaderMap, name: &str) -> Result<Option<String>, CallError> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    match value.to_str() {
        Ok(text) if !text.is_empty() && text.len() <= 256 => Ok(Some(text.to_owned())),
        _ => {
            let message = format!("`{name}` must have 1 to 256 visible ASCII characters");
            Err(CallError::new(ErrorKind::InvalidRequest, message))
        }
    }
}
