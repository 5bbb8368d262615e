//! Control requests to servers: health, name of the model, version of the weights, weight updates,
//! aborts. The requests of each kind of server come from its `ServerApi`.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use reqwest::{Method, StatusCode};
use rollway_model_api::server_api::{
    ControlStep, PauseMode, WeightControl, server_api, weight_control,
};
use serde_json::Value;
use tokio::time::Instant;

use super::capabilities::{self, ServerCapabilities};
use super::connect::{ReadError, lacks_descriptors, read_limited};
use super::{RegisteredServer, ServerHandle};

const MAX_REPLY_BYTES: usize = 1 << 20;
/// Maximum time in which a resume is repeated. Later, health checks resume the server.
const RESUME_TIME: Duration = Duration::from_secs(10);
/// Pause after the first failed resume; each further one is twice as long.
const RESUME_PAUSE: Duration = Duration::from_millis(20);

/// Failure of a control request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(super) struct ControlError {
    pub(super) kind: FailureExtent,
    pub(super) message: String,
}

/// Effect of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureExtent {
    /// Not sent for want of file descriptors: no effect.
    Unsent,
    /// Connection refused: no effect.
    Gone,
    /// Refused or not supported: no effect.
    Refused,
    /// Failed or timed out: the effect is unknown.
    Failed,
}

impl ControlError {
    fn new(kind: FailureExtent, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

pub(super) async fn check(
    server: &RegisteredServer,
    timeout: Duration,
) -> Result<(), ControlError> {
    let path = server_api(server.spec.engine).health_path();
    request(server, Method::GET, path, None, timeout).await.map(|_| ())
}

/// Identity of a server: its name of its model, the path of its weights, and its endpoints.
#[derive(Debug)]
pub(super) struct ServerIdentity {
    pub(super) name: String,
    pub(super) weights_path: Option<String>,
    pub(super) capabilities: ServerCapabilities,
}

/// Version of a server's weights, as it reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerVersion {
    /// It has no endpoint for it.
    Unsupported,
    Number(u64),
    /// A name that is no version of ours.
    Other(String),
}

impl ServerVersion {
    pub(super) fn number(&self) -> Option<u64> {
        match self {
            Self::Number(version) => Some(*version),
            Self::Unsupported | Self::Other(_) => None,
        }
    }

    /// Parses `7` or `v7`. Unnamed weights are those that the server started with.
    fn parse(text: &str) -> Self {
        let digits = text.strip_prefix('v').unwrap_or(text);
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        match text {
            "" | "default" => Self::Number(0),
            _ => digits
                .parse()
                .ok()
                .filter(|_| is_number)
                .map_or_else(|| Self::Other(text.to_owned()), Self::Number),
        }
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported => f.write_str("no version"),
            Self::Number(version) => write!(f, "version {version}"),
            Self::Other(name) => write!(f, "version {name:?}, which is not a number"),
        }
    }
}

