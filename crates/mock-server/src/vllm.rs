//! vLLM's endpoints.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::api_error::ApiError;
use super::generation_state::{GenerationState, PauseMode, WeightSource};
use super::request;
use super::response::respond;
use super::routes::{Body, models};
use super::vllm_format::{Chat, Text};

type Shared = State<Arc<GenerationState>>;

pub(super) fn router() -> Router<Arc<GenerationState>> {
    Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(text))
        .route("/v1/models", get(models))
        .route("/health", get(health))
        .route("/ping", get(health).post(health))
        .route("/version", get(|| async { Json(json!({ "version": "0.32.0" })) }))
        .route("/load", get(load))
        .route("/metrics", get(metrics))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/pause", post(pause))
        .route("/resume", post(resume))
        .route("/is_paused", get(is_paused))
        .route("/sleep", post(sleep))
        .route("/wake_up", post(wake_up))
        .route("/is_sleeping", get(is_sleeping))
        .route("/reset_prefix_cache", post(|| async { Json(json!({ "success": true })) }))
        .route("/abort_requests", post(abort_requests))
        .route("/collective_rpc", post(collective_rpc))
        .route("/init_weight_transfer_engine", post(init_transfer))
        .route("/start_weight_update", post(start_update))
        .route("/update_weights", post(update_weights))
        .route("/finish_weight_update", post(finish_update))
        .route("/update_weight_version", post(update_version))
        .route("/weight_info", get(weight_info))
        .route("/get_world_size", get(|| async { Json(json!({ "world_size": 1 })) }))
}

async fn chat(State(state): Shared, headers: HeaderMap, Body(body): Body) -> Response {
    let request = request::chat(&state, &headers, body);
    respond(&state, request, |request| Box::new(Chat { ids: request.wants("return_token_ids") }))
        .await
}

async fn text(State(state): Shared, headers: HeaderMap, Body(body): Body) -> Response {
    let request = request::text(&state, &headers, body);
    let format = |request: &request::MockRequest| -> Box<dyn super::format::Format> {
        Box::new(Text { ids: request.wants("return_token_ids"), offsets: Vec::new() })
    };
    respond(&state, request, format).await
}

