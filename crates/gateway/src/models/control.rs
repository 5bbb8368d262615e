//! Control requests to servers: health, name of the model, version of the weights, weight updates,
//! aborts. The requests of each kind of server come from its `ServerApi`.

use std::error::Error as _;
use std::io;
use std::time::Duration;

use reqwest::{Method, StatusCode};
use rollway_base::ServerKind;
use rollway_model_api::server_api::{ControlStep, PauseMode, WeightControl, server_api};
use serde_json::Value;

use super::RegisteredServer;
use rollway_core::sync::TransferGroup;

/// The largest answer to any of these questions.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// What went wrong between the server and us.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(super) struct ControlError {
    pub(super) kind: FailureExtent,
    pub(super) message: String,
}

/// How much is known after something went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureExtent {
    /// Nobody listens there: nothing was done.
    Gone,
    /// The server does not want to, or does not know how: nothing was done.
    Refused,
    /// It failed, or did not answer in time: nobody knows what was done.
    Failed,
}

impl ControlError {
    fn new(kind: FailureExtent, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// Checks that a server is healthy.
pub(super) async fn check(
    server: &RegisteredServer,
    timeout: Duration,
) -> Result<(), ControlError> {
    let path = server_api(server.spec.engine).health_path();
    request(server, Method::GET, path, None, timeout).await.map(|_| ())
}

/// What a server calls its model, and where it says that it has it from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServedName {
    pub(super) name: String,
    pub(super) root: Option<String>,
}

/// Asks for the name that the server knows its model by.
pub(super) async fn model_name(
    server: &RegisteredServer,
    timeout: Duration,
) -> Result<ServedName, ControlError> {
    let known = server.spec.server_model.as_deref();
    let answer = match request(server, Method::GET, "/v1/models", None, timeout).await {
        Err(_) if known.is_some() => Value::Null,
        answer => answer?,
    };
    let models = answer.get("data").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let id = |model: &Value| model.get("id").and_then(Value::as_str).map(str::to_owned);
    let model = match known {
        Some(known) => models.iter().find(|model| id(model).as_deref() == Some(known)),
        None => models.first(),
    };
    let Some(name) = known.map(str::to_owned).or_else(|| model.and_then(id)) else {
        let message = "its /v1/models names no model: set `server_model`";
        return Err(ControlError::new(FailureExtent::Failed, message));
    };
    let root = model.and_then(|model| model.get("root")).and_then(Value::as_str);
    Ok(ServedName { name, root: root.map(str::to_owned) })
}

/// Returns the version of the server's weights; none if the server does not report it.
pub(super) async fn version(
    server: &RegisteredServer,
    timeout: Duration,
) -> Result<Option<u64>, ControlError> {
    let api = server_api(server.spec.engine);
    for path in api.version_paths() {
        match request(server, Method::GET, path, None, timeout).await {
            Ok(reply) => {
                if let Some(name) = api.version_name(&reply) {
                    return parse_version(name).map(Some);
                }
            }
            Err(error) if error.kind == FailureExtent::Refused => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Returns the reason why servers of a kind cannot be given other weights, if so.
pub(super) fn cannot_update(kind: ServerKind) -> Option<&'static str> {
    server_api(kind).weight_control().err()
}

fn weight_control(server: &RegisteredServer) -> Result<&'static dyn WeightControl, ControlError> {
    let control = server_api(server.spec.engine).weight_control();
    control.map_err(|reason| ControlError::new(FailureExtent::Refused, reason))
}

/// Pauses a server. After the return it generates nothing.
pub(super) async fn halt(
    server: &RegisteredServer,
    mode: PauseMode,
    timeout: Duration,
) -> Result<(), ControlError> {
    execute(server, weight_control(server)?.pause(mode), timeout).await
}

/// Resumes a paused server.
pub(super) async fn resume(
    server: &RegisteredServer,
    mode: PauseMode,
    timeout: Duration,
) -> Result<(), ControlError> {
    execute(server, weight_control(server)?.resume(mode), timeout).await
}

/// Loads weights from a directory into a paused server, and sets their version.
pub(super) async fn load(
    server: &RegisteredServer,
    path: &str,
    version: u64,
    timeout: Duration,
) -> Result<(), ControlError> {
    execute(server, weight_control(server)?.load(path, version), timeout).await
}

/// Receives weights over a group into a paused server, which is the `index`th of the group, and
/// sets their version.
pub(super) async fn receive(
    server: &RegisteredServer,
    group: &TransferGroup,
    version: u64,
    index: u32,
    timeout: Duration,
) -> Result<(), ControlError> {
    let rank = 1 + index * group.ranks_per_server;
    execute(server, weight_control(server)?.receive(group, version, rank), timeout).await
}

/// Aborts a request. Servers without an endpoint for it end it when its connection is closed.
pub(super) async fn abort(
    server: &RegisteredServer,
    request_id: &str,
    timeout: Duration,
) -> Result<(), ControlError> {
    let steps = server_api(server.spec.engine).abort_steps(request_id);
    execute(server, steps, timeout).await
}

/// Executes the steps of a control operation in order, until one fails.
async fn execute(
    server: &RegisteredServer,
    steps: Vec<ControlStep>,
    timeout: Duration,
) -> Result<(), ControlError> {
    for step in steps {
        match post(server, step.path, &step.body, timeout).await {
            Ok(()) => {}
            Err(error) if error.kind == FailureExtent::Refused && step.is_optional => {}
            Err(error) => return Err(failed_step(error, &step)),
        }
    }
    Ok(())
}

fn failed_step(error: ControlError, step: &ControlStep) -> ControlError {
    match step.hint {
        _ if step.after_change => ControlError { kind: FailureExtent::Failed, ..error },
        Some(hint) if error.kind == FailureExtent::Refused => {
            ControlError { message: format!("{error}: {hint}"), ..error }
        }
        _ => error,
    }
}

/// Asks a server to do something, which it may say it did not do although its status is a good one.
async fn post(
    server: &RegisteredServer,
    path: &str,
    body: &Value,
    timeout: Duration,
) -> Result<(), ControlError> {
    let answer = request(server, Method::POST, path, Some(body), timeout).await?;
    if answer.get("success").and_then(Value::as_bool) == Some(false) {
        let said = answer.get("message").and_then(Value::as_str).unwrap_or("it does not say why");
        let what = path.split('?').next().unwrap_or(path);
        return Err(ControlError::new(
            FailureExtent::Refused,
            format!("{what} was not done: {said}"),
        ));
    }
    Ok(())
}

/// Understands what a server calls the version of its weights. Weights that nobody has named are
/// those that the server was started with.
fn parse_version(text: &str) -> Result<u64, ControlError> {
    match text {
        "" | "default" => Ok(0),
        text => text.parse().map_err(|_| {
            let message = format!("it calls its weights {text:?}, which is no version's number");
            ControlError::new(FailureExtent::Failed, message)
        }),
    }
}

/// Asks a server for something and returns its answer, or null if that is empty or no JSON.
async fn request(
    server: &RegisteredServer,
    method: Method,
    path: &str,
    body: Option<&Value>,
    timeout: Duration,
) -> Result<Value, ControlError> {
    let url = format!("{}{path}", server.spec.url);
    let what = path.split('?').next().unwrap_or(path);
    let mut request = server.client.request(method, url).timeout(timeout);
    if let Some(body) = body {
        let header = reqwest::header::CONTENT_TYPE;
        request = request.header(header, "application/json").body(body.to_string());
    }
    let mut answer = request.send().await.map_err(|error| unreached(what, timeout, &error))?;
    let status = answer.status();
    let mut bytes = Vec::new();
    while let Some(chunk) =
        answer.chunk().await.map_err(|error| unreached(what, timeout, &error))?
    {
        if bytes.len() + chunk.len() > MAX_ANSWER_BYTES {
            let message = format!("{what} answered with more than {MAX_ANSWER_BYTES} bytes");
            return Err(ControlError::new(FailureExtent::Failed, message));
        }
        bytes.extend_from_slice(&chunk);
    }
    if status.is_success() {
        return Ok(serde_json::from_slice(&bytes).unwrap_or(Value::Null));
    }
    let said: String = String::from_utf8_lossy(&bytes).trim().chars().take(300).collect();
    let said = if said.is_empty() { String::new() } else { format!(": {said}") };
    let kind =
        if status.is_client_error() { FailureExtent::Refused } else { FailureExtent::Failed };
    let hint = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => " (see `api_key`)",
        _ => "",
    };
    Err(ControlError::new(kind, format!("{what} answered {status}{hint}{said}")))
}

fn unreached(what: &str, timeout: Duration, error: &reqwest::Error) -> ControlError {
    if is_refused(error) {
        return ControlError::new(FailureExtent::Gone, format!("{what}: nobody listens there"));
    }
    if error.is_timeout() {
        let message = format!("{what} did not answer within {} ms", timeout.as_millis());
        return ControlError::new(FailureExtent::Failed, message);
    }
    let message = format!("{what}: {}", rollway_base::error_chain(error));
    ControlError::new(FailureExtent::Failed, message)
}

fn is_refused(error: &reqwest::Error) -> bool {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(io) = inner.downcast_ref::<io::Error>()
            && io.kind() == io::ErrorKind::ConnectionRefused
        {
            return true;
        }
        cause = inner.source();
    }
    false
}
