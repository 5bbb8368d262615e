//! Asks a server, and another one if the first cannot be reached or fails before it has said
//! anything.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::HeaderValue;
use bytes::Bytes;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Response, StatusCode};
use rollway_model_api::server_api::server_api;
use rollway_model_api::{
    CallError, CallKind, ClientApi, ErrorKind, ModelCall, ResponseParseError, ResponseParser,
    UpstreamBody, openai_error,
};
use tokio_util::sync::CancellationToken;

use super::observed_call::ObservedCall;
use super::prompt_tokens::prompt_tokens;
use super::state::GatewayState;
use crate::models::{RouteNeeds, ServerId, ServerPermit};

/// The largest error of a server that is read.
const MAX_ERROR_BYTES: usize = 256 << 10;

/// How long a server may take to hear that a request is given up.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);

/// A call on its way to a server.
#[derive(Debug)]
pub(super) struct UpstreamRequest {
    pub(super) app: Arc<GatewayState>,
    pub(super) api: &'static dyn ClientApi,
    pub(super) call: ModelCall,
    /// What the client and the server know it by.
    pub(super) id: String,
    /// What it is routed by.
    pub(super) session: Option<u64>,
    /// Whether the answer is recorded, so that the prompt's tokens must be known.
    pub(super) is_recorded: bool,
    pub(super) deadline: tokio::time::Instant,
    /// Nobody wants the answer any more.
    pub(super) cancelled: CancellationToken,
    /// `traceparent` and `tracestate`, for servers that trace.
    pub(super) traces: Vec<(&'static str, HeaderValue)>,
    /// For whoever sees calls.
    pub(super) watched: ObservedCall,
}

/// A server that answers.
#[derive(Debug)]
pub(super) struct UpstreamResponse {
    pub(super) under_way: UpstreamGuard,
    pub(super) said: UpstreamReply,
    pub(super) reader: Box<dyn ResponseParser>,
    /// How long others took until now.
    pub(super) upstream: Duration,
}

/// What a server says.
#[derive(Debug)]
pub(super) enum UpstreamReply {
    Whole(Bytes),
    /// Events, as they come.
    Events(Response),
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub(super) enum UpstreamFailure {
    /// In the gateway's words.
    Ours(CallError),
    /// In the server's words, which are JSON.
    Theirs {
        status: u16,
        body: Bytes,
        /// After how many seconds another try makes sense.
        retry_after: Option<u32>,
    },
    /// The answer came but cannot be recorded.
    Unrecordable(ResponseParseError),
}

impl From<CallError> for UpstreamFailure {
    fn from(error: CallError) -> Self {
        Self::Ours(error)
    }
}

/// What became of a server's turn.
enum Trial {
    /// It answers, one way or the other.
    Done(Result<UpstreamResponse, UpstreamFailure>),
    /// Another may do better.
    Elsewhere(ServerId, UpstreamFailure),
}

impl UpstreamRequest {
    /// Waits for something, but not beyond the call's deadline or the end of its run.
    pub(super) async fn within<T>(&self, what: impl Future<Output = T>) -> Result<T, CallError> {
        tokio::select! {
            biased;
            () = self.cancelled.cancelled() => Err(self.gone()),
            outcome = tokio::time::timeout_at(self.deadline, what) => {
                outcome.map_err(|_| self.too_late())
            }
        }
    }

    /// The run is over, or the gateway stops.
    pub(super) fn gone(&self) -> CallError {
        if self.app.stopping.is_cancelled() {
            let message = "the gateway is stopping";
            CallError::new(ErrorKind::Unavailable, message)
        } else {
            let message = "the run is over: its attempt was closed while the call was under way";
            CallError::new(ErrorKind::Conflict, message)
        }
    }

    /// The call has taken longer than allowed.
    pub(super) fn too_late(&self) -> CallError {
        let limit = self.app.options.limits.call_timeout;
        let message = format!("the call was not answered within {limit:?}, which is the limit");
        CallError::new(ErrorKind::UpstreamTimeout, message)
    }

    /// Returns the first good answer.
    pub(super) async fn send(&self) -> Result<UpstreamResponse, UpstreamFailure> {
        let mut avoid = Vec::new();
        let mut last = None;
        let mut upstream = Duration::ZERO;
        loop {
            let began = Instant::now();
            let lease = match self.pick(&avoid).await {
                Ok(lease) => lease,
                // What went wrong before tells more than that there is nobody else.
                Err(error) => return Err(last.unwrap_or(UpstreamFailure::Ours(error))),
            };
            let trial = self.try_with(lease, avoid.len()).await?;
            upstream += began.elapsed();
            match trial {
                Trial::Done(outcome) => {
                    return outcome.map(|asked| UpstreamResponse { upstream, ..asked });
                }
                Trial::Elsewhere(server, failure) => {
                    if avoid.len() >= self.app.options.limits.max_retries as usize {
                        return Err(failure);
                    }
                    avoid.push(server);
                    last = Some(failure);
                    self.app.metrics.resent.inc();
                }
            }
        }
    }

