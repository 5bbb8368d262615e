//! Model calls from request to response.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use rollway_model_api::client_api::{self, Route, RouteMatch};
use rollway_model_api::replay::{SavedResponse, StreamCapture};
use rollway_model_api::{CallError, ClientApi, ErrorKind, ModelCall, ResponseParser, TokenSource};
use serde_json::Map;
use tokio::sync::OwnedSemaphorePermit;

use super::byte_budget::ByteLease;
use super::metrics::{CallTimer, GatewayMetrics};
use super::observed_call::ObservedCall;
use super::prompt_list::PromptList;
use super::record_response::{RecordTarget, unrecorded};
use super::refusal::RefusalReason;
use super::relay::Relay;
use super::request_body::LeasedBody;
use super::response_body::{StreamBody, complete_response, saved_response};
use super::run_sessions::{CallPermit, CallStart, RunSession};
use super::state::GatewayState;
use super::upstream::{UpstreamFailure, UpstreamReply, UpstreamRequest, UpstreamResponse};
use super::{auxiliary, not_found, previous_response, request_body, responses, run_budget};
use crate::keys::{self, Caller};
use crate::models::ServerPermit;
use rollway_recording::{RecordError, RetryHeaders};

const TRACE_PARENT: &str = "traceparent";

/// Fields that sampling arguments never replace.
const NOT_SAMPLING: [&str; 5] = ["model", "messages", "prompt", "stream", "n"];

/// `POST` at a path of a client API.
pub(super) async fn client_request(
    State(app): State<Arc<GatewayState>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    let uri = request.uri().clone();
    let Some(route) = client_api::at_path(keys::split_path(uri.path()).1) else {
        return not_found(request).await;
    };
    match route.route {
        Route::Call(_) => call(&app, caller, route, request).await,
        Route::CountTokens(_) => auxiliary::count_tokens(&app, caller, route, request).await,
    }
}

async fn call(
    app: &Arc<GatewayState>,
    caller: Caller,
    route: RouteMatch<'_>,
    request: Request,
) -> Response {
    let api = route.api;
    let outcome = Box::pin(admit(app, caller, route, request)).await;
    match outcome {
        Ok(response) => response,
        Err(UpstreamFailure::Ours(error)) => responses::client_error(api, &error),
        Err(UpstreamFailure::Theirs { status, body, retry_after }) => {
            let body = api.render_server_error(status, body);
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
            let mut response = responses::json(status, Body::from(body));
            if let Some(seconds) = retry_after {
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
            }
            response
        }
        Err(UpstreamFailure::Unrecordable(error)) => {
            responses::client_error(api, &CallError::new(ErrorKind::Upstream, error.0))
        }
    }
}

/// Permits of a call. They are released before the client receives the end of the response, so that
/// its next call finds them free.
pub(super) struct CallPermits {
    _overall: OwnedSemaphorePermit,
    _of_run: Option<CallPermit>,
    /// Memory of the request.
    request: Option<ByteLease>,
}

async fn admit(
    app: &Arc<GatewayState>,
    caller: Caller,
    route: RouteMatch<'_>,
    request: Request,
) -> Result<Response, UpstreamFailure> {
    let api = route.api;
    let mut timer = GatewayMetrics::call(app, api);
    let session = match caller {
        Caller::Admin | Caller::Agent => None,
        Caller::Run(name) => Some(app.runs.session(name)?),
    };
    let mut permits = acquire_permits(app, session.as_ref())?;
    let headers = request.headers().clone();
    let retry = request_body::retry_headers(&headers)?;
    let LeasedBody { json, mut lease } = request_body::json(app, caller, request).await?;
    let mut calls = route.parse_all(&json)?;
    drop(json);
    let labels = request_body::labels(&headers)?;
    for call in &mut calls {
        if caller != Caller::Admin {
            app.check_fields(call)?;
        }
        call.labels = labels.clone();
        resolve_alias(app, call);
    }
    request_body::lease_copies(app, session.is_some(), &calls, &mut lease).await?;
    permits.request = Some(lease);
    let call = match <[ModelCall; 1]>::try_from(calls) {
        Ok([call]) => call,
        Err(calls) => {
            let request = PromptList { app, caller, session, headers: &headers, retry: &retry };
            return request.send(api, calls).await;
        }
    };

    let name = session.as_ref().and_then(|_| caller.run());
    let observed = ObservedCall::begin(app.options.watcher.as_ref(), name, call.model());
    timer.observed = observed.clone();
    let of_run = session.clone();
    let outcome =
        begin_recording(app, session, (api, call), &headers, &retry, (timer, permits)).await;
    if let Err(failure) = &outcome {
        observed.failed(failure);
    }
    if let Some(session) = of_run {
        let is_unavailable = outcome.as_ref().is_err_and(UpstreamFailure::is_of_server);
        session.note_last_call(is_unavailable);
    }
    outcome
}