/// Returns the text at a path of a server.
pub(super) async fn text(
    server: &RegisteredServer,
    path: &str,
    timeout: Duration,
) -> Result<String, ControlError> {
    let bytes = bytes(server, Method::GET, path, None, timeout).await?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Asks a server for its identity. A configured name of the model takes precedence.
pub(super) async fn identify(
    server: &RegisteredServer,
    timeout: Duration,
) -> Result<ServerIdentity, ControlError> {
    let known = server.spec.server_model.as_deref();
    let reply = match request(server, Method::GET, "/v1/models", None, timeout).await {
        Err(_) if known.is_some() => Value::Null,
        reply => reply?,
    };
    let models = reply.get("data").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
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
    let (url, kind) = (&server.spec.url, server.spec.engine);
    let capabilities = capabilities::probe(&server.control, url, kind, timeout).await;
    let capabilities =
        capabilities.map_err(|error| unreached("control endpoints", timeout, &error))?;
    Ok(ServerIdentity { name, weights_path: root.map(str::to_owned), capabilities })
}

/// Returns the version of the server's weights.
pub(super) async fn version(
    server: &RegisteredServer,
    timeout: Duration,
) -> Result<ServerVersion, ControlError> {
    let api = server_api(server.spec.engine);
    for path in api.version_paths() {
        match read(server, path, timeout).await {
            Ok(reply) => {
                let reply = serde_json::from_slice(&reply).unwrap_or_default();
                if let Some(name) = api.version_name(&reply) {
                    return Ok(ServerVersion::parse(name));
                }
            }
            Err(error) if error.kind == FailureExtent::Refused => {}
            Err(error) => return Err(error),
        }
    }
    Ok(ServerVersion::Unsupported)
}

/// Returns whether the server is paused. `None`: the server does not report it.
pub(super) async fn is_paused(
    server: &RegisteredServer,
    timeout: Duration,
) -> Result<Option<bool>, ControlError> {
    let Ok(control) = weight_control(server.spec.engine) else { return Ok(None) };
    let reply = state(server, control.pause_state_path(), timeout).await?;
    Ok(reply.and_then(|reply| control.is_paused(&reply)))
}

/// Returns whether the server sleeps. `None`: the server does not report it.
pub(super) async fn is_sleeping(
    server: &RegisteredServer,
    timeout: Duration,
) -> Result<Option<bool>, ControlError> {
    let Ok(control) = weight_control(server.spec.engine) else { return Ok(None) };
    let reply = state(server, control.sleep_state_path(), timeout).await?;
    Ok(reply.and_then(|reply| control.is_sleeping(&reply)))
}

/// Returns the reply of an endpoint that not all servers have.
async fn state(
    server: &RegisteredServer,
    path: Option<&str>,
    timeout: Duration,
) -> Result<Option<Value>, ControlError> {
    let Some(path) = path else { return Ok(None) };
    match request(server, Method::GET, path, None, timeout).await {
        Ok(reply) => Ok(Some(reply)),
        Err(error) if error.kind == FailureExtent::Refused => Ok(None),
        Err(error) => Err(error),
    }
}

/// Resumes a server. A lost or failed request is repeated until the server reports that it is not
/// paused, for at most [`RESUME_TIME`].
pub(super) async fn resume(
    handle: &ServerHandle,
    mode: PauseMode,
    timeout: Duration,
) -> Result<(), ControlError> {
    let timeout = timeout.min(RESUME_TIME);
    let deadline = Instant::now() + RESUME_TIME;
    let mut pause = RESUME_PAUSE;
    loop {
        let sent = operate(handle, timeout, |control| control.resume(mode)).await;
        let state = is_paused(&handle.server, timeout).await;
        let error = match (sent, state) {
            (_, Ok(Some(false))) | (Ok(()), Ok(None)) => return Ok(()),
            (Err(error), _) | (Ok(()), Err(error)) => error,
            (Ok(()), Ok(Some(true))) => {
                ControlError::new(FailureExtent::Failed, "it is paused although it was resumed")
            }
        };
        if error.kind != FailureExtent::Failed || Instant::now() + pause > deadline {
            return Err(error);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(timeout);
    }
}

/// Executes an operation of a server's [`WeightControl`], without optional steps whose endpoint
/// the server lacks.
pub(super) async fn operate(
    handle: &ServerHandle,
    timeout: Duration,
    steps: impl FnOnce(&dyn WeightControl) -> Vec<ControlStep>,
) -> Result<(), ControlError> {
    let server = &handle.server;
    let control = weight_control(server.spec.engine);
    let control = control.map_err(|reason| ControlError::new(FailureExtent::Refused, reason))?;
    let capabilities = handle.info().capabilities.clone();
    for step in steps(control) {
        if step.is_optional && !capabilities.has(step.endpoint()) {
            continue;
        }
        let outcome = post(server, step.path, &step.body, timeout).await;
        outcome.map_err(|error| failed_step(error, &step))?;
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

/// Sends a control request. A reply with `success: false` counts as a refusal.
async fn post(
    server: &RegisteredServer,
    path: &str,
    body: &Value,
    timeout: Duration,
) -> Result<(), ControlError> {
    let reply = request(server, Method::POST, path, Some(body), timeout).await?;
    if reply.get("success").and_then(Value::as_bool) == Some(false) {
        let text = reply.get("message").and_then(Value::as_str).unwrap_or("no reason given");
        let endpoint = path.split('?').next().unwrap_or(path);
        return Err(ControlError::new(
            FailureExtent::Refused,
            format!("{endpoint} failed: {text}"),
        ));
    }
    Ok(())
}

/// Returns the reply to a request that changes nothing. It is sent on a connection of model calls,
/// which the server may be about to close: a request that fails there is repeated on a connection
/// of its own.
async fn read(
    server: &RegisteredServer,
    path: &str,
    timeout: Duration,
) -> Result<Bytes, ControlError> {
    let deadline = Instant::now() + timeout;
    let reply = send(&server.client, server, Method::GET, path, None, timeout).await;
    let rest = deadline.saturating_duration_since(Instant::now());
    match reply {
        Err(error) if error.kind == FailureExtent::Failed && !rest.is_zero() => {
            bytes(server, Method::GET, path, None, rest).await
        }
        reply => reply,
    }
}

/// Sends a request and returns the JSON of the reply; null without any.
async fn request(
    server: &RegisteredServer,
    method: Method,
    path: &str,
    body: Option<&Value>,
    timeout: Duration,
) -> Result<Value, ControlError> {
    let bytes = bytes(server, method, path, body, timeout).await?;
    Ok(serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

/// Sends a request on a connection of its own and returns the body of a successful reply.
async fn bytes(
    server: &RegisteredServer,
    method: Method,
    path: &str,
    body: Option<&Value>,
    timeout: Duration,
) -> Result<Bytes, ControlError> {
    send(&server.control, server, method, path, body, timeout).await
}

async fn send(
    client: &reqwest::Client,
    server: &RegisteredServer,
    method: Method,
    path: &str,
    body: Option<&Value>,
    timeout: Duration,
) -> Result<Bytes, ControlError> {
    let url = format!("{}{path}", server.spec.url);
    let endpoint = path.split('?').next().unwrap_or(path);
    let mut request = client.request(method, url).timeout(timeout);
    if let Some(body) = body {
        let header = reqwest::header::CONTENT_TYPE;
        request = request.header(header, "application/json").body(body.to_string());
    }
    let response = request.send().await.map_err(|error| unreached(endpoint, timeout, &error))?;
    let status = response.status();
    let bytes = read_limited(response, MAX_REPLY_BYTES).await.map_err(|error| match error {
        ReadError::Broken(error) => unreached(endpoint, timeout, &error),
        ReadError::TooLarge => {
            let message = format!("{endpoint}: response larger than {MAX_REPLY_BYTES} bytes");
            ControlError::new(FailureExtent::Failed, message)
        }
    })?;
    if status.is_success() {
        return Ok(bytes);
    }
    let text: String = String::from_utf8_lossy(&bytes).trim().chars().take(300).collect();
    let text = if text.is_empty() { String::new() } else { format!(": {text}") };
    let kind =
        if status.is_client_error() { FailureExtent::Refused } else { FailureExtent::Failed };
    let hint = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => " (see `api_key`)",
        _ => "",
    };
    Err(ControlError::new(kind, format!("{endpoint} responded with status {status}{hint}{text}")))
}

fn unreached(endpoint: &str, timeout: Duration, error: &reqwest::Error) -> ControlError {
    if is_refused(error) {
        return ControlError::new(FailureExtent::Gone, format!("{endpoint}: connection refused"));
    }
    if lacks_descriptors(error) {
        let message = format!("{endpoint}: this process has no more file descriptors");
        return ControlError::new(FailureExtent::Unsent, message);
    }
    if error.is_timeout() {
        let message = format!("{endpoint} did not reply within {} ms", timeout.as_millis());
        return ControlError::new(FailureExtent::Failed, message);
    }
    let message = format!("{endpoint}: {}", rollway_base::error_chain(error));
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
