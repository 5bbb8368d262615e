//! The HTTP API of the synchronizer. All paths but `/health` need the job's secret.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, BodyDataStream};
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post, put};
use bytes::Bytes;
use futures_util::StreamExt as _;
use rollway_base::Secret;
use rollway_config::SyncMethod;
use rollway_core::sync::{HeartbeatReply, LeaveReason, MemberRole};
use rollway_net::JsonBody;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::error::SyncError;
use super::messages::{
    ServerFleet, TrainMetrics, TrainMetricsPage, TrainerProgress, WaitStatus, WeightLocation,
    WeightRequest, WeightWaitResult, seconds,
};
use super::options::SynchronizerOptions;
use super::store::WeightStore;
use super::sync_driver::SyncDriver;
use super::weight_folder::MODEL;

/// Maximum duration of a request; longer waits repeat it, so that both sides detect a lost peer.
pub(super) const LONG_POLL_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum size of a request without weights.
const MAX_MESSAGE: usize = 16 << 20;

/// Maximum number of metrics of a train step.
const MAX_METRICS: usize = 1_000;

/// Maximum size of weights: half a tebibyte.
const MAX_WEIGHTS: u64 = 512 << 30;

/// Chunks queued for writing.
const QUEUED_CHUNKS: usize = 16;

