//! SGLang's endpoints.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::{HeaderMap, StatusCode};
use serde_json::{Map, Value, json};

use super::api_error::ApiError;
use super::format::Format;
use super::generation_state::{GenerationState, PauseMode, WeightSource};
use super::request::{self, MockRequest, Parts, number, object, prompts};
use super::response::respond;
use super::routes::{Body, models};
use super::sglang_format::{Chat, Generate, Text};

type Shared = State<Arc<GenerationState>>;

pub(super) fn router() -> Router<Arc<GenerationState>> {
    Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(text))
        .route("/v1/models", get(models))
        .route("/generate", post(generate))
        .route("/health", get(health))
        .route("/health_generate", get(health))
        .route("/metrics", get(metrics))
        .route("/get_model_info", get(model_info))
        .route("/model_info", get(model_info))
        .route("/get_server_info", get(server_info))
        .route("/server_info", get(server_info))
        .route("/get_weight_version", get(weight_version))
        .route("/weight_version", get(weight_version))
        .route("/update_weight_version", post(update_version))
        .route("/update_weights_from_disk", post(update_from_disk))
        .route("/init_weights_update_group", post(init_group))
        .route("/update_weights_from_distributed", post(update_from_group))
        .route("/abort_request", post(abort))
        .route("/flush_cache", get(flush).post(flush))
        .route("/pause_generation", post(pause))
        .route("/continue_generation", post(resume))
}

async fn chat(State(state): Shared, headers: HeaderMap, Body(body): Body) -> Response {
    let request = whole_only(&body).and_then(|()| request::chat(&state, &headers, body));
    respond(&state, request, |_| Box::new(Chat::default())).await
}

/// What is told of whole answers alone is refused for streams.
fn whole_only(body: &Value) -> Result<(), ApiError> {
    let is_set = |name: &str| body.get(name).and_then(Value::as_bool).unwrap_or(false);
    if !is_set("stream") {
        return Ok(());
    }
    let wanted = ["return_prompt_token_ids", "return_token_ids", "return_meta_info"];
    match wanted.into_iter().find(|name| is_set(name)) {
        None => Ok(()),
        Some(name) => Err(ApiError::bad_request(format!(
            "{name} is not supported with streaming. \
             Please set stream=false when using {name}=true."
        ))),
    }
}

async fn text(State(state): Shared, headers: HeaderMap, Body(body): Body) -> Response {
    let request = request::text(&state, &headers, body);
    respond(&state, request, |_| Box::new(Text::default())).await
}

async fn generate(State(state): Shared, Body(body): Body) -> Response {
    let is_list = |name: &str, of: fn(&Value) -> bool| {
        body.get(name).and_then(Value::as_array).is_some_and(|items| items.iter().all(of))
    };
    let is_batch = is_list("text", Value::is_string) || is_list("input_ids", Value::is_array);
    let request = native(&state, &body);
    let is_single = !is_batch && request.as_ref().is_ok_and(|request| request.n == 1);
    let format = |_: &MockRequest| -> Box<dyn Format> { Box::new(Generate::new(is_single)) };
    respond(&state, request, format).await
}

/// Reads a request to `/generate`.
fn native(state: &GenerationState, body: &Value) -> Result<MockRequest, ApiError> {
    let fields = object(body)?;
    let prompt = fields.get("input_ids").or_else(|| fields.get("text"));
    let prompts = prompts(state, prompt)?;
    let empty = Map::new();
    let sampling = match fields.get("sampling_params") {
        None | Some(Value::Null) => &empty,
        Some(Value::Object(sampling)) => sampling,
        Some(_) => {
            return Err(ApiError::bad_request("sampling_params is an object").at("sampling_params"));
        }
    };
    let wants = fields.get("return_logprob").and_then(Value::as_bool).unwrap_or(false);
    let top = number(fields, "top_logprobs_num", 0, 1000)?.unwrap_or(0);
    let max_tokens = number(sampling, "max_new_tokens", 1, u32::MAX)?.unwrap_or(128);
    let id = match fields.get("rid").and_then(Value::as_str) {
        Some(id) => id.to_owned(),
        None => state.fresh_id(),
    };
    let parts = Parts {
        path: "/generate",
        ids: vec![id.clone()],
        id,
        prompts,
        logprobs: wants.then_some(top),
    };
    // The rest has the same meaning under `sampling_params` as it has in OpenAI's requests.
    let mut plain = fields.clone();
    for (from, to) in [
        ("n", "n"),
        ("stop", "stop"),
        ("ignore_eos", "ignore_eos"),
        ("min_new_tokens", "min_tokens"),
        ("sampling_seed", "seed"),
    ] {
        if let Some(value) = sampling.get(from) {
            plain.insert(to.to_owned(), value.clone());
        }
    }
    request::read(state, parts, Some(max_tokens), &Value::Object(plain))
}