    async fn pick(&self, avoid: &[ServerId]) -> Result<ServerPermit, CallError> {
        let wanted = RouteNeeds { model: self.call.model(), session: self.session, avoid };
        let _waiting = self.app.metrics.wait();
        self.within(self.app.models.pick(wanted)).await?
    }

    async fn try_with(
        &self,
        lease: ServerPermit,
        failures: usize,
    ) -> Result<Trial, UpstreamFailure> {
        let server = lease.server();
        let server_id = server.id;
        let api = server_api(server.spec.engine);
        // A server may still be busy with an earlier try, and must not take this for the same.
        let id = match failures {
            0 => self.id.clone(),
            failures => format!("{}-{failures}", self.id),
        };
        let outgoing = api.upstream_body(&self.call, lease.server_model(), &id);
        let name = self.call.model().unwrap_or(&server.spec.model);
        let mut reader = api.response_parser(&self.call, &self.id, name);
        self.watched.sent(&server.spec.url);
        let under_way = UpstreamGuard::new(self, lease, id);
        let lease = under_way.lease();
        let prompt = async {
            let is_needed = self.is_recorded;
            match is_needed.then(|| api.prompt_lookup(&self.call)).flatten() {
                Some(lookup) => prompt_tokens(lease.server(), lookup).await.map(Some),
                None => Ok(None),
            }
        };
        let both = async { tokio::join!(self.exchange(&under_way, &outgoing), prompt) };
        let (answer, prompt) = tokio::select! {
            biased;
            () = lease.aborted() => return Ok(Trial::Elsewhere(server_id, taken(lease).into())),
            both = self.within(both) => both?,
        };
        let said = match answer {
            Ok(said) => said,
            Err(trial) => {
                under_way.ended();
                return Ok(*trial);
            }
        };
        match prompt {
            Ok(Some(tokens)) => reader.set_prompt(tokens),
            Ok(None) => {}
            Err(misread) => return Ok(Trial::Done(Err(UpstreamFailure::Unrecordable(misread)))),
        }
        Ok(Trial::Done(Ok(UpstreamResponse { under_way, said, reader, upstream: Duration::ZERO })))
    }

    /// Sends the request; returns what the server says if it is an answer.
    async fn exchange(
        &self,
        at: &UpstreamGuard,
        outgoing: &UpstreamBody,
    ) -> Result<UpstreamReply, Box<Trial>> {
        let lease = at.lease();
        let server = lease.server().id;
        let elsewhere = |message: String| {
            let error = CallError::new(ErrorKind::Upstream, message);
            Box::new(Trial::Elsewhere(server, error.into()))
        };
        let unreached = |error: &reqwest::Error| {
            let why = rollway_base::error_chain(error);
            lease.unreachable(&why);
            elsewhere(format!("server {} could not be reached: {why}", server.0))
        };
        let response = self.post(at, outgoing).await.map_err(|error| unreached(&error))?;
        if !response.status().is_success() {
            return Err(Box::new(refused(lease, response).await));
        }
        if outgoing.stream {
            return Ok(UpstreamReply::Events(response));
        }
        let limit = self.app.options.limits.max_answer_bytes;
        match read(response, limit).await {
            Ok(body) => Ok(UpstreamReply::Whole(body)),
            // Nothing of it was passed on, so that another server can answer in its place.
            Err(Unread::Broken(error)) => Err(unreached(&error)),
            Err(Unread::TooLarge) => {
                let message = format!("the answer has more than {limit} bytes, which is the limit");
                let error = CallError::new(ErrorKind::Upstream, message);
                Err(Box::new(Trial::Done(Err(error.into()))))
            }
        }
    }

