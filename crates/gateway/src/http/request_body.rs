//! Takes a request in, within its limits.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderMap, Request};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use rollway_model_api::{CallError, ErrorKind};
use tokio::time::timeout;

use crate::recording::RetryHeaders;

/// Reads the body of a request, and no more of it than allowed.
pub(crate) async fn body(
    request: Request<Body>,
    limit: usize,
    patience: Duration,
) -> Result<Bytes, CallError> {
    let announced = request.headers().get(CONTENT_LENGTH);
    let announced = announced.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(too_large(limit));
    }
    let read = async {
        let mut body = request.into_body();
        let mut first = Bytes::new();
        let mut more = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                let message = format!("the body of the request broke off: {error}");
                CallError::new(ErrorKind::InvalidRequest, message)
            })?;
            let Ok(data) = frame.into_data() else { continue };
            if first.len() + more.len() + data.len() > limit {
                return Err(too_large(limit));
            }
            // Most bodies come in one piece, which need not be copied.
            if first.is_empty() {
                first = data;
            } else {
                more.extend_from_slice(&data);
            }
        }
        if more.is_empty() {
            return Ok(first);
        }
        let mut whole = BytesMut::with_capacity(first.len() + more.len());
        whole.extend_from_slice(&first);
        whole.extend_from_slice(&more);
        Ok(whole.freeze())
    };
    timeout(patience, read).await.unwrap_or_else(|_| {
        let message = format!("the body of the request did not arrive in {patience:?}");
        Err(CallError::new(ErrorKind::InvalidRequest, message))
    })
}

fn too_large(limit: usize) -> CallError {
    let message =
        format!("the body of the request has more than {limit} bytes, which is the limit");
    CallError::new(ErrorKind::TooLarge, message)
}

/// Reads what a client says about a call besides its body.
pub(super) fn attempted(headers: &HeaderMap) -> Result<RetryHeaders, CallError> {
    let idempotency_key = match headers.get("idempotency-key") {
        None => None,
        Some(value) => match value.to_str() {
            Ok(key) if !key.is_empty() && key.len() <= 256 => Some(key.to_owned()),
            _ => {
                let message = "`Idempotency-Key` must be of 1 to 256 visible ASCII characters";
                return Err(CallError::new(ErrorKind::InvalidRequest, message));
            }
        },
    };
    let count = headers.get("x-stainless-retry-count").and_then(|value| value.to_str().ok());
    let is_retry = count.and_then(|count| count.parse::<u32>().ok()).is_some_and(|count| count > 0);
    Ok(RetryHeaders { idempotency_key, is_retry })
}
