//! Experiences of a run, for its own client.

use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use rollway_model_api::{CallError, ErrorKind};
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};

use super::calls::{acquire_permits, refused};
use super::refusal::RefusalReason;
use super::response_body::holding;
use super::responses::{self, HandlerResult};
use super::state::GatewayState;
use crate::keys::Caller;

#[derive(Debug, Deserialize)]
pub(super) struct SinceQuery {
    #[serde(default)]
    since: u64,
}

/// `GET /rollway/v1/run/experiences`.
pub(super) async fn experiences(
    State(app): State<Arc<GatewayState>>,
    Extension(caller): Extension<Caller>,
    query: Result<Query<SinceQuery>, QueryRejection>,
) -> HandlerResult {
    let Query(SinceQuery { since }) = query.map_err(|error| {
        let message = format!("`since` must be the number of a turn: {error}");
        CallError::new(ErrorKind::InvalidRequest, message).at("since")
    })?;
    let Caller::Run(run) = caller else {
        let message = "experiences belong to a run: send its run key";
        return Err(CallError::new(ErrorKind::Forbidden, message).into());
    };
    let session = app.runs.session(run)?;
    let permits = acquire_permits(&app, Some(&session))?;
    let by = Instant::now() + app.options.limits.request_timeout;
    let merging = timeout_at(by, Arc::clone(&session.merging).lock_owned()).await;
    let merging = merging.map_err(|_| {
        let message = "experiences of the run are merged for other requests: send one at a time";
        let error = CallError::new(ErrorKind::TooMany, message).retry_after(1);
        app.refuse(RefusalReason::Calls, error)
    })?;
    let mut lease = app.responses.lease(Some(run));
    let over = |refusal| app.over_budget(RefusalReason::ResponseBytes, refusal);
    let estimate = session.recorder().experience_bytes(since);
    lease.grow(estimate.map_err(|error| refused(&error))?, by).await.map_err(over)?;
    let reader = Arc::clone(&app);
    // Merging and encoding take a while. They go on if the client disconnects, and hold the memory
    // and the permits until they end.
    let merged = tokio::task::spawn_blocking(move || {
        let merged = reader.experiences(run, since);
        drop(merging);
        (merged, lease, permits)
    });
    let (merged, mut lease, permits) = merged.await.map_err(|error| {
        let message = format!("the experiences could not be merged: {error}");
        CallError::new(ErrorKind::Unavailable, message)
    })?;
    let (payload, turns) = merged.map_err(|error| refused(&error))?;
    let bytes = payload.len() as u64;
    lease.shrink_to(bytes);
    lease.grow_to(bytes, by).await.map_err(over)?;
    let mut response = responses::json(StatusCode::OK, holding(payload, (lease, permits)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert("x-rollway-turns", HeaderValue::from(turns));
    Ok(response)
}