    async fn post(&self, at: &UpstreamGuard, outgoing: &UpstreamBody) -> reqwest::Result<Response> {
        let server = at.lease().server();
        let url = format!("{}{}", server.spec.url, outgoing.path);
        let accept = if outgoing.stream { "text/event-stream" } else { "application/json" };
        let mut request = server
            .client
            .post(url)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, accept)
            .header("x-request-id", &at.id);
        if let Some(key) = &server.spec.api_key {
            request = request.header(AUTHORIZATION, format!("Bearer {}", key.reveal()));
        }
        for (name, value) in &self.traces {
            request = request.header(*name, value);
        }
        request.body(outgoing.body.to_string()).send().await
    }
}

/// Understands an answer that is an error.
async fn refused(lease: &ServerPermit, response: Response) -> Trial {
    let server = lease.server().id;
    let status = response.status();
    let retry_after = response.headers().get(RETRY_AFTER);
    let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
    // An error that cannot be read is told without its words.
    let body = read(response, MAX_ERROR_BYTES).await.unwrap_or_default();
    let said: String = String::from_utf8_lossy(&body).chars().take(500).collect();
    tracing::debug!(server = server.0, %status, said, "a server refused a call");
    let ours = |kind, what: &str| {
        let mut error =
            CallError::new(kind, format!("server {} {what}: {status}: {said}", server.0));
        error.retry_after = retry_after;
        UpstreamFailure::Ours(error)
    };
    match status {
        StatusCode::SERVICE_UNAVAILABLE => {
            lease.went_wrong(&status.to_string());
            Trial::Elsewhere(server, ours(ErrorKind::Unavailable, "is not available"))
        }
        StatusCode::TOO_MANY_REQUESTS => {
            Trial::Elsewhere(server, ours(ErrorKind::TooMany, "has too much to do"))
        }
        _ if status.is_server_error() => {
            lease.went_wrong(&status.to_string());
            Trial::Elsewhere(server, ours(ErrorKind::Upstream, "failed"))
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            // It is the gateway's key that was refused, and not the client's.
            let what = "refuses the gateway (see the `api_key` of the server)";
            Trial::Done(Err(ours(ErrorKind::Upstream, what)))
        }
        _ if status.is_client_error() => {
            lease.went_well();
            let body = openai_error(&body).unwrap_or_else(|| {
                let message = format!("server {} refused the call: {said}", server.0);
                CallError::new(ErrorKind::InvalidRequest, message).body().to_string().into()
            });
            Trial::Done(Err(UpstreamFailure::Theirs { status: status.as_u16(), body, retry_after }))
        }
        _ => Trial::Done(Err(ours(ErrorKind::Upstream, "answered what it should not"))),
    }
}

/// A request must end because its server is updated or removed.
pub(super) fn taken(lease: &ServerPermit) -> CallError {
    let message = format!("the request was taken from server {}", lease.server().id.0);
    CallError::new(ErrorKind::Upstream, message)
}

/// Reads a body, and no more of it than allowed.
async fn read(mut response: Response, limit: usize) -> Result<Bytes, Unread> {
    let mut whole = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(Unread::Broken)? {
        if whole.len() + chunk.len() > limit {
            return Err(Unread::TooLarge);
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(whole.into())
}

enum Unread {
    Broken(reqwest::Error),
    TooLarge,
}

/// A request at a server. Dropped before it has ended, it is aborted there.
#[derive(Debug)]
pub(super) struct UpstreamGuard {
    app: Arc<GatewayState>,
    lease: Arc<ServerPermit>,
    kind: CallKind,
    id: String,
    has_ended: bool,
}

impl UpstreamGuard {
    fn new(question: &UpstreamRequest, lease: ServerPermit, id: String) -> Self {
        let (app, lease) = (Arc::clone(&question.app), Arc::new(lease));
        Self { app, lease, kind: question.call.kind, id, has_ended: false }
    }

    /// The place at the server.
    pub(super) fn lease(&self) -> &ServerPermit {
        &self.lease
    }

    /// The server has said its last word.
    pub(super) fn ended(mut self) {
        self.has_ended = true;
    }
}

impl Drop for UpstreamGuard {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        self.app.metrics.given_up.inc();
        // Every server ends a request whose connection is closed, but some only when they next
        // write to it. Those also take a word.
        let api = server_api(self.lease.server().spec.engine);
        let is_running = tokio::runtime::Handle::try_current().is_ok();
        if is_running && let Some(outgoing) = api.abort_body(self.kind, &self.id) {
            let lease = Arc::clone(&self.lease);
            self.app.tasks.spawn(async move { abort(&lease, &outgoing).await });
        }
    }
}

async fn abort(lease: &ServerPermit, outgoing: &UpstreamBody) {
    let server = lease.server();
    let request = server
        .client
        .post(format!("{}{}", server.spec.url, outgoing.path))
        .timeout(ABORT_TIMEOUT)
        .header(CONTENT_TYPE, "application/json")
        .body(outgoing.body.to_string());
    if let Err(error) = request.send().await.and_then(Response::error_for_status) {
        let why = rollway_base::error_chain(&error);
        tracing::debug!(server = server.id.0, why, "a request could not be aborted");
    }
}
