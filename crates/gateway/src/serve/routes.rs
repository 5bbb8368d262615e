//! `/feedback` and `/commit`.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use axum::routing::post;
use rollway_model_api::{CallError, ErrorKind};
use serde_json::Value;

use super::ServeModeState;
use super::commit::CommitError;
use super::feedback::{Feedback, FeedbackOutcome};
use crate::http::read_body;

/// The largest feedback.
const MAX_FEEDBACK_BYTES: usize = 32 << 20;

/// How long a client may take to send it.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// After how many seconds what failed is worth another try.
const RETRY: u32 = 5;

pub(super) fn routes(serve: Arc<ServeModeState>) -> Router {
    Router::new()
        .route("/feedback", post(feedback))
        .route("/commit", post(commit))
        .with_state(serve)
}

async fn feedback(State(serve): State<Arc<ServeModeState>>, request: Request) -> Response {
    let body = read_body(request, MAX_FEEDBACK_BYTES, BODY_TIMEOUT).await;
    let feedback = match body.and_then(|body| Feedback::parse(&body)) {
        Ok(feedback) => feedback,
        Err(error) => return refuse(&error),
    };
    match serve.feedback(feedback).await {
        Ok(FeedbackOutcome::Taken(receipt)) => answer(receipt.status(), &receipt.body()),
        Ok(FeedbackOutcome::Full { bytes, limit }) => {
            let message = format!(
                "{bytes} bytes wait for a commit, of {limit} at most: POST /commit first, or \
                 raise `explorer.serve_retention.max_queued_bytes`"
            );
            refuse(&CallError::new(ErrorKind::TooMany, message).retry_after(RETRY))
        }
        Err(error) => refuse(&unavailable(&error)),
    }
}

async fn commit(State(serve): State<Arc<ServeModeState>>) -> Response {
    // A task of its own: a client that leaves does not end what it has begun.
    let committing = tokio::spawn(async move { serve.commit().await });
    match committing.await {
        Ok(Ok(committed)) => answer(200, &committed.body()),
        Ok(Err(error @ CommitError::Undelivered { .. })) => {
            tracing::error!(%error, "a commit failed");
            refuse(&unavailable(&error))
        }
        Ok(Err(CommitError::Store(error))) => refuse(&unavailable(&error)),
        Err(error) => refuse(&unavailable(&error)),
    }
}

fn unavailable(error: &dyn std::fmt::Display) -> CallError {
    CallError::new(ErrorKind::Unavailable, error.to_string()).retry_after(RETRY)
}

fn refuse(error: &CallError) -> Response {
    let mut response = answer(error.kind.status(), &error.body());
    if let Some(seconds) = error.retry_after {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

fn answer(status: u16, body: &Value) -> Response {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