/// Completes a call from its session and returns whether it samples from the trained model.
fn prepare_call(
    app: &GatewayState,
    session: Option<&RunSession>,
    call: &mut ModelCall,
) -> Result<bool, UpstreamFailure> {
    // A call that generates nothing gets no sampling arguments and leaves no turn.
    let is_trained = app.models.is_trained(call.model()) && !call.only_scores();
    if is_trained {
        if session.is_some() || app.history.is_some() {
            app.check_sampled(call)?;
        }
        apply_sampling(app, call);
        if let Some(session) = session {
            session.recorder().restore_tool_arguments(call);
        }
    }
    Ok(is_trained)
}

pub(super) async fn begin_recording(
    app: &Arc<GatewayState>,
    session: Option<Arc<RunSession>>,
    (api, mut call): (&'static dyn ClientApi, ModelCall),
    headers: &HeaderMap,
    retry: &RetryHeaders,
    (timer, mut permits): (CallTimer, CallPermits),
) -> Result<Response, UpstreamFailure> {
    let limits = &app.options.limits;
    if let Some(id) = call.previous.clone() {
        let run = session.as_ref().map(|session| session.run);
        let lease = permits.request.get_or_insert_with(|| app.requests.lease(run));
        previous_response::add(app, session.as_deref(), &id, &mut call, lease).await?;
    }
    let is_trained = prepare_call(app, session.as_deref(), &mut call)?;
    let agent = match (&session, &app.history) {
        (None, Some(_)) => Some(app.agents.session(headers, &call, retry)),
        _ => None,
    };
    let routing = session.as_ref().map(|session| session.routing);
    let mut upstream = UpstreamRequest {
        app: Arc::clone(app),
        id: app.keys.new_id(api.id_prefix()),
        session: routing.or_else(|| agent.as_ref().map(|agent| agent.routing)),
        is_recorded: is_trained && (session.is_some() || agent.is_some()),
        deadline: tokio::time::Instant::from_std(timer.began) + limits.call_timeout,
        cancelled: session
            .as_ref()
            .map_or_else(|| app.stopping.clone(), |session| session.cancelled.clone()),
        traces: traces(headers, &timer.observed),
        observed: timer.observed.clone(),
        prefix: None,
        run: session.as_ref().map(|session| session.run),
        api,
        call,
    };
    let recording = session.as_ref().or_else(|| agent.as_ref().map(|agent| &agent.session));
    let target = match recording.filter(|_| is_trained) {
        None => RecordTarget::None,
        Some(session) => {
            let begun = upstream.within(session.begin(&upstream.call, retry)).await?;
            let begun = begun.inspect_err(|error| app.count_unrecorded(error));
            let pending = match begun.map_err(|error| refused(&error))? {
                CallStart::New(pending) => pending,
                CallStart::Again(receipt, saved) => {
                    app.metrics.values.retries.inc();
                    upstream.observed.status(StatusCode::OK.as_u16());
                    return Ok(saved_response(&upstream, saved, receipt).await?);
                }
            };
            if agent.is_none()
                && let Err(reason) = session.charge_call(&app.options.budget, &mut upstream.call)
            {
                app.metrics.values.budgets_exhausted.inc();
                upstream.observed.status(StatusCode::OK.as_u16());
                let parts = run_budget::final_message(&upstream.id, &upstream.call, reason);
                return Ok(complete_response(api, &upstream.call, parts, None, None));
            }
            match (agent, &app.history) {
                (Some(agent), Some(history)) => {
                    RecordTarget::Agent(agent, pending, Arc::clone(history))
                }
                _ => {
                    pending.set_sampling(&mut upstream.call);
                    if app.options.exact_histories {
                        upstream.prefix = pending.recorded_prefix();
                    }
                    RecordTarget::Run(pending)
                }
            }
        }
    };
    forward(upstream, target, timer, permits).await
}

pub(super) fn acquire_permits(
    app: &GatewayState,
    session: Option<&Arc<RunSession>>,
) -> Result<CallPermits, CallError> {
    let limits = &app.options.limits;
    let of_run = session.map(|session| session.enter(limits.calls_per_run)).transpose();
    let of_run = of_run.map_err(|error| app.refuse(RefusalReason::Calls, error))?;
    let overall = Arc::clone(&app.permits).try_acquire_owned().map_err(|_| {
        let limit = limits.calls;
        let message = format!("the gateway has the maximum of {limit} calls in flight");
        let error = CallError::new(ErrorKind::TooMany, message).retry_after(1);
        app.refuse(RefusalReason::Calls, error)
    })?;
    Ok(CallPermits { _overall: overall, _of_run: of_run, request: None })
}

/// Lets a call by an alias go to the trained model.
pub(super) fn resolve_alias(app: &GatewayState, call: &mut ModelCall) {
    let Some(name) = call.model() else { return };
    let is_alias = app.options.model_aliases.iter().any(|alias| match alias.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == alias,
    });
    if is_alias && !app.models.view().iter().any(|model| model.name == name) {
        call.body.remove("model");
    }
}

