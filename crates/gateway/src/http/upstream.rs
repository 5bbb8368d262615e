//! Upstream requests: sends a call to a server, and to another one if the first is unreachable or
//! fails before its first byte.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::HeaderValue;
use bytes::Bytes;
use reqwest::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Response, StatusCode};
use rollway_base::ServerKind;
use rollway_model_api::server_api::{RecordedPrefix, server_api};
use rollway_model_api::{
    CallError, CallKind, ClientApi, ErrorKind, ModelCall, ResponseParseError, ResponseParser,
    UpstreamBody, openai_error,
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::byte_budget::ByteLease;
use super::observed_call::ObservedCall;
use super::server_reply::{ReadFailure, ServerLookups};
use super::state::GatewayState;
use crate::keys::RunRef;
use crate::models::{
    RouteNeeds, ServerId, ServerPermit, failure_reason, lacks_descriptors, read_limited,
};

pub(super) const MAX_ERROR_BYTES: usize = 256 << 10;

const ABORT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct UpstreamRequest {
    pub(super) app: Arc<GatewayState>,
    pub(super) api: &'static dyn ClientApi,
    pub(super) call: ModelCall,
    /// Id for the client and the server.
    pub(super) id: String,
    /// Routing key.
    pub(super) session: Option<u64>,
    /// True if the response is recorded, so that the prompt's tokens are needed.
    pub(super) is_recorded: bool,
    pub(super) deadline: tokio::time::Instant,
    /// The run is closed, or the gateway stops.
    pub(super) cancelled: CancellationToken,
    /// `traceparent` and `tracestate`.
    pub(super) traces: Vec<(&'static str, HeaderValue)>,
    pub(super) observed: ObservedCall,
    /// The recorded turn that the call continues.
    pub(super) prefix: Option<RecordedPrefix>,
    /// The run, whose responses share a limit of their memory.
    pub(super) run: Option<RunRef>,
}

#[derive(Debug)]
pub(super) struct UpstreamResponse {
    pub(super) guard: UpstreamGuard,
    pub(super) reply: UpstreamReply,
    pub(super) parser: Box<dyn ResponseParser>,
    /// Memory of the response.
    pub(super) lease: ByteLease,
    /// Time that the servers took so far.
    pub(super) upstream: Duration,
}

#[derive(Debug)]
pub(super) enum UpstreamReply {
    Full(Bytes),
    Events(Response),
}

#[derive(Clone, Debug)]
pub(super) enum UpstreamFailure {
    /// An error of the gateway.
    Ours(CallError),
    /// An error of the server, as JSON.
    Theirs { status: u16, body: Bytes, retry_after: Option<u32> },
    /// The response arrived but cannot be recorded.
    Unrecordable(ResponseParseError),
}

impl UpstreamFailure {
    /// Returns whether the servers are the cause, not the request.
    pub(super) const fn is_of_server(&self) -> bool {
        match self {
            Self::Ours(error) => matches!(
                error.kind,
                ErrorKind::Upstream | ErrorKind::Unavailable | ErrorKind::UpstreamTimeout
            ),
            Self::Theirs { status, .. } => *status >= 500 || *status == 429,
            Self::Unrecordable(_) => true,
        }
    }
}

impl From<CallError> for UpstreamFailure {
    fn from(error: CallError) -> Self {
        Self::Ours(error)
    }
}

/// Failure of one server.
pub(super) struct ServerFailure {
    failure: UpstreamFailure,
    /// True if another server may succeed.
    may_retry: bool,
}

impl ServerFailure {
    fn retryable(failure: impl Into<UpstreamFailure>) -> Self {
        Self { failure: failure.into(), may_retry: true }
    }
}

impl<T: Into<UpstreamFailure>> From<T> for ServerFailure {
    fn from(failure: T) -> Self {
        Self { failure: failure.into(), may_retry: false }
    }
}

impl UpstreamRequest {
    /// Waits within the deadline of the call and the lifetime of its run.
    pub(super) async fn within<T>(&self, future: impl Future<Output = T>) -> Result<T, CallError> {
        tokio::select! {
            biased;
            () = self.cancelled.cancelled() => Err(self.cancelled_error()),
            outcome = tokio::time::timeout_at(self.deadline, future) => {
                outcome.map_err(|_| self.timeout_error())
            }
        }
    }

    pub(super) fn cancelled_error(&self) -> CallError {
        if self.app.stopping.is_cancelled() {
            let message = "the gateway is stopping";
            CallError::new(ErrorKind::Unavailable, message)
        } else {
            let message = "the attempt of the run was closed during the call";
            CallError::new(ErrorKind::Conflict, message)
        }
    }

    pub(super) fn timeout_error(&self) -> CallError {
        let limit = self.app.options.limits.call_timeout;
        let message = format!("the call exceeded the timeout of {limit:?}");
        CallError::new(ErrorKind::UpstreamTimeout, message)
    }

    /// Returns the first response of a server that does not fail.
    pub(super) async fn send(&self) -> Result<UpstreamResponse, UpstreamFailure> {
        let mut avoid = Vec::new();
        let mut last = None;
        let mut upstream = Duration::ZERO;
        loop {
            let began = Instant::now();
            let permit = match self.pick(&avoid).await {
                Ok(permit) => permit,
                // The earlier failure tells more than the lack of another server.
                Err(error) => return Err(last.unwrap_or(UpstreamFailure::Ours(error))),
            };
            let server = permit.server().id;
            let outcome = self.try_with(permit, avoid.len()).await;
            upstream += began.elapsed();
            match outcome {
                Ok(response) => return Ok(UpstreamResponse { upstream, ..response }),
                Err(ServerFailure { failure, may_retry }) => {
                    if !may_retry || avoid.len() >= self.app.options.limits.max_retries as usize {
                        return Err(failure);
                    }
                    avoid.push(server);
                    last = Some(failure);
                    self.app.metrics.values.resent.inc();
                }
            }
        }
    }

    async fn pick(&self, avoid: &[ServerId]) -> Result<ServerPermit, CallError> {
        let needs = RouteNeeds { model: self.call.model(), session: self.session, avoid };
        let _waiting = self.app.metrics.wait();
        self.within(self.app.models.pick(needs)).await?
    }

    async fn try_with(
        &self,
        permit: ServerPermit,
        failures: usize,
    ) -> Result<UpstreamResponse, ServerFailure> {
        let server = permit.server();
        // Fields that return generated tokens have no meaning in a call that generates none.
        let kind = if self.call.only_scores() { ServerKind::Openai } else { server.spec.engine };
        let api = server_api(kind);
        // The server may still execute an earlier try, and must not mistake this one for it.
        let id = match failures {
            0 => self.id.clone(),
            failures => format!("{}-{failures}", self.id),
        };
        let body = api.upstream_body(&self.call, permit.server_model(), &id);
        let name = self.call.model().unwrap_or(&server.spec.model);
        let mut parser = api.response_parser(&self.call, &self.id, name);
        self.observed.sent(&server.spec.url);
        let guard = UpstreamGuard::new(self, permit, id);
        let permit = guard.permit();
        let prompt = async {
            match self.is_recorded.then(|| api.prompt_lookup(&self.call)).flatten() {
                Some(lookup) => {
                    let (app, server) = (&*self.app, permit.server());
                    let lookups = ServerLookups { app, server, run: self.run, by: self.deadline };
                    Box::pin(lookups.prompt_tokens(lookup)).await.map(Some)
                }
                None => Ok(None),
            }
        };
        let mut lease = self.app.responses.lease(self.run);
        let reply = async {
            match self.send_exact(&guard, &mut lease).await {
                Some(reply) => reply,
                None => self.exchange(&guard, &body, &mut lease).await,
            }
        };
        let both = async { tokio::join!(reply, prompt) };
        let (reply, prompt) = tokio::select! {
            biased;
            () = permit.aborted() => {
                return Err(ServerFailure::retryable(server_withdrawn(permit)));
            }
            both = self.within(both) => both?,
        };
        let reply = match reply {
            Ok(reply) => reply,
            Err(failure) => {
                guard.ended();
                return Err(failure);
            }
        };
        if let Some(tokens) = prompt.map_err(UpstreamFailure::from)? {
            parser.set_prompt(tokens);
        }
        Ok(UpstreamResponse { guard, reply, parser, lease, upstream: Duration::ZERO })
    }

    /// Sends a request, and reads the response unless it is a stream.
    pub(super) async fn exchange(
        &self,
        at: &UpstreamGuard,
        body: &UpstreamBody,
        lease: &mut ByteLease,
    ) -> Result<UpstreamReply, ServerFailure> {
        let permit = at.permit();
        let unreached = |error: reqwest::Error| {
            if lacks_descriptors(&error) {
                return out_of_descriptors().into();
            }
            let reason = failure_reason(error);
            permit.unreachable(&reason);
            let server = permit.server().id.0;
            let message = format!("server {server} could not be reached: {reason}");
            ServerFailure::retryable(CallError::new(ErrorKind::Upstream, message))
        };
        let response = self.post(at, body).await.map_err(unreached)?;
        if !response.status().is_success() {
            return Err(refused(permit, response).await);
        }
        if body.stream {
            return Ok(UpstreamReply::Events(response));
        }
        match self.read(at, response, lease).await {
            Ok(body) => Ok(UpstreamReply::Full(body)),
            // Nothing was forwarded yet, so that another server can answer.
            Err(ReadFailure::Broken(error)) => Err(unreached(error)),
            Err(ReadFailure::Refused(error)) => Err(error.into()),
        }
    }

    /// Reads a full response.
    async fn read(
        &self,
        at: &UpstreamGuard,
        response: Response,
        lease: &mut ByteLease,
    ) -> Result<Bytes, ReadFailure> {
        let (app, by) = (&self.app, self.deadline);
        let body = app.read_response(response, lease, by).await?;
        if server_api(at.permit().server().spec.engine).parses_values() {
            app.lease_values(&body, lease, by).await?;
        }
        // As received, and as parsed and rendered for the client.
        self.lease_response(lease, 2 * body.len()).await?;
        Ok(body)
    }

    /// Reserves memory for a response. The server waits meanwhile.
    pub(super) async fn lease_response(
        &self,
        lease: &mut ByteLease,
        bytes: usize,
    ) -> Result<(), CallError> {
        self.app.lease_response(lease, bytes as u64, self.deadline).await
    }

    async fn post(&self, at: &UpstreamGuard, body: &UpstreamBody) -> reqwest::Result<Response> {
        let server = at.permit().server();
        let url = format!("{}{}", server.spec.url, body.path);
        let accept = if body.stream { "text/event-stream" } else { "application/json" };
        let mut request = server
            .client
            .post(url)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, accept)
            .header("x-request-id", &at.id);
        for (name, value) in &self.traces {
            request = request.header(*name, value);
        }
        request.body(json_bytes(&body.body)).send().await
    }
}

/// The gateway cannot connect to any server; none of them is the cause.
fn out_of_descriptors() -> CallError {
    let message = "the gateway has no more file descriptors for a connection to a server: raise \
                   the hard limit of open files (`ulimit -Hn`), or make fewer calls at a time";
    CallError::new(ErrorKind::Unavailable, message).retry_after(1)
}

/// Serializes a value. Several times faster than its `Display`.
fn json_bytes(value: &Value) -> Vec<u8> {
    // The keys of a value are strings and writing to memory cannot fail.
    serde_json::to_vec(value).unwrap_or_default()
}

/// Interprets an error response.
async fn refused(permit: &ServerPermit, response: Response) -> ServerFailure {
    let server = permit.server().id;
    let status = response.status();
    let retry_after = response.headers().get(RETRY_AFTER);
    let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
    // An unreadable error is reported without its text.
    let body = read_limited(response, MAX_ERROR_BYTES).await.unwrap_or_default();
    let reply: String = String::from_utf8_lossy(&body).chars().take(500).collect();
    tracing::debug!(server = server.0, %status, reply, "server refused a call");
    let gateway_error = |kind, problem: &str| {
        let mut error =
            CallError::new(kind, format!("server {} {problem}: {status}: {reply}", server.0));
        error.retry_after = retry_after;
        error
    };
    match status {
        StatusCode::SERVICE_UNAVAILABLE => {
            permit.record_failure(&status.to_string());
            ServerFailure::retryable(gateway_error(ErrorKind::Unavailable, "is not available"))
        }
        StatusCode::TOO_MANY_REQUESTS => {
            ServerFailure::retryable(gateway_error(ErrorKind::TooMany, "is overloaded"))
        }
        _ if status.is_server_error() => {
            permit.record_failure(&status.to_string());
            ServerFailure::retryable(gateway_error(ErrorKind::Upstream, "failed"))
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            // The gateway's key was refused, not the client's.
            let problem = "refuses the key of the gateway (see the `api_key` of the server)";
            gateway_error(ErrorKind::Upstream, problem).into()
        }
        _ if status.is_client_error() => {
            permit.record_success();
            let body = openai_error(&body).unwrap_or_else(|| {
                let message = format!("server {} refused the call: {reply}", server.0);
                CallError::new(ErrorKind::InvalidRequest, message).body().to_string().into()
            });
            UpstreamFailure::Theirs { status: status.as_u16(), body, retry_after }.into()
        }
        _ => gateway_error(ErrorKind::Upstream, "sent an unexpected status").into(),
    }
}

/// A request must end because its server is updated or removed.
pub(super) fn server_withdrawn(permit: &ServerPermit) -> CallError {
    let message = format!("server {} was withdrawn during the request", permit.server().id.0);
    CallError::new(ErrorKind::Upstream, message)
}

/// A request at a server. Dropping it before [`Self::ended`] aborts it there.
#[derive(Debug)]
pub(super) struct UpstreamGuard {
    app: Arc<GatewayState>,
    permit: Arc<ServerPermit>,
    kind: CallKind,
    pub(super) id: String,
    has_ended: bool,
}

impl UpstreamGuard {
    fn new(request: &UpstreamRequest, permit: ServerPermit, id: String) -> Self {
        let (app, permit) = (Arc::clone(&request.app), Arc::new(permit));
        Self { app, permit, kind: request.call.kind, id, has_ended: false }
    }

    pub(super) fn permit(&self) -> &ServerPermit {
        &self.permit
    }

    /// Returns the permit for use after the request was ended.
    pub(super) fn shared_permit(&self) -> Arc<ServerPermit> {
        Arc::clone(&self.permit)
    }

    pub(super) fn ended(mut self) {
        self.has_ended = true;
    }
}

impl Drop for UpstreamGuard {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        self.app.metrics.values.given_up.inc();
        // Servers abort a request whose connection is closed, some only at their next write. Those
        // have an endpoint for it.
        let api = server_api(self.permit.server().spec.engine);
        let is_running = tokio::runtime::Handle::try_current().is_ok();
        if is_running && let Some(body) = api.abort_body(self.kind, &self.id) {
            let permit = Arc::clone(&self.permit);
            self.app.tasks.spawn(async move { abort(&permit, &body).await });
        }
    }
}

async fn abort(permit: &ServerPermit, body: &UpstreamBody) {
    let server = permit.server();
    let request = server
        .client
        .post(format!("{}{}", server.spec.url, body.path))
        .timeout(ABORT_TIMEOUT)
        .header(CONTENT_TYPE, "application/json")
        .body(body.body.to_string());
    if let Err(error) = request.send().await.and_then(Response::error_for_status) {
        let reason = failure_reason(error);
        tracing::debug!(server = server.id.0, reason, "cannot abort a request");
    }
}
