//! How a kind of server is looked after, besides being asked for answers: is it well, what is its
//! model called, which weights has it.

mod plain;
mod sglang;
mod vllm;

use std::error::Error as _;
use std::io;
use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::Value;

use super::Server;
use crate::dialect::Engine;
use rollway_core::rendezvous::TransferGroup;

/// The largest answer to any of these questions.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// What went wrong between the server and us.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(super) struct ControlError {
    pub(super) kind: Wrong,
    pub(super) message: String,
}

/// How much is known after something went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// Nobody listens there: nothing was done.
    Gone,
    /// The server does not want to, or does not know how: nothing was done.
    Refused,
    /// It failed, or did not answer in time: nobody knows what was done.
    Failed,
}

impl ControlError {
    fn new(kind: Wrong, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// Asks whether a server is well.
pub(super) async fn check(server: &Server, timeout: Duration) -> Result<(), ControlError> {
    let path = match server.spec.engine {
        Engine::Vllm | Engine::Sglang | Engine::LlamaCpp => "/health",
        Engine::OpenAi => "/v1/models",
    };
    request(server, Method::GET, path, None, timeout).await.map(|_| ())
}

/// What a server calls its model, and where it says that it has it from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Called {
    pub(super) name: String,
    pub(super) root: Option<String>,
}

/// Asks for the name that the server knows its model by.
pub(super) async fn model_name(server: &Server, timeout: Duration) -> Result<Called, ControlError> {
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
        return Err(ControlError::new(Wrong::Failed, message));
    };
    let root = model.and_then(|model| model.get("root")).and_then(Value::as_str);
    Ok(Called { name, root: root.map(str::to_owned) })
}

/// Asks for the version of the server's weights; none if servers of its kind do not tell.
pub(super) async fn version(
    server: &Server,
    timeout: Duration,
) -> Result<Option<u64>, ControlError> {
    match server.spec.engine {
        Engine::Vllm => vllm::version(server, timeout).await,
        Engine::Sglang => sglang::version(server, timeout).await,
        // The version is what we were told.
        Engine::LlamaCpp | Engine::OpenAi => Ok(None),
    }
}

/// How a server is halted for an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Halt {
    /// It has nothing of ours under way.
    Empty,
    /// What is under way stays, and goes on afterwards.
    Keep,
    /// What is under way is aborted.
    Abort,
}

/// Says why servers of a kind cannot be given other weights, if so.
pub(super) const fn cannot_update(engine: Engine) -> Option<&'static str> {
    match engine {
        Engine::Vllm | Engine::Sglang => None,
        Engine::LlamaCpp => Some(
            "llama-server cannot be given other weights while it runs: start it anew, or train \
             with vllm or sglang",
        ),
        Engine::OpenAi => Some(
            "a plain OpenAI-compatible server cannot be given other weights: train with vllm or \
             sglang",
        ),
    }
}

/// Halts a server. Once this returns it produces nothing.
pub(super) async fn halt(
    server: &Server,
    halt: Halt,
    timeout: Duration,
) -> Result<(), ControlError> {
    match server.spec.engine {
        Engine::Vllm => vllm::halt(server, halt, timeout).await,
        Engine::Sglang => sglang::halt(server, halt, timeout).await,
        Engine::LlamaCpp | Engine::OpenAi => plain::refuse(server.spec.engine),
    }
}

/// Lets a halted server go on.
pub(super) async fn go_on(
    server: &Server,
    halt: Halt,
    timeout: Duration,
) -> Result<(), ControlError> {
    match server.spec.engine {
        Engine::Vllm => vllm::go_on(server, timeout).await,
        Engine::Sglang => sglang::go_on(server, halt, timeout).await,
        Engine::LlamaCpp | Engine::OpenAi => plain::refuse(server.spec.engine),
    }
}

/// Lets a halted server load weights from a directory, and call them by their version.
pub(super) async fn load(
    server: &Server,
    path: &str,
    version: u64,
    timeout: Duration,
) -> Result<(), ControlError> {
    match server.spec.engine {
        Engine::Vllm => vllm::load(server, path, version, timeout).await,
        Engine::Sglang => sglang::load(server, path, version, timeout).await,
        Engine::LlamaCpp | Engine::OpenAi => plain::refuse(server.spec.engine),
    }
}

/// Lets a halted server receive weights over a group, as the member that is `index` servers behind
/// the first, and call them by their version.
pub(super) async fn receive(
    server: &Server,
    group: &TransferGroup,
    version: u64,
    index: u32,
    timeout: Duration,
) -> Result<(), ControlError> {
    let rank = 1 + index * group.ranks_per_server;
    match server.spec.engine {
        Engine::Vllm => vllm::receive(server, group, version, rank, timeout).await,
        Engine::Sglang => sglang::receive(server, group, version, rank, timeout).await,
        Engine::LlamaCpp | Engine::OpenAi => plain::refuse(server.spec.engine),
    }
}

/// Aborts a request. Servers that have no way to say so end it when its connection is closed.
pub(super) async fn abort(
    server: &Server,
    request_id: &str,
    timeout: Duration,
) -> Result<(), ControlError> {
    match server.spec.engine {
        Engine::Vllm => vllm::abort(server, request_id, timeout).await,
        Engine::Sglang => sglang::abort(server, request_id, timeout).await,
        Engine::LlamaCpp | Engine::OpenAi => Ok(()),
    }
}

/// Asks a server to do something, which it may say it did not do although its status is a good one.
async fn post(
    server: &Server,
    path: &str,
    body: &Value,
    timeout: Duration,
) -> Result<(), ControlError> {
    let answer = request(server, Method::POST, path, Some(body), timeout).await?;
    if answer.get("success").and_then(Value::as_bool) == Some(false) {
        let said = answer.get("message").and_then(Value::as_str).unwrap_or("it does not say why");
        let what = path.split('?').next().unwrap_or(path);
        return Err(ControlError::new(Wrong::Refused, format!("{what} was not done: {said}")));
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
            ControlError::new(Wrong::Failed, message)
        }),
    }
}

/// Asks a server for something and returns its answer, or null if that is empty or no JSON.
async fn request(
    server: &Server,
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
            return Err(ControlError::new(Wrong::Failed, message));
        }
        bytes.extend_from_slice(&chunk);
    }
    if status.is_success() {
        return Ok(serde_json::from_slice(&bytes).unwrap_or(Value::Null));
    }
    let said: String = String::from_utf8_lossy(&bytes).trim().chars().take(300).collect();
    let said = if said.is_empty() { String::new() } else { format!(": {said}") };
    let kind = if status.is_client_error() { Wrong::Refused } else { Wrong::Failed };
    let hint = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => " (see `api_key`)",
        _ => "",
    };
    Err(ControlError::new(kind, format!("{what} answered {status}{hint}{said}")))
}

fn unreached(what: &str, timeout: Duration, error: &reqwest::Error) -> ControlError {
    if is_refused(error) {
        return ControlError::new(Wrong::Gone, format!("{what}: nobody listens there"));
    }
    if error.is_timeout() {
        let message = format!("{what} did not answer within {} ms", timeout.as_millis());
        return ControlError::new(Wrong::Failed, message);
    }
    let message = format!("{what}: {}", rollway_base::error_chain(error));
    ControlError::new(Wrong::Failed, message)
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
