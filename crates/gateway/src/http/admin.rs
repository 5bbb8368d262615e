//! Models and their servers: the list for clients, and administration.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use rollway_base::{Secret, ServerKind};
use rollway_model_api::server_api::ControlEndpoint;
use rollway_model_api::{CallError, ErrorKind};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, de};
use serde_json::{Value, json};

use super::responses::HandlerResult;
use super::state::GatewayState;
use super::{request_body, responses};
use crate::keys::Caller;
use crate::models::{
    InFlightPolicy, ModelView, ServerId, ServerSpec, ServerUpdateOutcome, ServerView, WeightSource,
    WeightUpdate, WeightUpdateReport,
};

/// Maximum of the durations in requests: a day.
const MAX_SECONDS: f64 = 86_400.0;

/// `GET /v1/models`.
pub(super) async fn list_names(State(app): State<Arc<GatewayState>>) -> Response {
    let models: Vec<_> = app.models.view().iter().map(name_of).collect();
    responses::value(&json!({ "object": "list", "data": models }))
}

/// `GET /v1/models/{id}`.
pub(super) async fn one_name(
    State(app): State<Arc<GatewayState>>,
    id: Result<Path<String>, PathRejection>,
) -> HandlerResult {
    let Path(id) = id.map_err(|error| unknown(&error.to_string()))?;
    let models = app.models.view();
    let Some(model) = models.iter().find(|model| model.name == id) else {
        let known: Vec<_> = models.iter().map(|model| model.name.as_str()).collect();
        let message = format!("unknown model; known models: {}", known.join(", "));
        return Err(unknown(&message).into());
    };
    Ok(responses::value(&name_of(model)))
}

fn unknown(message: &str) -> CallError {
    CallError::new(ErrorKind::NotFound, message).at("model")
}

fn name_of(model: &ModelView) -> Value {
    json!({ "id": model.name, "object": "model", "created": 0, "owned_by": "rollway" })
}

/// `GET /rollway/v1/models`.
pub(super) async fn list(State(app): State<Arc<GatewayState>>) -> Response {
    let models: Vec<_> = app
        .models
        .view()
        .iter()
        .map(|model| {
            json!({
                "name": model.name,
                "trained": model.trained,
                "waiting": model.waiting,
                "servers": model.servers.iter().map(server).collect::<Vec<_>>(),
            })
        })
        .collect();
    responses::value(&json!({ "models": models }))
}

fn server(server: &ServerView) -> Value {
    json!({
        "id": server.id.0,
        "engine": server.engine.name(),
        "url": server.url,
        "server_model": server.server_model,
        "state": server.state.name(),
        "reason": server.state.to_string(),
        "in_flight": server.in_flight,
        "version": server.version,
        "loaded_version": server.loaded,
        "reports_version": server.capabilities.reports_version(),
        "missing": server.capabilities.missing().iter().map(missing).collect::<Vec<_>>(),
        "limit": server.limit,
        "load": server.load.map(|load| json!({
            "running": load.running,
            "waiting": load.waiting,
            "cache_usage": load.cache_usage,
            "preemptions": load.preemptions,
        })),
        "failures": server.failures,
        "last_seen_seconds": server.last_seen.map(|seen| seen.as_secs_f64()),
        "requests": server.counts.requests,
        "failed_requests": server.counts.failed_requests,
        "updates": server.counts.updates,
        "failed_updates": server.counts.failed_updates,
        "restarts": server.counts.restarts,
        "failed_restarts": server.counts.failed_restarts,
    })
}

