//! vLLM's endpoints.

mod scale_out;

use axum::Router;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use rollway_net::JsonBody;
use serde::Deserialize;
use serde_json::{Value, json};

use super::openai::OpenaiStyle;
use super::{
    Body, Format, JsonResult, MockApi, RequestIds, SharedState, health, required, token_ids,
};
use crate::api_error::ApiError;
use crate::generation_state::{CachePressure, PauseMode, WeightSource};
use crate::request::{self, MockRequest, object};
use crate::response::disconnected;

type Shared = State<SharedState>;

#[derive(Debug)]
pub(super) struct VllmMock;

impl MockApi for VllmMock {
    fn routes(&self) -> Router<SharedState> {
        Router::new()
            .route("/ping", get(health).post(health))
            .route("/version", get(|| async { JsonBody(json!({ "version": "0.32.0" })) }))
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
            .route("/reset_prefix_cache", post(|| async { JsonBody(json!({ "success": true })) }))
            .route("/abort_requests", post(abort_requests))
            .route("/collective_rpc", post(collective_rpc))
            .route("/init_weight_transfer_engine", post(init_transfer))
            .route("/start_weight_update", post(start_update))
            .route("/update_weights", post(update_weights))
            .route("/finish_weight_update", post(finish_update))
            .route("/update_weight_version", post(update_version))
            .route("/weight_info", get(weight_info))
            .route("/get_world_size", get(|| async { JsonBody(json!({ "world_size": 1 })) }))
            .merge(scale_out::routes())
    }

    fn owner(&self) -> &'static str {
        "vllm"
    }

    fn loses_weights(&self) -> bool {
        true
    }

    fn response_id(&self, request: RequestIds<'_>, prefix: &str, new_id: &str) -> String {
        let header = request.headers.get("x-request-id").and_then(|id| id.to_str().ok());
        let id = header.map(str::to_owned).or_else(|| request.field("request_id"));
        format!("{prefix}-{}", id.as_deref().unwrap_or(new_id))
    }

    fn completion_abort_ids(&self, id: &str, prompts: usize) -> Vec<String> {
        (0..prompts).map(|index| format!("{id}-{index}")).collect()
    }

    fn chat_format(&self, request: &MockRequest) -> Box<dyn Format> {
        OpenaiStyle { is_vllm: true, ids: request.wants("return_token_ids") }.chat()
    }

    fn completion_format(&self, request: &MockRequest) -> Box<dyn Format> {
        OpenaiStyle { is_vllm: true, ids: request.wants("return_token_ids") }.completion()
    }
}

async fn load(State(state): Shared) -> JsonBody<Value> {
    let counts = *state.counts.borrow();
    JsonBody(json!({ "server_load": counts.running + counts.waiting }))
}

async fn metrics(State(state): Shared) -> String {
    let counts = *state.counts.borrow();
    let name = &state.options.model;
    let line = |metric: &str, kind: &str, value: f64| {
        let labels = format!("{{engine=\"0\",model_name=\"{name}\"}}");
        format!("# TYPE vllm:{metric} {kind}\nvllm:{metric}{labels} {value:?}\n")
    };
    let CachePressure { usage, preemptions } = state.lock().cache_pressure;
    [
        line("num_requests_running", "gauge", counts.running as f64),
        line("num_requests_waiting", "gauge", counts.waiting as f64),
        line("kv_cache_usage_perc", "gauge", usage),
        line("num_preemptions_total", "counter", preemptions as f64),
        line("request_success_total", "counter", counts.completed as f64),
    ]
    .concat()
}

async fn tokenize(State(state): Shared, Body(body): Body) -> JsonResult {
    let tokens = match body.get("messages").and_then(Value::as_array) {
        Some(messages) => request::rendered(&state, object(&body)?, messages)?.0,
        None => {
            let prompt = body.get("prompt").and_then(Value::as_str);
            let missing = || ApiError::bad_request("prompt must be a string").at("prompt");
            state.template.tokenizer.encode(prompt.ok_or_else(missing)?)
        }
    };
    Ok(JsonBody(json!({
        "count": tokens.len(),
        "max_model_len": state.options.max_model_len,
        "tokens": tokens,
        "token_strs": null,
    })))
}

async fn detokenize(State(state): Shared, Body(body): Body) -> JsonResult {
    let ids = token_ids(&body)?;
    Ok(JsonBody(json!({ "prompt": state.template.tokenizer.decode(&ids) })))
}

#[derive(Debug, Deserialize)]
struct PauseQuery {
    #[serde(default)]
    mode: Option<String>,
    #[serde(default)]
    wait_for_inflight_requests: bool,
}

async fn pause(State(state): Shared, Query(query): Query<PauseQuery>) -> JsonResult {
    let mode = match query.mode.as_deref() {
        None if query.wait_for_inflight_requests => PauseMode::Wait,
        None | Some("abort") => PauseMode::Abort,
        Some("wait") => PauseMode::Wait,
        Some("keep") => PauseMode::Keep,
        Some(other) => {
            let message = format!("Input should be 'abort', 'wait' or 'keep', got {other}");
            return Err(ApiError::bad_request(message).at("mode"));
        }
    };
    state.pause(mode).await;
    Ok(JsonBody(json!({ "status": "paused" })))
}