async fn health(State(state): Shared) -> StatusCode {
    if state.lock().healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

async fn load(State(state): Shared) -> Json<Value> {
    let counts = *state.counts.borrow();
    Json(json!({ "server_load": counts.running + counts.waiting }))
}

async fn metrics(State(state): Shared) -> String {
    let counts = *state.counts.borrow();
    let name = &state.options.model;
    let line = |metric: &str, kind: &str, value: u64| {
        format!("# TYPE vllm:{metric} {kind}\nvllm:{metric}{{model_name=\"{name}\"}} {value}\n")
    };
    [
        line("num_requests_running", "gauge", counts.running),
        line("num_requests_waiting", "gauge", counts.waiting),
        line("request_success_total", "counter", counts.completed),
    ]
    .concat()
}

async fn tokenize(State(state): Shared, Body(body): Body) -> Response {
    let fields = body.as_object();
    let messages = fields.and_then(|fields| fields.get("messages")).and_then(Value::as_array);
    let tokens = match messages {
        Some(messages) => {
            let tools = body.get("tools").and_then(Value::as_array);
            state.template.render(messages, tools.map_or(&[], Vec::as_slice))
        }
        None => match body.get("prompt").and_then(Value::as_str) {
            Some(prompt) => Ok(state.template.tokenizer.encode(prompt)),
            None => Err(ApiError::bad_request("prompt is a string").at("prompt")),
        },
    };
    match tokens {
        Ok(tokens) => Json(json!({
            "count": tokens.len(),
            "max_model_len": state.options.max_model_len,
            "tokens": tokens,
            "token_strs": null,
        }))
        .into_response(),
        Err(refusal) => refusal.response(state.kind()),
    }
}

async fn detokenize(State(state): Shared, Body(body): Body) -> Response {
    let Some(Value::Array(tokens)) = body.get("tokens") else {
        return ApiError::bad_request("tokens is a list of ids")
            .at("tokens")
            .response(state.kind());
    };
    let ids = tokens.iter().filter_map(Value::as_i64).filter_map(|id| i32::try_from(id).ok());
    let ids: Vec<i32> = ids.collect();
    Json(json!({ "prompt": state.template.tokenizer.decode(&ids) })).into_response()
}

#[derive(Debug, Deserialize)]
struct PauseQuery {
    #[serde(default)]
    mode: Option<String>,
    #[serde(default)]
    wait_for_inflight_requests: bool,
}

async fn pause(State(state): Shared, Query(query): Query<PauseQuery>) -> Response {
    let how = match query.mode.as_deref() {
        None if query.wait_for_inflight_requests => PauseMode::Wait,
        None | Some("abort") => PauseMode::Abort,
        Some("wait") => PauseMode::Wait,
        Some("keep") => PauseMode::Keep,
        Some(other) => {
            let message = format!("Input should be 'abort', 'wait' or 'keep', got {other}");
            return ApiError::bad_request(message).at("mode").response(state.kind());
        }
    };
    state.pause(how).await;
    Json(json!({ "status": "paused" })).into_response()
}

async fn resume(State(state): Shared) -> Json<Value> {
    state.resume();
    Json(json!({ "status": "resumed" }))
}

async fn is_paused(State(state): Shared) -> Json<Value> {
    Json(json!({ "is_paused": !state.gate.borrow().admitting }))
}

async fn sleep(State(state): Shared) -> StatusCode {
    state.gate.send_modify(|gate| gate.asleep = true);
    state.abort(|_| true);
    state.idle().await;
    StatusCode::OK
}

async fn wake_up(State(state): Shared) -> StatusCode {
    state.gate.send_modify(|gate| gate.asleep = false);
    StatusCode::OK
}

async fn is_sleeping(State(state): Shared) -> Json<Value> {
    Json(json!({ "is_sleeping": state.gate.borrow().asleep }))
}

async fn abort_requests(State(state): Shared, Body(body): Body) -> Json<Value> {
    let ids: Vec<&str> = body
        .get("request_ids")
        .and_then(Value::as_array)
        .map(|ids| ids.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    // As vLLM does: the number of ids that were named, whether or not they are known.
    let aborted = if ids.is_empty() {
        state.abort(|_| true)
    } else {
        state.abort(|id| ids.contains(&id));
        ids.len()
    };
    Json(json!({ "status": "aborted", "aborted": aborted }))
}

async fn collective_rpc(State(state): Shared, Body(body): Body) -> Response {
    let Some(method) = body.get("method").and_then(Value::as_str) else {
        return detail("Missing 'method' in request body");
    };
    if method != "reload_weights" {
        let message = format!("Method '{method}' is not implemented.");
        return ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message).response(state.kind());
    }
    let named = body.pointer("/kwargs/weights_path").and_then(Value::as_str).map(str::to_owned);
    let Some(path) = named.or_else(|| state.lock().weights_path.clone()) else {
        let message = "there are no weights to reload: name weights_path";
        return ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message).response(state.kind());
    };
    match state.update(WeightSource::Directory(&path)).await {
        Ok(_) => Json(json!({ "results": [null] })).into_response(),
        Err(refusal) => refusal.response(state.kind()),
    }
}

/// A refusal in FastAPI's own words.
fn detail(message: &str) -> Response {
    (StatusCode::BAD_REQUEST, Json(json!({ "detail": message }))).into_response()
}

async fn init_transfer(Body(body): Body) -> Response {
    match body.get("init_info") {
        None | Some(Value::Null) => detail("Missing 'init_info' in request body"),
        Some(_) => Json(json!({ "message": "Weight transfer initialized" })).into_response(),
    }
}

async fn start_update(State(state): Shared) -> Json<Value> {
    state.lock().pending = None;
    Json(json!({ "message": "Weight update started" }))
}

async fn update_weights(State(state): Shared, Body(body): Body) -> Response {
    let Some(info) = body.get("update_info").filter(|info| !info.is_null()) else {
        return detail("Missing 'update_info' in request body");
    };
    let version = info.get("version").and_then(Value::as_u64);
    let next = state.gate.borrow().version + 1;
    state.lock().pending = Some(version.unwrap_or(next));
    Json(json!({ "message": "Weights updated" })).into_response()
}

async fn finish_update(State(state): Shared, Body(body): Body) -> Response {
    let pending = state.lock().pending.take();
    if let Some(version) = pending
        && let Err(refusal) = state.update(WeightSource::Sent(version)).await
    {
        return refusal.response(state.kind());
    }
    if let Some(name) = body.get("weight_version").and_then(Value::as_str) {
        state.rename(name);
    }
    Json(json!({ "message": "Weight update finished" })).into_response()
}

async fn update_version(State(state): Shared, Body(body): Body) -> Response {
    let Some(name) = body.get("new_version").and_then(Value::as_str) else {
        return ApiError::bad_request("Field required: new_version")
            .at("new_version")
            .response(state.kind());
    };
    state.rename(name);
    Json(json!({ "success": true, "new_version": name })).into_response()
}

async fn weight_info(State(state): Shared) -> Json<Value> {
    Json(json!({ "weight_version": state.version_name() }))
}
