//! HTTP endpoints, compatible with vLLM.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use parking_lot::Mutex;
use rollway_base::Secret;
use rollway_net::JsonBody;
use rollway_tiny_model::{ModelWeights, Vocabulary};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::api_error::TinyApiError;
use super::generation_thread::{GenerationBatch, GenerationPause, GenerationThread};
use super::options::TinyServerOptions;
use super::request::{self, TinyRequestKind};
use super::response::respond;

/// State shared by the endpoints.
#[derive(Debug)]
pub(super) struct TinyServerShared {
    pub(super) options: TinyServerOptions,
    pub(super) generation: Arc<GenerationThread>,
    version: Mutex<Arc<str>>,
    ids: AtomicU64,
    is_paused: AtomicBool,
}

impl TinyServerShared {
    pub(super) fn new(options: TinyServerOptions, generation: GenerationThread) -> Self {
        let version = Mutex::new(options.version.to_string().into());
        let is_paused = AtomicBool::new(false);
        Self {
            options,
            generation: Arc::new(generation),
            version,
            ids: AtomicU64::new(0),
            is_paused,
        }
    }

    pub(super) fn version(&self) -> Arc<str> {
        Arc::clone(&self.version.lock())
    }

    fn set_version(&self, version: &str) {
        let version: Arc<str> = version.into();
        // Under the lock, so that concurrent updates reach both in the same order.
        let mut current = self.version.lock();
        *current = Arc::clone(&version);
        self.generation.send(|batch| batch.set_version(version));
    }
}

type Server = State<Arc<TinyServerShared>>;

/// Path that needs no key.
const HEALTH: &str = "/health";

pub(super) fn router(shared: Arc<TinyServerShared>) -> Router {
    let limit = DefaultBodyLimit::max(shared.options.limits.max_body_bytes);
    let completions =
        |kind| post(move |server, headers, body| complete(kind, server, headers, body));
    Router::new()
        .route("/v1/chat/completions", completions(TinyRequestKind::Chat))
        .route("/v1/completions", completions(TinyRequestKind::Text))
        .route("/v1/models", get(models))
        .route("/detokenize", post(detokenize))
        .route(HEALTH, get(health))
        .route("/pause", post(pause))
        .route("/resume", post(resume))
        .route("/is_paused", get(is_paused))
        .route("/reset_prefix_cache", post(reset_cache))
        .route("/abort_requests", post(abort))
        .route("/collective_rpc", post(collective_rpc))
        .route("/update_weight_version", post(update_version))
        .route("/weight_info", get(weight_info))
        .layer(limit)
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), authenticate))
        .with_state(shared)
}

/// Refuses requests without the key: other users of the machine and web pages reach the port.
async fn authenticate(State(shared): Server, request: Request, next: Next) -> Response {
    let header = request.headers().get(header::AUTHORIZATION).and_then(|it| it.to_str().ok());
    let sent = header.and_then(|it| it.strip_prefix("Bearer ")).map(Secret::new);
    let is_admitted = match &shared.options.api_key {
        Some(key) => sent.is_some_and(|sent| sent.as_ref() == Ok(key)),
        None => true,
    };
    if is_admitted || request.uri().path() == HEALTH {
        return next.run(request).await;
    }
    let message = "the key in the header `Authorization` is missing or wrong";
    TinyApiError::new(StatusCode::UNAUTHORIZED, message).into_response()
}

/// Parses a body; an empty one counts as an empty object.
fn json_of(body: &Bytes) -> Result<Value, TinyApiError> {
    if body.is_empty() {
        return Ok(json!({}));
    }
    serde_json::from_slice(body)
        .map_err(|error| TinyApiError::bad(format!("the body is not JSON: {error}")))
}

