//! Request bodies within their limits, and headers of client retries.

use std::fmt;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderMap, Request};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Collected, LengthLimitError, Limited};
use rollway_model_api::json_shape::{JsonShape, fields_bytes};
use rollway_model_api::{CallError, CallLabels, ErrorKind, ModelCall};
use tokio::time::{Instant, timeout, timeout_at};

use super::byte_budget::ByteLease;
use super::refusal::RefusalReason;
use super::state::GatewayState;
use crate::keys::Caller;
use rollway_recording::RetryHeaders;

/// A request body with the memory that it takes, also once it is parsed.
#[derive(Debug)]
pub(super) struct LeasedBody {
    pub(super) json: Bytes,
    pub(super) lease: ByteLease,
}

/// Reads the JSON body of a request. Refuses one that is too large, also once it is parsed.
pub(super) async fn json(
    app: &GatewayState,
    caller: Caller,
    request: Request<Body>,
) -> Result<LeasedBody, CallError> {
    let limits = &app.options.limits;
    let by = Instant::now() + limits.request_timeout;
    let refused = |refusal| app.over_budget(RefusalReason::RequestBytes, refusal);
    let mut lease = app.requests.lease(caller.run());
    let limit = limits.request_body_bytes;
    let too_large = || {
        let found = "the request body has too many bytes";
        app.too_large(RefusalReason::BodyBytes, found, limit as u64, "request_body_bytes")
    };
    if content_length(&request).is_some_and(|length| length > limit as u64) {
        return Err(too_large());
    }
    let reading = async {
        let mut body = request.into_body();
        let mut json = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|error| incomplete(&error))?.into_data() else { continue };
            if json.len() + data.len() > limit {
                return Err(too_large());
            }
            lease.grow_to((json.len() + data.len()) as u64, by).await.map_err(refused)?;
            json.extend_from_slice(&data);
        }
        Ok(json.freeze())
    };
    let json =
        timeout_at(by, reading).await.unwrap_or_else(|_| Err(timed_out(limits.request_timeout)))?;
    let shape = JsonShape::of(&json);
    if shape.nodes > limits.json_nodes {
        let found = format!("the request body has about {} JSON values", shape.nodes);
        let limit = limits.json_nodes;
        return Err(app.too_large(RefusalReason::JsonNodes, found, limit, "json_nodes"));
    }
    if shape.depth > limits.json_depth {
        let found = format!("the request body has {} levels", shape.depth);
        let limit = limits.json_depth.into();
        return Err(app.too_large(RefusalReason::JsonDepth, found, limit, "json_depth"));
    }
    // As received or sent, and as parsed.
    lease.grow_to(shape.bytes + json.len() as u64, by).await.map_err(refused)?;
    Ok(LeasedBody { json, lease })
}

/// Leases the memory of what a request has several times: the fields beside the prompts, of which
/// every call of a list of prompts has a copy, and the messages that serve mode stores with every
/// choice.
pub(super) async fn lease_copies(
    app: &GatewayState,
    is_of_run: bool,
    calls: &[ModelCall],
    lease: &mut ByteLease,
) -> Result<(), CallError> {
    let Some(first) = calls.first() else { return Ok(()) };
    let mut by = Instant::now() + app.options.limits.request_timeout;
    let mut bytes = 0;
    if !is_of_run && app.history.is_some() && app.models.is_trained(first.model()) {
        bytes += lease.bytes() * u64::from(first.choices - 1);
    }
    if calls.len() > 1 {
        let copied = first.body.iter().filter(|(name, _)| *name != "prompt");
        bytes += fields_bytes(copied) * (calls.len() as u64 - 1);
        // The copies exist: they do not wait for memory.
        by = Instant::now();
    }
    let refused = |refusal| app.over_budget(RefusalReason::RequestBytes, refusal);
    lease.grow(bytes, by).await.map_err(refused)
}

/// Reads the body of a request, and no more of it than allowed.
pub(crate) async fn body(
    request: Request<Body>,
    limit: usize,
    wait_limit: Duration,
) -> Result<Bytes, CallError> {
    if content_length(&request).is_some_and(|length| length > limit as u64) {
        return Err(too_large(limit));
    }
    let read = async {
        let collected = Limited::new(request.into_body(), limit).collect().await;
        collected.map(Collected::to_bytes).map_err(|error| {
            if error.is::<LengthLimitError>() { too_large(limit) } else { incomplete(&error) }
        })
    };
    timeout(wait_limit, read).await.unwrap_or_else(|_| Err(timed_out(wait_limit)))
}

fn content_length(request: &Request<Body>) -> Option<u64> {
    request.headers().get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn too_large(limit: usize) -> CallError {
    let message = format!("the request body has more than the limit of {limit} bytes");
    CallError::new(ErrorKind::TooLarge, message)
}

fn incomplete(error: &impl fmt::Display) -> CallError {
    CallError::new(ErrorKind::InvalidRequest, format!("the request body is incomplete: {error}"))
}

fn timed_out(limit: Duration) -> CallError {
    let message = format!("the request body did not arrive within {limit:?}");
    CallError::new(ErrorKind::InvalidRequest, message)
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