async fn resume(State(state): Shared) -> Response {
    if state.lock().faults.resume_is_lost() {
        return disconnected();
    }
    state.resume();
    JsonBody(json!({ "status": "resumed" })).into_response()
}

async fn is_paused(State(state): Shared) -> JsonBody<Value> {
    JsonBody(json!({ "is_paused": !state.gate.borrow().admitting }))
}

#[derive(Debug, Deserialize)]
struct SleepQuery {
    #[serde(default = "default_level")]
    level: u32,
}

fn default_level() -> u32 {
    1
}

async fn sleep(State(state): Shared, Query(query): Query<SleepQuery>) -> JsonBody<Value> {
    state.gate.send_modify(|gate| {
        gate.admitting = false;
        gate.asleep = true;
    });
    state.abort(|_| true);
    state.wait_until_idle().await;
    JsonBody(json!({ "status": "sleeping", "level": query.level }))
}

async fn wake_up(State(state): Shared) -> JsonBody<Value> {
    state.gate.send_modify(|gate| gate.asleep = false);
    state.resume();
    JsonBody(json!({ "status": "awake", "tags": null }))
}

async fn is_sleeping(State(state): Shared) -> JsonBody<Value> {
    let gate = state.gate.borrow();
    // A pause counts as sleep, as in vLLM.
    JsonBody(json!({ "is_sleeping": gate.asleep || !gate.admitting }))
}

async fn abort_requests(State(state): Shared, Body(body): Body) -> JsonBody<Value> {
    let ids = body.get("request_ids").and_then(Value::as_array).into_iter().flatten();
    let ids: Vec<&str> = ids.filter_map(Value::as_str).collect();
    // As vLLM does: the number of ids in the request, whether or not they are known.
    let aborted = if ids.is_empty() {
        state.abort(|_| true)
    } else {
        state.abort(|id| ids.contains(&id));
        ids.len()
    };
    JsonBody(json!({ "status": "aborted", "aborted": aborted }))
}

async fn collective_rpc(State(state): Shared, Body(body): Body) -> Response {
    let Some(method) = body.get("method").and_then(Value::as_str) else {
        return ApiError::bad_request("Missing 'method' in request body").into_response();
    };
    if method != "reload_weights" {
        let message = format!("Method '{method}' is not implemented.");
        return ApiError::server_error(message).into_response();
    }
    let named = body.pointer("/kwargs/weights_path").and_then(Value::as_str).map(str::to_owned);
    let Some(path) = named.or_else(|| state.lock().weights_path.clone()) else {
        let message = "no weights to reload: set weights_path";
        return ApiError::server_error(message).into_response();
    };
    state
        .update(WeightSource::Directory(&path))
        .await
        .map_or_else(IntoResponse::into_response, |_| {
            JsonBody(json!({ "results": [null] })).into_response()
        })
}

/// The error of a missing field.
fn missing(field: &str) -> Response {
    ApiError::bad_request(format!("Field required: {field}"))
        .at(format!("body.{field}"))
        .into_response()
}

async fn init_transfer(Body(body): Body) -> Response {
    match body.get("init_info") {
        None | Some(Value::Null) => missing("init_info"),
        Some(_) => JsonBody(json!({ "message": "Weight transfer initialized" })).into_response(),
    }
}

async fn start_update(State(state): Shared) -> JsonBody<Value> {
    state.lock().pending = None;
    JsonBody(json!({ "message": "Weight update started" }))
}

async fn update_weights(State(state): Shared, Body(body): Body) -> Response {
    let Some(info) = body.get("update_info").filter(|info| !info.is_null()) else {
        return missing("update_info");
    };
    let version = info.get("version").and_then(Value::as_u64);
    let next = state.gate.borrow().version + 1;
    state.lock().pending = Some(version.unwrap_or(next));
    JsonBody(json!({ "message": "Weights updated" })).into_response()
}

async fn finish_update(
    State(state): Shared,
    Body(body): Body,
) -> Result<JsonBody<Value>, ApiError> {
    let pending = state.lock().pending.take();
    if let Some(version) = pending {
        state.update(WeightSource::Sent(version)).await?;
    }
    if let Some(name) = body.get("weight_version").and_then(Value::as_str) {
        state.rename(name);
    }
    Ok(JsonBody(json!({ "message": "Weight update finished" })))
}

async fn update_version(
    State(state): Shared,
    Body(body): Body,
) -> Result<JsonBody<Value>, ApiError> {
    let name = required(&body, "new_version")?;
    state.rename(name);
    Ok(JsonBody(json!({ "success": true, "new_version": name })))
}

async fn weight_info(State(state): Shared) -> JsonBody<Value> {
    JsonBody(json!({ "weight_version": state.version_name() }))
}
