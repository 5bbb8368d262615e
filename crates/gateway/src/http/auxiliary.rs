//! Requests beside model calls, which are not recorded: counts of tokens, and embeddings.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use rollway_model_api::client_api::RouteMatch;
use rollway_model_api::server_api::server_api;
use rollway_model_api::{CallError, ErrorKind, openai_error};
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout, timeout_at};

use super::calls::{CallPermits, acquire_permits, resolve_alias};
use super::request_body::LeasedBody;
use super::response_body::holding;
use super::server_reply::{ReadFailure, ServerLookups};
use super::state::GatewayState;
use super::upstream::MAX_ERROR_BYTES;
use super::{EMBEDDINGS, request_body, responses};
use crate::keys::Caller;
use crate::models::{RouteNeeds, ServerPermit, failure_reason, read_limited};

/// Counts the tokens of a call.
pub(super) async fn count_tokens(
    app: &Arc<GatewayState>,
    caller: Caller,
    route: RouteMatch<'_>,
    request: Request,
) -> Response {
    match count(app, caller, route, request).await {
        Ok(count) => responses::json(StatusCode::OK, route.api.render_token_count(count)),
        Err(error) => responses::client_error(route.api, &error),
    }
}

async fn count(
    app: &Arc<GatewayState>,
    caller: Caller,
    route: RouteMatch<'_>,
    request: Request,
) -> Result<usize, CallError> {
    let limits = &app.options.limits;
    let LeasedBody { json, lease: _lease } = request_body::json(app, caller, request).await?;
    let mut call = route.parse(&json)?;
    if caller != Caller::Admin {
        app.check_fields(&call)?;
    }
    resolve_alias(app, &mut call);
    let by = Instant::now() + limits.call_timeout;
    let (permit, _permits) = pick(app, caller, call.model()).await?;
    let server = permit.server();
    let api = server_api(server.spec.engine);
    let Some(lookup) = api.token_count(&call, permit.server_model()) else {
        let message = format!("servers of kind {:?} do not count tokens", server.spec.engine);
        return Err(CallError::new(ErrorKind::NotFound, message));
    };
    let lookups = ServerLookups { app, server, run: caller.run(), by };
    let tokens = timeout_at(by, lookups.prompt_tokens(lookup)).await;
    Ok(tokens.map_err(|_| timed_out(app))??.len())
}

/// `POST /v1/embeddings`, passed on as it is.
pub(super) async fn embeddings(
    State(app): State<Arc<GatewayState>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    embed(&app, caller, request).await.unwrap_or_else(|error| responses::error(&error))
}

async fn embed(
    app: &Arc<GatewayState>,
    caller: Caller,
    request: Request,
) -> Result<Response, CallError> {
    let limits = &app.options.limits;
    let LeasedBody { json, lease: _lease } = request_body::json(app, caller, request).await?;
    let mut body: Map<String, Value> = serde_json::from_slice(&json)
        .map_err(|_| CallError::new(ErrorKind::InvalidRequest, "the body must be a JSON object"))?;
    if caller != Caller::Admin {
        app.check_embeddings(&body)?;
    }
    let by = Instant::now() + limits.call_timeout;
    let (permit, _permits) = pick(app, caller, body.get("model").and_then(Value::as_str)).await?;
    body.insert("model".to_owned(), permit.server_model().into());
    let server = permit.server();
    let post = server.client.post(format!("{}{EMBEDDINGS}", server.spec.url));
    let post = post.header(CONTENT_TYPE, "application/json");
    let post = post.body(Value::Object(body).to_string()).send();
    let failed = |reason: String| {
        let message = format!("server {} failed: {reason}", server.id.0);
        CallError::new(ErrorKind::Upstream, message)
    };
    let exchange = async {
        let response = post.await.map_err(|error| failed(failure_reason(error)))?;
        let status = response.status();
        if status.is_success() {
            let mut lease = app.responses.lease(caller.run());
            let reply = app.read_response(response, &mut lease, by).await;
            let reply = reply.map_err(|failure| match failure {
                ReadFailure::Broken(error) => failed(failure_reason(error)),
                ReadFailure::Refused(error) => error,
            })?;
            return Ok(responses::json(StatusCode::OK, holding(reply, lease)));
        }
        // An unreadable error is reported without its text.
        let reply = read_limited(response, MAX_ERROR_BYTES).await.unwrap_or_default();
        match openai_error(&reply).filter(|_| status.is_client_error()) {
            Some(reply) => Ok(responses::json(status, Body::from(reply))),
            None => Err(failed(status.to_string())),
        }
    };
    timeout_at(by, exchange).await.unwrap_or_else(|_| Err(timed_out(app)))
}

/// Waits for a server of a model, within the limits of calls. A run's requests go to the server of
/// its calls.
async fn pick(
    app: &Arc<GatewayState>,
    caller: Caller,
    model: Option<&str>,
) -> Result<(ServerPermit, CallPermits), CallError> {
    let session = caller.run().map(|run| app.runs.session(run)).transpose()?;
    let permits = acquire_permits(app, session.as_ref())?;
    let routing = session.as_ref().map(|session| session.routing);
    let needs = RouteNeeds { model, session: routing, avoid: &[] };
    let picked = timeout(app.options.limits.call_timeout, app.models.pick(needs)).await;
    let permit = picked.unwrap_or_else(|_| Err(timed_out(app)))?;
    Ok((permit, permits))
}

fn timed_out(app: &GatewayState) -> CallError {
    let limit = app.options.limits.call_timeout;
    let message = format!("the request exceeded the timeout of {limit:?}");
    CallError::new(ErrorKind::UpstreamTimeout, message)
}