#[derive(Debug)]
pub(super) struct SyncServerShared {
    driver: Arc<SyncDriver>,
    store: Arc<WeightStore>,
    secret: Secret,
    about: JobIdentity,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JobIdentity {
    pub(super) job: String,
    pub(super) method: SyncMethod,
}

#[derive(Serialize, Deserialize)]
pub(super) struct JoinRequest {
    pub(super) role: String,
    pub(super) name: String,
}

#[derive(Serialize, Deserialize)]
pub(super) struct JoinReply {
    pub(super) member: u64,
    /// Heartbeat timeout in seconds.
    pub(super) heartbeat_timeout: f64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct MemberRef {
    pub(super) member: u64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct LeaveRequest {
    pub(super) member: u64,
    /// `done`, `failed` or `timed_out`.
    pub(super) reason: String,
    #[serde(default)]
    pub(super) message: String,
}

#[derive(Serialize, Deserialize)]
pub(super) struct TrainerStateRequest {
    pub(super) member: u64,
    pub(super) state: TrainerProgress,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Submitted {
    pub(super) explorer: String,
    pub(super) experiences: u64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct FleetReport {
    pub(super) explorer: String,
    pub(super) servers: ServerFleet,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Wait {
    #[serde(flatten)]
    pub(super) request: WeightRequest,
    /// Seconds waited before.
    #[serde(default)]
    pub(super) waited: f64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Since {
    #[serde(default)]
    pub(super) since: Option<WaitStatus>,
    pub(super) timeout: f64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct MetricsSince {
    pub(super) since: u64,
    pub(super) timeout: f64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Publish {
    pub(super) version: u64,
    pub(super) location: WeightLocation,
}

#[derive(Serialize, Deserialize)]
pub(super) struct SyncErrorBody {
    pub(super) error: String,
    /// `refused`, `weights` or `file`.
    pub(super) kind: String,
}

type Shares = State<Arc<SyncServerShared>>;
type Reply<T> = Result<JsonBody<T>, Response>;

impl SyncServerShared {
    pub(super) fn new(
        driver: Arc<SyncDriver>,
        store: Arc<WeightStore>,
        secret: Secret,
        options: &SynchronizerOptions,
    ) -> Arc<Self> {
        let about = JobIdentity { job: options.job.clone(), method: options.method };
        Arc::new(Self { driver, store, secret, about })
    }
}

pub(super) fn router(shared: Arc<SyncServerShared>) -> Router {
    Router::new()
        .route("/v1/job", get(about))
        .route("/v1/status", get(status))
        .route("/v1/join", post(join))
        .route("/v1/heartbeat", post(heartbeat))
        .route("/v1/leave", post(leave))
        .route("/v1/trainer", post(trainer))
        .route("/v1/submitted", post(submitted))
        .route("/v1/servers", post(servers))
        .route("/v1/wait", post(wait))
        .route("/v1/waits", post(wait_status))
        .route("/v1/explorers-left", post(explorers_left))
        .route("/v1/metrics", post(add_metrics))
        .route("/v1/metrics/read", post(metrics))
        .route("/v1/publish", post(publish))
        .route("/v1/weights/{version}", put(weights))
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), authenticate))
        .route("/health", get(async || "ok"))
        .layer(DefaultBodyLimit::max(MAX_MESSAGE))
        .with_state(shared)
}

/// Authenticates requests, and refuses them once the host ends.
async fn authenticate(State(shared): Shares, request: Request, next: Next) -> Response {
    let token = request.headers().get(header::AUTHORIZATION).and_then(|it| it.to_str().ok());
    let token = token.and_then(|it| it.strip_prefix("Bearer ")).map(Secret::new);
    if !matches!(token, Some(Ok(token)) if token == shared.secret) {
        let message = "invalid secret: send that of the job's synchronizer.json as bearer token";
        return refusal(StatusCode::UNAUTHORIZED, "refused", message);
    }
    if shared.driver.is_over() {
        return stopping();
    }
    next.run(request).await
}

fn refusal(status: StatusCode, kind: &str, message: &str) -> Response {
    let body = SyncErrorBody { error: message.to_owned(), kind: kind.to_owned() };
    (status, JsonBody(body)).into_response()
}

fn stopping() -> Response {
    refusal(StatusCode::SERVICE_UNAVAILABLE, "stopping", "this synchronizer is stopping")
}

fn refused(error: &SyncError) -> Response {
    let (status, kind) = match error {
        SyncError::Weights(_) => (StatusCode::UNPROCESSABLE_ENTITY, "weights"),
        SyncError::File { .. } => (StatusCode::INSUFFICIENT_STORAGE, "file"),
        SyncError::Address(_) | SyncError::Unreachable(_) | SyncError::Refused(_) => {
            (StatusCode::CONFLICT, "refused")
        }
    };
    refusal(status, kind, &error.to_string())
}

async fn about(State(shared): Shares) -> JsonBody<JobIdentity> {
    JsonBody(shared.about.clone())
}

async fn status(State(shared): Shares) -> Response {
    JsonBody(shared.driver.view()).into_response()
}

async fn join(State(shared): Shares, JsonBody(call): JsonBody<JoinRequest>) -> Reply<JoinReply> {
    let role = match call.role.as_str() {
        "explorer" => MemberRole::Explorer,
        "trainer" => MemberRole::Trainer,
        other => {
            let message = format!("role {other:?} is neither \"explorer\" nor \"trainer\"");
            return Err(refusal(StatusCode::BAD_REQUEST, "refused", &message));
        }
    };
    let joined = shared.store.join(role, &call.name);
    let (member, heartbeat_timeout) = joined.map_err(|error| refused(&error))?;
    Ok(JsonBody(JoinReply { member, heartbeat_timeout: heartbeat_timeout.as_secs_f64() }))
}

async fn heartbeat(
    State(shared): Shares,
    JsonBody(call): JsonBody<MemberRef>,
) -> JsonBody<&'static str> {
    JsonBody(match shared.driver.heartbeat(call.member) {
        HeartbeatReply::Known => "known",
        HeartbeatReply::Replaced => "replaced",
        HeartbeatReply::Unknown => "unknown",
    })
}

async fn leave(State(shared): Shares, JsonBody(call): JsonBody<LeaveRequest>) -> Reply<()> {
    let reason = match call.reason.as_str() {
        "done" => LeaveReason::Done,
        "failed" => LeaveReason::Failed(call.message),
        "timed_out" => LeaveReason::TimedOut,
        other => {
            let message = format!("{other:?} is none of \"done\", \"failed\", \"timed_out\"");
            return Err(refusal(StatusCode::BAD_REQUEST, "refused", &message));
        }
    };
    shared.store.leave(call.member, &reason).await;
    Ok(JsonBody(()))
}

async fn trainer(
    State(shared): Shares,
    JsonBody(call): JsonBody<TrainerStateRequest>,
) -> JsonBody<bool> {
    JsonBody(shared.store.trainer(call.member, call.state).await)
}

async fn submitted(State(shared): Shares, JsonBody(call): JsonBody<Submitted>) -> JsonBody<u64> {
    JsonBody(shared.driver.submitted(&call.explorer, call.experiences))
}

async fn servers(State(shared): Shares, JsonBody(call): JsonBody<FleetReport>) -> JsonBody<()> {
    shared.driver.set_fleet(&call.explorer, call.servers);
    JsonBody(())
}

async fn add_metrics(State(shared): Shares, JsonBody(report): JsonBody<TrainMetrics>) -> Reply<()> {
    if report.metrics.len() > MAX_METRICS {
        let count = report.metrics.len();
        let message = format!("{count} metrics of step {}: at most {MAX_METRICS}", report.step);
        return Err(refusal(StatusCode::BAD_REQUEST, "refused", &message));
    }
    shared.driver.add_metrics(report);
    Ok(JsonBody(()))
}

async fn metrics(
    State(shared): Shares,
    JsonBody(call): JsonBody<MetricsSince>,
) -> Reply<TrainMetricsPage> {
    let timeout = seconds(call.timeout).min(LONG_POLL_TIMEOUT);
    shared.driver.metrics(call.since, timeout).await.map(JsonBody).ok_or_else(stopping)
}

/// `null`: the request must be repeated.
async fn wait(
    State(shared): Shares,
    JsonBody(call): JsonBody<Wait>,
) -> Reply<Option<WeightWaitResult>> {
    let waiting = shared.driver.wait(call.request, seconds(call.waited));
    match tokio::time::timeout(LONG_POLL_TIMEOUT, waiting).await {
        Err(_) => Ok(JsonBody(None)),
        Ok(Some(waited)) => Ok(JsonBody(Some(waited))),
        Ok(None) => Err(stopping()),
    }
}

async fn wait_status(State(shared): Shares, JsonBody(call): JsonBody<Since>) -> Reply<WaitStatus> {
    let timeout = seconds(call.timeout).min(LONG_POLL_TIMEOUT);
    shared.driver.wait_status(call.since, timeout).await.map(JsonBody).ok_or_else(stopping)
}

async fn explorers_left(State(shared): Shares, JsonBody(call): JsonBody<Since>) -> Reply<bool> {
    let timeout = seconds(call.timeout).min(LONG_POLL_TIMEOUT);
    shared.driver.explorers_left(timeout).await.map(JsonBody).ok_or_else(stopping)
}

async fn publish(State(shared): Shares, JsonBody(call): JsonBody<Publish>) -> Reply<()> {
    let published = shared.store.publish(call.version, call.location.into()).await;
    published.map(JsonBody).map_err(|error| refused(&error))
}

/// Receives the content of a safetensors file.
async fn weights(State(shared): Shares, Path(version): Path<u64>, body: Body) -> Reply<()> {
    let store = &shared.store;
    let taken = async {
        let _turn = store.turn().await;
        let mut body = body.into_data_stream();
        let draft = match store.begin(version).await {
            Ok(draft) => draft,
            Err(error) => {
                // The client does not read the response before it has sent everything.
                receive(&mut body, None).await?;
                return Err(error);
            }
        };
        write(&mut body, draft.path().join(MODEL)).await?;
        store.finish(draft, version).await
    };
    taken.await.map(JsonBody).map_err(|error| refused(&error))
}

async fn write(body: &mut BodyDataStream, path: PathBuf) -> Result<(), SyncError> {
    let (chunks, mut written) = mpsc::channel::<Bytes>(QUEUED_CHUNKS);
    let at = path.clone();
    let writing = tokio::task::spawn_blocking(move || {
        let mut file = File::create(&at)?;
        while let Some(chunk) = written.blocking_recv() {
            file.write_all(&chunk)?;
        }
        file.sync_all()
    });
    receive(body, Some(chunks)).await?;
    let written = writing.await.unwrap_or_else(|error| Err(io::Error::other(error)));
    written.map_err(|error| SyncError::file(&path, &error))
}

/// Receives all chunks; passes them on while the receiver is open.
async fn receive(
    body: &mut BodyDataStream,
    mut chunks: Option<mpsc::Sender<Bytes>>,
) -> Result<(), SyncError> {
    let mut size = 0u64;
    let torn = |reason: String| SyncError::Weights(format!("the weights are incomplete: {reason}"));
    loop {
        // The listener limits the time between two chunks.
        let Some(chunk) = body.next().await else { return Ok(()) };
        let chunk = chunk.map_err(|error| torn(error.to_string()))?;
        size += chunk.len() as u64;
        if size > MAX_WEIGHTS {
            return Err(torn(format!("more than {MAX_WEIGHTS} bytes, which is the limit")));
        }
        if let Some(taker) = &chunks
            && taker.send(chunk).await.is_err()
        {
            chunks = None;
        }
    }
}