async fn complete(
    kind: TinyRequestKind,
    State(shared): Server,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, TinyApiError> {
    let fresh = || format!("{:016x}", shared.ids.fetch_add(1, Ordering::Relaxed));
    let options = &shared.options;
    let (request, choices) = request::read(kind, options, &headers, &json_of(&body)?, fresh)?;
    let model = (options.model.clone(), options.vocabulary.clone());
    Ok(respond(&shared.generation, model, request, choices).await)
}

/// Returns the text of tokens. Special ones have a name, as they have no character.
async fn detokenize(State(shared): Server, body: Bytes) -> Result<JsonBody<Value>, TinyApiError> {
    let body = json_of(&body)?;
    let ids = body["tokens"].as_array().and_then(|ids| ids.iter().map(Value::as_u64).collect());
    let Some(ids) = ids else {
        return Err(TinyApiError::bad("tokens must be a list of ids").at("tokens"));
    };
    let ids: Vec<u64> = ids;
    let text = |id: &u64| match u32::try_from(*id) {
        Ok(Vocabulary::BEGIN) => "<begin>".to_owned(),
        Ok(Vocabulary::END) => "<end>".to_owned(),
        Ok(id) => shared.options.vocabulary.decode(&[id]),
        Err(_) => String::new(),
    };
    Ok(JsonBody(json!({ "prompt": ids.iter().map(text).collect::<String>() })))
}

async fn health(State(shared): Server) -> StatusCode {
    match shared.generation.is_alive() {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    }
}

async fn models(State(shared): Server) -> JsonBody<Value> {
    let model = json!({
        "id": shared.options.model,
        "object": "model",
        "created": 0,
        "owned_by": "rollway",
        "root": shared.options.model,
        "parent": null,
        "max_model_len": shared.options.weights.shape().context,
    });
    JsonBody(json!({ "object": "list", "data": [model] }))
}

#[derive(Debug, Deserialize)]
struct TinyPauseQuery {
    mode: Option<String>,
}

async fn pause(State(shared): Server, Query(query): Query<TinyPauseQuery>) -> Response {
    let mode = match query.mode.as_deref() {
        None | Some("abort") => GenerationPause::Abort,
        Some("wait") => GenerationPause::Wait,
        Some("keep") => GenerationPause::Keep,
        Some(other) => {
            let message = format!("mode must be abort, wait or keep, got {other}");
            return TinyApiError::bad(message).at("mode").into_response();
        }
    };
    shared.is_paused.store(true, Ordering::Relaxed);
    shared.generation.call(move |batch, done| batch.pause(mode, done)).await;
    JsonBody(json!({ "status": "paused" })).into_response()
}

async fn is_paused(State(shared): Server) -> JsonBody<Value> {
    JsonBody(json!({ "is_paused": shared.is_paused.load(Ordering::Relaxed) }))
}

async fn resume(State(shared): Server) -> JsonBody<Value> {
    shared.is_paused.store(false, Ordering::Relaxed);
    shared.generation.send(GenerationBatch::resume);
    JsonBody(json!({ "status": "resumed" }))
}

#[derive(Debug, Deserialize)]
struct ResetCacheQuery {
    #[serde(default)]
    reset_running_requests: bool,
}

/// There is no prefix cache, only the caches of running requests.
async fn reset_cache(
    State(shared): Server,
    Query(query): Query<ResetCacheQuery>,
) -> JsonBody<Value> {
    if query.reset_running_requests {
        shared.generation.send(GenerationBatch::clear_cache);
    }
    JsonBody(json!({ "success": true }))
}

async fn abort(State(shared): Server, body: Bytes) -> Result<JsonBody<Value>, TinyApiError> {
    let body = json_of(&body)?;
    let ids = body.get("request_ids").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let ids: Vec<String> = ids.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    let count = ids.len();
    shared.generation.send(move |batch| batch.abort(&ids));
    Ok(JsonBody(json!({ "status": "aborted", "aborted": count })))
}

async fn collective_rpc(
    State(shared): Server,
    body: Bytes,
) -> Result<JsonBody<Value>, TinyApiError> {
    let body = json_of(&body)?;
    let failed = |message: String| TinyApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message);
    match body.get("method").and_then(Value::as_str) {
        Some("reload_weights") => {}
        Some(other) => return Err(failed(format!("unknown method {other}"))),
        None => return Err(TinyApiError::bad("Field required: method").at("method")),
    }
    let Some(path) = body.pointer("/kwargs/weights_path").and_then(Value::as_str) else {
        return Err(TinyApiError::bad("Field required: weights_path").at("kwargs"));
    };
    let path = path.to_owned();
    let read = tokio::task::spawn_blocking(move || load(Path::new(&path)));
    let weights = read.await.map_err(|error| failed(error.to_string()))?.map_err(failed)?;
    let (own, theirs) = (shared.options.weights.shape(), weights.shape());
    if own != theirs {
        let message = format!("the weights have the shape {theirs:?}, not {own:?}");
        return Err(failed(message));
    }
    let replace = move |batch: &mut GenerationBatch, done: oneshot::Sender<()>| {
        batch.replace_weights(Arc::new(weights));
        let _ = done.send(());
    };
    shared.generation.call(replace).await;
    Ok(JsonBody(json!({ "results": [null] })))
}

/// Reads a weights file, or the one in a folder.
fn load(path: &Path) -> Result<ModelWeights, String> {
    let file = if path.is_dir() { path.join("model.safetensors") } else { path.to_owned() };
    ModelWeights::load(&file).map_err(|error| error.to_string())
}

async fn update_version(
    State(shared): Server,
    body: Bytes,
) -> Result<JsonBody<Value>, TinyApiError> {
    let body = json_of(&body)?;
    let Some(version) = body.get("new_version").and_then(Value::as_str) else {
        return Err(TinyApiError::bad("Field required: new_version").at("new_version"));
    };
    shared.set_version(version);
    Ok(JsonBody(json!({ "success": true, "new_version": version })))
}

async fn weight_info(State(shared): Server) -> JsonBody<Value> {
    JsonBody(json!({ "weight_version": shared.version().as_ref() }))
}
