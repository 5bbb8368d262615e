//! The calls of models, from the first byte to the last, and what was recorded of them.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, Request, State};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use rollway_model_api::replay::{SavedResponse, StreamCapture};
use rollway_model_api::{CallError, ClientApi, ErrorKind, ModelCall, ResponseEnd, TokenSource};
use serde::Deserialize;
use serde_json::Map;
use tokio::sync::OwnedSemaphorePermit;

use super::metrics::{GatewayMetrics, Timed};
use super::observed_call::ObservedCall;
use super::record_response::{RecordTarget, invalid_response, unrecorded};
use super::relay::Relay;
use super::replay;
use super::response_body::StreamBody;
use super::run_sessions::{CallPermit, CallStart, RunSession};
use super::state::GatewayState;
use super::upstream::{UpstreamFailure, UpstreamReply, UpstreamRequest, UpstreamResponse};
use super::{request_body, responses};
use crate::keys::Caller;
use crate::models::ServerPermit;
use crate::recording::{RecordError, RetryHeaders};

/// The header that says which span of which trace a request is part of.
const TRACE_PARENT: &str = "traceparent";

/// Fields of a call that sampling arguments do not reach.
const NOT_SAMPLING: [&str; 5] = ["model", "messages", "prompt", "stream", "n"];

/// Executes a model call of a client API.
pub(super) async fn call(
    State(app): State<Arc<GatewayState>>,
    Extension(caller): Extension<Caller>,
    api: &'static dyn ClientApi,
    request: Request,
) -> Response {
    let outcome = Box::pin(admit(&app, caller, api, request)).await;
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
        Err(UpstreamFailure::Unrecordable(misread)) => {
            responses::client_error(api, &CallError::new(ErrorKind::Upstream, misread.0))
        }
    }
}

/// The places that a call takes; given back when dropped, which is before the client learns the end
/// of the answer, so that its next call finds them free.
pub(super) struct CallPermits {
    _overall: OwnedSemaphorePermit,
    _of_run: Option<CallPermit>,
}

async fn admit(
    app: &Arc<GatewayState>,
    caller: Caller,
    api: &'static dyn ClientApi,
    request: Request,
) -> Result<Response, UpstreamFailure> {
    let mut timed = GatewayMetrics::call(app, api);
    let limits = &app.options.limits;
    let session = match caller {
        Caller::Admin => None,
        Caller::Run(name) => Some(app.runs.session(name)?),
    };
    let places = acquire_permits(app, session.as_ref())?;
    let headers = request.headers().clone();
    let attempted = request_body::attempted(&headers)?;
    let body = request_body::body(request, limits.max_body_bytes, limits.request_timeout).await?;
    let call = api.parse(&body)?;
    drop(body);

    let name = session.as_ref().and_then(|_| caller.run());
    let watched = ObservedCall::begin(app.options.watcher.as_ref(), name, call.model());
    timed.watched = watched.clone();
    let asked =
        begin_recording(app, session, (api, call), &headers, &attempted, (timed, places)).await;
    if let Err(failure) = &asked {
        watched.failed(failure);
    }
    asked
}

