//! `/feedback` and `/commit`.

use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::post;
use rollway_model_api::{CallError, ErrorKind};
use serde_json::Value;

use super::ServeMode;
use super::commit::CommitError;
use super::feedback::{Feedback, FeedbackOutcome};
use crate::http::{HandlerResult, json_response, read_body};

const MAX_FEEDBACK_BYTES: usize = 4 << 20;

const BODY_TIMEOUT: Duration = Duration::from_secs(60);

const RETRY_SECONDS: u32 = 5;

pub(super) fn routes(serve: ServeMode) -> Router {
    Router::new()
        .route("/feedback", post(feedback))
        .route("/commit", post(commit))
        .with_state(serve)
}

async fn feedback(State(serve): State<ServeMode>, request: Request) -> HandlerResult {
    let body = read_body(request, MAX_FEEDBACK_BYTES, BODY_TIMEOUT).await?;
    let outcome = serve.feedback(Feedback::parse(&body)?).await;
    match outcome.map_err(|error| unavailable(&error))? {
        FeedbackOutcome::Taken(receipt) => Ok(respond(receipt.status(), &receipt.body())),
        FeedbackOutcome::Full { bytes, limit } => {
            let message = format!(
                "{bytes} bytes wait for a commit, the limit is {limit}: POST /commit first, or \
                 raise `explorer.serve_retention.max_queued_bytes`"
            );
            Err(CallError::new(ErrorKind::TooMany, message).retry_after(RETRY_SECONDS).into())
        }
    }
}

async fn commit(State(serve): State<ServeMode>) -> HandlerResult {
    // A separate task, so that a disconnect does not interrupt it.
    let committing = tokio::spawn(async move { serve.commit().await });
    let outcome = committing.await.map_err(|error| unavailable(&error))?;
    if let Err(error @ CommitError::Undelivered { .. }) = &outcome {
        tracing::error!(%error, "commit failed");
    }
    Ok(respond(200, &outcome.map_err(|error| unavailable(&error))?.body()))
}

fn unavailable(error: &dyn std::fmt::Display) -> CallError {
    CallError::new(ErrorKind::Unavailable, error.to_string()).retry_after(RETRY_SECONDS)
}

fn respond(status: u16, body: &Value) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    json_response(status, body.to_string())
}
