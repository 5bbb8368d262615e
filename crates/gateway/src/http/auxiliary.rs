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
use serde_json::Value;
use tokio::time::timeout;

use super::calls::{CallPermits, acquire_permits, resolve_alias};
use super::request_body::LeasedBody;
use super::state::GatewayState;
use super::upstream::prompt_tokens;
use super::{EMBEDDINGS, request_body, responses};
use crate::keys::Caller;
use crate::models::{ReadError, RouteNeeds, ServerPermit, failure_reason, read_limited};

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
    let (permit, _permits) = pick(app, caller, call.model()).await?;
    let server = permit.server();
    let api = server_api(server.spec.engine);
    let Some(lookup) = api.token_count(&call, permit.server_model()) else {
        let message = format!("servers of kind {:?} do not count tokens", server.spec.engine);
        return Err(CallError::new(ErrorKind::NotFound, message));
    };
    match timeout(limits.call_timeout, prompt_tokens(server, lookup)).await {
        Ok(Ok(tokens)) => Ok(tokens.len()),
        Ok(Err(error)) => Err(CallError::new(ErrorKind::Upstream, error.0)),
        Err(_) => Err(timed_out(app)),
    }
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
    let mut body: Value =
        serde_json::from_slice(&json).ok().filter(Value::is_object).ok_or_else(|| {
            CallError::new(ErrorKind::InvalidRequest, "the body must be a JSON object")
        })?;
    if caller != Caller::Admin
        && let Some(fields) = body.as_object()
    {
        app.check_embeddings(fields)?;
    }
    let (permit, _permits) = pick(app, caller, body["model"].as_str()).await?;
    body["model"] = permit.server_model().into();
    let server = permit.server();
    let post = server.client.post(format!("{}{EMBEDDINGS}", server.spec.url));
    let post = post.header(CONTENT_TYPE, "application/json").body(body.to_string()).send();
    let failed = |reason: String| {
        let message = format!("server {} failed: {reason}", server.id.0);
        CallError::new(ErrorKind::Upstream, message)
    };
    let exchange = async {
        let response = post.await.map_err(|error| failed(failure_reason(error)))?;
        let status = response.status();
        let reply = read_limited(response, limits.response_body_bytes).await;
        let reply = reply.map_err(|error| match error {
            ReadError::Broken(error) => failed(failure_reason(error)),
            ReadError::TooLarge => failed("its response is too large".to_owned()),
        })?;
        if status.is_success() {
            return Ok(responses::json(StatusCode::OK, Body::from(reply)));
        }
        match openai_error(&reply).filter(|_| status.is_client_error()) {
            Some(reply) => Ok(responses::json(status, Body::from(reply))),
            None => Err(failed(status.to_string())),
        }
    };
    timeout(limits.call_timeout, exchange).await.unwrap_or_else(|_| Err(timed_out(app)))
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