/// Adds the sampling arguments of the configuration; replaces those of the client if forced.
fn apply_sampling(app: &GatewayState, call: &mut ModelCall) {
    for (name, value) in &app.options.sampling {
        if NOT_SAMPLING.contains(&name.as_str()) {
            continue;
        }
        let is_set = call.body.get(name).is_some_and(|value| !value.is_null());
        if app.options.force_sampling || !is_set {
            call.body.insert(name.clone(), value.clone());
        }
    }
}

/// Returns the trace headers for the server: the client's, else the observer's.
fn traces(headers: &HeaderMap, observed: &ObservedCall) -> Vec<(&'static str, HeaderValue)> {
    if !headers.contains_key(TRACE_PARENT) {
        let trace_parent = observed.traceparent().map(|value| (TRACE_PARENT, value));
        return trace_parent.into_iter().collect();
    }
    let names = [TRACE_PARENT, "tracestate"];
    names.into_iter().filter_map(|name| Some((name, headers.get(name)?.clone()))).collect()
}

pub(super) fn refused(error: &RecordError) -> CallError {
    CallError::new(ErrorKind::Conflict, error.to_string())
}

async fn forward(
    mut upstream: UpstreamRequest,
    target: RecordTarget,
    mut timer: CallTimer,
    mut permits: CallPermits,
) -> Result<Response, UpstreamFailure> {
    let response = match upstream.send().await {
        Ok(response) => response,
        Err(UpstreamFailure::Unrecordable(error)) => {
            let error = RecordError::Misread(error.0);
            target.fail(&upstream.app, error.clone());
            return Err(unrecorded(&error).into());
        }
        Err(failure) => return Err(failure),
    };
    let UpstreamResponse { guard, reply, mut parser, lease, upstream: waited } = response;
    timer.upstream = waited;
    let headers = response_headers(&upstream.id, guard.permit());
    let mut response = match reply {
        UpstreamReply::Full(body) => {
            let source = TokenSource { version: guard.permit().version() };
            let parts = parser.parse_full(&body, source);
            match &parts {
                Ok(_) => guard.permit().record_success(),
                Err(error) => guard.permit().record_failure(&error.0),
            }
            let version = confirmed_version(guard.permit(), &mut parser, &target).await;
            guard.ended();
            let parts = match parts {
                Ok(parts) => parts,
                Err(error) => return Err(target.reject(&upstream.app, error).into()),
            };
            let saved =
                |_: &_| SavedResponse { stream: upstream.call.stream, parts: parts.clone() };
            let receipt = target.complete(&upstream, parser, version, saved).await?;
            upstream.observed.status(StatusCode::OK.as_u16());
            complete_response(upstream.api, &upstream.call, parts, receipt, Some(lease))
        }
        UpstreamReply::Events(response) => {
            let (chunks, body) = StreamBody::new();
            let capture = StreamCapture::new(&upstream.call);
            let (api, renderer) = (upstream.api, upstream.api.stream_renderer(&upstream.call));
            if !matches!(target, RecordTarget::Agent(..)) {
                // Frees long prompts while the response is generated.
                upstream.call.body = Map::new();
                permits.request = None;
            }
            let tasks = upstream.app.tasks.clone();
            let held = (timer, permits);
            let request = upstream;
            let relay =
                Relay { request, guard, parser, target, chunks, held, capture, renderer, lease };
            tasks.spawn(relay.run(response));
            responses::events(api, Body::new(body))
        }
    };
    response.headers_mut().extend(headers);
    Ok(response)
}

/// Returns the version of a response that has ended. Versions of tokens that the server has not
/// reported are dropped unless it confirms that its weights are the same.
pub(super) async fn confirmed_version(
    permit: &ServerPermit,
    parser: &mut Box<dyn ResponseParser>,
    target: &RecordTarget,
) -> Option<u64> {
    let is_assumed = target.is_recorded() && parser.has_assumed_versions();
    if is_assumed && !permit.confirm_version().await {
        parser.drop_assumed_versions();
        return None;
    }
    permit.version()
}

fn response_headers(id: &str, permit: &ServerPermit) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Ok(id) = HeaderValue::from_str(id) {
        headers.insert("x-request-id", id);
    }
    headers.insert("x-rollway-server", HeaderValue::from(permit.server().id.0));
    if let Some(version) = permit.version() {
        headers.insert("x-rollway-model-version", HeaderValue::from(version));
    }
    headers
}