/// Begins the recording of a call, and asks a server.
async fn begin_recording(
    app: &Arc<GatewayState>,
    session: Option<Arc<RunSession>>,
    (api, mut call): (&'static dyn ClientApi, ModelCall),
    headers: &HeaderMap,
    attempted: &RetryHeaders,
    (timed, places): (Timed, CallPermits),
) -> Result<Response, UpstreamFailure> {
    let limits = &app.options.limits;
    let is_trained = app.models.is_trained(call.model());
    if is_trained {
        apply_sampling(app, &mut call);
    }
    let guest = match (&session, &app.history) {
        (None, Some(_)) => Some(app.guests.guest(headers, &call, attempted)),
        _ => None,
    };
    let routing = session.as_ref().map(|session| session.routing);
    let question = UpstreamRequest {
        app: Arc::clone(app),
        id: app.new_id(api),
        session: routing.or_else(|| guest.as_ref().map(|guest| guest.routing)),
        is_recorded: is_trained && (session.is_some() || guest.is_some()),
        deadline: tokio::time::Instant::from_std(timed.began) + limits.call_timeout,
        cancelled: session
            .as_ref()
            .map_or_else(|| app.stopping.clone(), |session| session.cancelled.clone()),
        traces: traces(headers, &timed.watched),
        watched: timed.watched.clone(),
        api,
        call,
    };
    let recording = session.as_ref().or_else(|| guest.as_ref().map(|guest| &guest.session));
    let keeping = match recording.filter(|_| is_trained) {
        None => RecordTarget::None,
        Some(session) => {
            let begun = question.within(session.begin(&question.call, attempted)).await?;
            let pending = match begun.map_err(|error| refused(&error))? {
                CallStart::New(pending) => pending,
                CallStart::Again(receipt, kept) => {
                    app.metrics.answered_again();
                    question.watched.status(StatusCode::OK.as_u16());
                    return Ok(replay::saved(api, &question.call, kept, receipt));
                }
            };
            match (guest, &app.history) {
                (Some(guest), Some(history)) => {
                    RecordTarget::Agent(guest, pending, Arc::clone(history))
                }
                _ => RecordTarget::Run(pending),
            }
        }
    };
    forward(question, keeping, timed, places).await
}

/// Takes a place, or says that there is none.
fn acquire_permits(
    app: &GatewayState,
    session: Option<&Arc<RunSession>>,
) -> Result<CallPermits, CallError> {
    let limits = &app.options.limits;
    let of_run = session.map(|session| session.enter(limits.max_in_flight_per_run)).transpose()?;
    let overall = Arc::clone(&app.places).try_acquire_owned().map_err(|_| {
        let limit = limits.max_in_flight;
        let message = format!("the gateway has {limit} calls under way, which is the limit");
        CallError::new(ErrorKind::TooMany, message).retry_after(1)
    })?;
    Ok(CallPermits { _overall: overall, _of_run: of_run })
}

/// Fills in how to sample, or insists on it.
fn apply_sampling(app: &GatewayState, call: &mut ModelCall) {
    for (name, value) in &app.options.sampling {
        if NOT_SAMPLING.contains(&name.as_str()) {
            continue;
        }
        let is_said = call.body.get(name).is_some_and(|said| !said.is_null());
        if app.options.force_sampling || !is_said {
            call.body.insert(name.clone(), value.clone());
        }
    }
}

/// Returns what tells a server which trace a call belongs to: what the client says, else what
/// whoever watches says.
fn traces(headers: &HeaderMap, watched: &ObservedCall) -> Vec<(&'static str, HeaderValue)> {
    if !headers.contains_key(TRACE_PARENT) {
        let ours = watched.traceparent().map(|value| (TRACE_PARENT, value));
        return ours.into_iter().collect();
    }
    let names = [TRACE_PARENT, "tracestate"];
    names.into_iter().filter_map(|name| Some((name, headers.get(name)?.clone()))).collect()
}

/// The recording does not take the call.
fn refused(error: &RecordError) -> CallError {
    CallError::new(ErrorKind::Conflict, error.to_string())
}

async fn forward(
    mut question: UpstreamRequest,
    keeping: RecordTarget,
    mut timed: Timed,
    places: CallPermits,
) -> Result<Response, UpstreamFailure> {
    let asked = match question.send().await {
        Ok(asked) => asked,
        Err(UpstreamFailure::Unrecordable(misread)) => {
            let error = RecordError::Misread(misread.0);
            keeping.fail(&question.app, error.clone());
            return Err(unrecorded(&error).into());
        }
        Err(failure) => return Err(failure),
    };
    let UpstreamResponse { under_way, said, reader, upstream } = asked;
    timed.upstream = upstream;
    let marks = ResponseHeaders::new(&question.id, under_way.lease());
    let mut response = match said {
        UpstreamReply::Whole(body) => {
            let source = TokenSource { version: under_way.lease().version() };
            let mut reader = reader;
            let parts = reader.parse_full(&body, source);
            match &parts {
                Ok(_) => under_way.lease().went_well(),
                Err(misread) => under_way.lease().went_wrong(&misread.0),
            }
            under_way.ended();
            let heard = parts.map(|parts| (parts, reader.finish(ResponseEnd::Complete)));
            let call = &question.call;
            let outcome = match heard {
                Ok((parts, Ok(answer))) => {
                    question.watched.on_response(&answer, source.version);
                    let kept = SavedResponse { stream: call.stream, parts: parts.clone() };
                    let kept = keeping.record(&question.app, call, answer, kept).await;
                    let given =
                        kept.map(|receipt| replay::complete(question.api, call, parts, receipt));
                    given.map_err(|error| unrecorded(&error))
                }
                Ok((parts, Err(_))) if !keeping.is_kept() => {
                    Ok(replay::complete(question.api, call, parts, None))
                }
                Ok((_, Err(misread))) | Err(misread) => {
                    let error = invalid_response(&misread, keeping.is_kept());
                    if keeping.is_kept() {
                        keeping.fail(&question.app, RecordError::Misread(misread.0));
                    }
                    Err(error)
                }
            };
            let given = outcome?;
            question.watched.status(StatusCode::OK.as_u16());
            given
        }
        UpstreamReply::Events(response) => {
            let (pieces, body) = StreamBody::new();
            let gathered = StreamCapture::new(&question.call);
            let renderer = question.api.stream_renderer(&question.call);
            if !matches!(keeping, RecordTarget::Agent(..)) {
                // Long prompts need not stay in memory for as long as their answers take.
                question.call.body = Map::new();
            }
            let tasks = question.app.tasks.clone();
            let held = (timed, places);
            let relay =
                Relay { question, under_way, reader, keeping, pieces, held, gathered, renderer };
            tasks.spawn(relay.run(response));
            responses::events(Body::new(body))
        }
    };
    marks.put(response.headers_mut());
    Ok(response)
}

/// Headers that say where an answer comes from.
struct ResponseHeaders {
    id: String,
    server: u64,
    version: Option<u64>,
}

impl ResponseHeaders {
    fn new(id: &str, lease: &ServerPermit) -> Self {
        let id = id.to_owned();
        Self { id, server: lease.server().id.0, version: lease.version() }
    }

    fn put(self, headers: &mut HeaderMap) {
        if let Ok(id) = HeaderValue::from_str(&self.id) {
            headers.insert("x-request-id", id);
        }
        headers.insert("x-rollway-server", HeaderValue::from(self.server));
        if let Some(version) = self.version {
            headers.insert("x-rollway-model-version", HeaderValue::from(version));
        }
    }
}

/// From which turn on.
#[derive(Debug, Deserialize)]
pub(super) struct SinceQuery {
    #[serde(default)]
    since: u64,
}

/// Gives a run what was recorded of it.
pub(super) async fn experiences(
    State(app): State<Arc<GatewayState>>,
    Extension(caller): Extension<Caller>,
    query: Result<Query<SinceQuery>, QueryRejection>,
) -> Response {
    let began = Instant::now();
    let outcome = (|| {
        let Query(SinceQuery { since }) = query.map_err(|error| {
            let message = format!("`since` is the number of a turn: {error}");
            CallError::new(ErrorKind::InvalidRequest, message).at("since")
        })?;
        let Caller::Run(name) = caller else {
            let message = "experiences belong to a run: show the run's own key";
            return Err(CallError::new(ErrorKind::Forbidden, message));
        };
        app.experiences(name, since).map_err(|error| refused(&error))
    })();
    tracing::trace!(took = ?began.elapsed(), "experiences");
    match outcome {
        Ok((payload, turns)) => {
            let mut response = responses::json(StatusCode::OK, payload);
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
            headers.insert("x-rollway-turns", HeaderValue::from(turns));
            response
        }
        Err(error) => responses::error(&error),
    }
}