fn missing(endpoint: &ControlEndpoint) -> Value {
    json!({
        "endpoint": endpoint.path,
        "consequence": endpoint.purpose.consequence(),
        "provided_by": endpoint.provided_by,
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewServer {
    model: String,
    #[serde(default)]
    trained: bool,
    #[serde(deserialize_with = "server_kind")]
    engine: ServerKind,
    url: String,
    api_key: Option<String>,
    server_model: Option<String>,
}

fn server_kind<'de, D: Deserializer<'de>>(from: D) -> Result<ServerKind, D::Error> {
    let name = String::deserialize(from)?;
    name.parse().map_err(de::Error::custom)
}

/// `POST /rollway/v1/models`.
pub(super) async fn add(State(app): State<Arc<GatewayState>>, request: Request) -> HandlerResult {
    let new: NewServer = read(&app, request).await?;
    let api_key = new.api_key.map(Secret::new).transpose();
    let ServerId(id) = app.models.add(ServerSpec {
        model: new.model,
        trained: new.trained,
        engine: new.engine,
        url: new.url,
        api_key: api_key.map_err(|error| invalid("api_key", &error))?,
        server_model: new.server_model,
    })?;
    Ok(responses::json(StatusCode::CREATED, json!({ "id": id }).to_string()))
}

async fn read<T: DeserializeOwned>(app: &GatewayState, request: Request) -> Result<T, CallError> {
    let body = request_body::json(app, Caller::Admin, request).await?;
    serde_json::from_slice(&body.json).map_err(|error| {
        CallError::new(ErrorKind::InvalidRequest, format!("invalid body: {error}"))
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Removal {
    #[serde(default = "default_deadline")]
    deadline_seconds: f64,
}

fn default_deadline() -> f64 {
    30.0
}

/// `DELETE /rollway/v1/models/{id}`.
pub(super) async fn remove(
    State(app): State<Arc<GatewayState>>,
    id: Result<Path<u64>, PathRejection>,
    query: Result<Query<Removal>, QueryRejection>,
) -> HandlerResult {
    let id = server_id(id)?;
    let Query(removal) = query.map_err(|error| invalid("deadline_seconds", &error))?;
    let deadline = seconds("deadline_seconds", removal.deadline_seconds)?;
    let removed = app.models.remove(id, deadline).await?;
    Ok(responses::value(&json!({ "aborted": removed.aborted })))
}

/// `POST /rollway/v1/models/{id}/restart`.
pub(super) async fn restart(
    State(app): State<Arc<GatewayState>>,
    id: Result<Path<u64>, PathRejection>,
) -> HandlerResult {
    app.models.restart(server_id(id)?)?;
    Ok(responses::json(StatusCode::ACCEPTED, json!({}).to_string()))
}

fn server_id(id: Result<Path<u64>, PathRejection>) -> Result<ServerId, CallError> {
    let Path(id) = id.map_err(|_| {
        CallError::new(ErrorKind::NotFound, "the id of a server must be a number").at("id")
    })?;
    Ok(ServerId(id))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WeightsRequest {
    version: u64,
    path: String,
    #[serde(default)]
    in_flight: Treatment,
    /// Timeout of loading the weights into one server.
    #[serde(default = "default_timeout")]
    timeout_seconds: f64,
    /// With `drain`: timeout of requests in flight.
    #[serde(default = "default_timeout")]
    drain_seconds: f64,
    /// With `drain`: whether requests are aborted after the timeout. Otherwise the server keeps its
    /// weights.
    #[serde(default)]
    then_abort: bool,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Treatment {
    #[default]
    Drain,
    Keep,
    Abort,
}

fn default_timeout() -> f64 {
    600.0
}

/// `POST /rollway/v1/models/update`.
pub(super) async fn update(
    State(app): State<Arc<GatewayState>>,
    request: Request,
) -> HandlerResult {
    let new: WeightsRequest = read(&app, request).await?;
    let in_flight = match new.in_flight {
        Treatment::Drain => InFlightPolicy::Drain {
            timeout: seconds("drain_seconds", new.drain_seconds)?,
            then_abort: new.then_abort,
        },
        Treatment::Keep => InFlightPolicy::Keep,
        Treatment::Abort => InFlightPolicy::Abort,
    };
    let timeout = seconds("timeout_seconds", new.timeout_seconds)?;
    let weights = WeightSource::Path(new.path.into());
    let update = WeightUpdate { version: new.version, weights, in_flight, timeout };
    Ok(responses::value(&report(&app.models.update(update).await)))
}

fn report(report: &WeightUpdateReport) -> Value {
    let servers: Vec<_> = report
        .servers
        .iter()
        .map(|server| {
            let (outcome, reason) = match &server.outcome {
                ServerUpdateOutcome::Updated => ("updated", None),
                ServerUpdateOutcome::AlreadyCurrent => ("already_current", None),
                ServerUpdateOutcome::RolledBack(reason) => ("rolled_back", Some(reason)),
                ServerUpdateOutcome::Broken(reason) => ("broken", Some(reason)),
                ServerUpdateOutcome::Skipped(reason) => ("skipped", Some(reason)),
            };
            json!({
                "id": server.id.0,
                "url": server.url,
                "outcome": outcome,
                "reason": reason,
                "seconds": server.took.as_secs_f64(),
                "in_flight": server.in_flight,
                "aborted": server.aborted,
            })
        })
        .collect();
    json!({
        "version": report.version,
        "complete": report.is_complete(),
        "superseded_by": report.superseded_by,
        "servers": servers,
    })
}

/// Returns a duration. The sum of a much longer one and the current time would overflow.
fn seconds(name: &str, seconds: f64) -> Result<Duration, CallError> {
    if seconds > MAX_SECONDS {
        let reason = format!("{seconds} is more than the maximum of {MAX_SECONDS}");
        return Err(invalid(name, &reason));
    }
    Duration::try_from_secs_f64(seconds).map_err(|error| invalid(name, &error))
}

fn invalid(name: &str, reason: &dyn Display) -> CallError {
    CallError::new(ErrorKind::InvalidRequest, format!("{name}: {reason}")).at(name)
}