async fn health(State(state): Shared) -> StatusCode {
    if state.lock().healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

async fn metrics(State(state): Shared) -> String {
    let counts = *state.counts.borrow();
    let name = &state.options.model;
    let line = |metric: &str, value: u64| {
        format!("# TYPE sglang:{metric} gauge\nsglang:{metric}{{model_name=\"{name}\"}} {value}\n")
    };
    [line("num_running_reqs", counts.running), line("num_queue_reqs", counts.waiting)].concat()
}

async fn model_info(State(state): Shared) -> Json<Value> {
    let path = state.lock().weights_path.clone();
    let path = path.unwrap_or_else(|| state.options.model.clone());
    Json(json!({
        "model_path": path,
        "tokenizer_path": state.options.model,
        "is_generation": true,
        "preferred_sampling_params": null,
        "weight_version": state.version_name(),
        "has_image_understanding": false,
        "has_audio_understanding": false,
        "model_type": "simulated",
        "architectures": null,
    }))
}

async fn server_info(State(state): Shared) -> Json<Value> {
    Json(json!({
        "served_model_name": state.options.model,
        "weight_version": state.version_name(),
        "tp_size": 1,
        "dp_size": 1,
        "max_total_num_tokens": state.options.max_model_len,
        "version": "0.5.23",
    }))
}

async fn weight_version(State(state): Shared) -> Json<Value> {
    Json(json!({ "weight_version": state.version_name() }))
}

/// Whether a field is set, given what it is if it is not there.
fn set(body: &Value, name: &str, default: bool) -> bool {
    body.get(name).and_then(Value::as_bool).unwrap_or(default)
}

async fn update_version(State(state): Shared, Body(body): Body) -> Response {
    let Some(name) = body.get("new_version").and_then(Value::as_str) else {
        let refusal = ApiError::bad_request("Field required: new_version").at("new_version");
        return refusal.response(state.kind());
    };
    // A name alone ends all answers, unless the caller knows to say that it should not.
    if set(&body, "abort_all_requests", true) {
        state.abort(|_| true);
    }
    state.rename(name);
    Json(json!({
        "success": true,
        "message": format!("Weight version updated to {name}"),
        "new_version": name,
    }))
    .into_response()
}

/// Replaces the weights, then says so. While answers are given this waits for their end and begins
/// none, unless generation is paused: then they go on with the new weights.
async fn update(
    state: &GenerationState,
    body: &Value,
    from: WeightSource<'_>,
) -> (bool, String, u64) {
    if set(body, "abort_all_requests", false) {
        state.abort(|_| true);
    }
    let paused = state.gate.borrow().frozen;
    if !paused {
        state.gate.send_modify(|gate| gate.admitting = false);
        state.idle().await;
    }
    let running = state.counts.borrow().running;
    let done = state.update(from).await;
    if !paused {
        state.resume();
    }
    match done {
        Ok(_) => {
            if let Some(name) = body.get("weight_version").and_then(Value::as_str) {
                state.rename(name);
            }
            (true, "Succeeded to update model weights.".to_owned(), running)
        }
        Err(refusal) => (false, refusal.message, running),
    }
}

fn updated(success: bool, mut content: Value, message: String) -> Response {
    content["success"] = success.into();
    content["message"] = message.into();
    let status = if success { StatusCode::OK } else { StatusCode::BAD_REQUEST };
    (status, Json(content)).into_response()
}

async fn update_from_disk(State(state): Shared, Body(body): Body) -> Response {
    let Some(path) = body.get("model_path").and_then(Value::as_str) else {
        let refusal = ApiError::bad_request("Field required: model_path").at("model_path");
        return refusal.response(state.kind());
    };
    let (success, message, paused) = update(&state, &body, WeightSource::Directory(path)).await;
    updated(success, json!({ "num_paused_requests": paused }), message)
}

async fn init_group() -> Response {
    let message = "Succeeded to initialize custom process group.".to_owned();
    updated(true, json!({}), message)
}

async fn update_from_group(State(state): Shared, Body(body): Body) -> Response {
    // There is no other end that could send weights: they are the next version, or the one named.
    let named = body.get("weight_version").and_then(Value::as_str);
    let next = state.gate.borrow().version + 1;
    let version = named.and_then(|name| name.parse().ok()).unwrap_or(next);
    let (success, message, _) = update(&state, &body, WeightSource::Sent(version)).await;
    updated(success, json!({}), message)
}

async fn abort(State(state): Shared, Body(body): Body) -> StatusCode {
    let id = body.get("rid").and_then(Value::as_str).unwrap_or_default();
    let all = set(&body, "abort_all", false);
    // SGLang takes the id as the beginning of ids; an empty one means nobody.
    state.abort(|known| all || (!id.is_empty() && known.starts_with(id)));
    StatusCode::OK
}

async fn flush(State(state): Shared) -> Response {
    if state.counts.borrow().running > 0 {
        let text = "Flush cache failed, there are running requests.\n";
        return (StatusCode::BAD_REQUEST, text).into_response();
    }
    "Cache flushed.\n".into_response()
}

async fn pause(State(state): Shared, Body(body): Body) -> Response {
    let how = match body.get("mode").and_then(Value::as_str).unwrap_or("abort") {
        "abort" => PauseMode::Abort,
        "retract" | "in_place" => PauseMode::Keep,
        other => {
            let message = format!(
                "Invalid mode: '{other}'. Expected one of ['abort', 'retract', 'in_place']."
            );
            return ApiError::bad_request(message).at("mode").response(state.kind());
        }
    };
    state.pause(how).await;
    let message = "Generation paused successfully.";
    Json(json!({ "message": message, "status": "ok" })).into_response()
}

async fn resume(State(state): Shared) -> Json<Value> {
    state.resume();
    Json(json!({ "message": "Generation continued successfully.", "status": "ok" }))
}
