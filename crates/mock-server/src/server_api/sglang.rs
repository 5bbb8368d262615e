//! SGLang's endpoints.

mod format;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::StatusCode;
use rollway_net::JsonBody;
use serde_json::{Map, Value, json};

use self::format::{Chat, Generate, SglangStyle};
use super::format::CompletionFormat;
use super::{
    Body, Format, JsonResult, MockApi, RequestIds, SharedState, health, required, token_ids,
};
use crate::api_error::ApiError;
use crate::generation_state::{GenerationState, PauseMode, WeightSource};
use crate::request::{self, CHAT_PATH, MockRequest, number, object, prompts};
use crate::response::respond;

type Shared = State<SharedState>;

#[derive(Debug)]
pub(super) struct SglangMock;

impl MockApi for SglangMock {
    fn routes(&self) -> Router<SharedState> {
        Router::new()
            .route("/generate", post(generate))
            .route("/tokenize", post(tokenize))
            .route("/v1/tokenize", post(tokenize))
            .route("/v1/detokenize", post(detokenize))
            .route("/health_generate", get(health))
            .route("/metrics", get(metrics))
            .route("/get_server_info", get(server_info))
            .route("/server_info", get(server_info))
            .route("/flush_cache", get(flush).post(flush))
            .route("/get_model_info", get(model_info))
            .route("/model_info", get(model_info))
            .route("/get_weight_version", get(weight_version))
            .route("/weight_version", get(weight_version))
            .route("/update_weight_version", post(update_version))
            .route("/update_weights_from_disk", post(update_from_disk))
            .route("/init_weights_update_group", post(init_group))
            .route("/update_weights_from_distributed", post(update_from_group))
            .route("/abort_request", post(abort))
            .route("/pause_generation", post(pause))
            .route("/continue_generation", post(resume))
    }

    fn needs_key(&self, path: &str) -> bool {
        !path.starts_with("/health") && !path.starts_with("/metrics")
    }

    fn owner(&self) -> &'static str {
        "sglang"
    }

    fn accepts_any_model(&self) -> bool {
        true
    }

    fn takes_prompt_tokens(&self) -> bool {
        true
    }

    /// Fields of full chat responses are refused for streams.
    fn check(&self, _: &GenerationState, path: &str, body: &Value) -> Result<(), ApiError> {
        if path != CHAT_PATH || !is_set(body, "stream", false) {
            return Ok(());
        }
        let fields = ["return_prompt_token_ids", "return_token_ids", "return_meta_info"];
        match fields.into_iter().find(|name| is_set(body, name, false)) {
            None => Ok(()),
            Some(name) => Err(ApiError::bad_request(format!(
                "{name} is not supported with streaming. \
                 Please set stream=false when using {name}=true."
            ))),
        }
    }

    fn response_id(&self, request: RequestIds<'_>, _: &str, new_id: &str) -> String {
        request.field("rid").unwrap_or_else(|| new_id.to_owned())
    }

    /// The error is not enclosed in `error`.
    fn error_body(&self, mut error: Value) -> Value {
        error["object"] = "error".into();
        error
    }

    fn chat_format(&self, _: &MockRequest) -> Box<dyn Format> {
        Box::new(Chat::default())
    }

    fn completion_format(&self, _: &MockRequest) -> Box<dyn Format> {
        Box::new(CompletionFormat { style: SglangStyle, offsets: Vec::new() })
    }
}

async fn tokenize(State(state): Shared, Body(body): Body) -> JsonResult {
    let fields = object(&body)?;
    let tokens = match (fields.get("messages"), fields.get("prompt")) {
        (Some(Value::Array(messages)), None) => request::rendered(&state, fields, messages)?.0,
        (None, Some(Value::String(text))) => state.template.tokenizer.encode(text),
        _ => {
            let message = "Exactly one of 'prompt' or 'messages' must be provided.";
            return Err(ApiError::bad_request(message));
        }
    };
    let count = tokens.len();
    let max_model_len = state.options.max_model_len;
    Ok(JsonBody(json!({ "tokens": tokens, "count": count, "max_model_len": max_model_len })))
}

async fn detokenize(State(state): Shared, Body(body): Body) -> JsonResult {
    let ids = token_ids(&body)?;
    let is_special = |id: &i32| *id > 255;
    let is_shown = |id: &i32| body["skip_special_tokens"] == false || !is_special(id);
    let ids: Vec<i32> = ids.into_iter().filter(is_shown).collect();
    Ok(JsonBody(json!({ "text": state.template.tokenizer.decode(&ids) })))
}

async fn generate(State(state): Shared, Body(body): Body) -> Response {
    let is_list = |name: &str, of: fn(&Value) -> bool| {
        body.get(name).and_then(Value::as_array).is_some_and(|items| items.iter().all(of))
    };
    let is_batch = is_list("text", Value::is_string) || is_list("input_ids", Value::is_array);
    let request = native(&state, &body);
    let is_single = !is_batch && request.as_ref().is_ok_and(|request| request.n == 1);
    respond(&state, request, |_| Box::new(Generate::new(is_single))).await
}

/// Parses a request to `/generate`.
fn native(state: &GenerationState, body: &Value) -> Result<MockRequest, ApiError> {
    let fields = object(body)?;
    let prompt = fields.get("input_ids").or_else(|| fields.get("text"));
    let prompts = prompts(state, prompt)?;
    let empty = Map::new();
    let sampling = match fields.get("sampling_params") {
        None | Some(Value::Null) => &empty,
        Some(Value::Object(sampling)) => sampling,
        Some(_) => {
            let message = "sampling_params must be an object";
            return Err(ApiError::bad_request(message).at("sampling_params"));
        }
    };
    let top = number(fields, "top_logprobs_num", 0, 1000)?.unwrap_or(0);
    let logprobs = is_set(body, "return_logprob", false).then_some(top);
    let max_tokens = number(sampling, "max_new_tokens", 1, u32::MAX)?.unwrap_or(128);
    let id = match fields.get("rid").and_then(Value::as_str) {
        Some(id) => id.to_owned(),
        None => state.new_id(),
    };
    // The other sampling parameters have the same meaning as in OpenAI's requests.
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
    let plain = Value::Object(plain);
    request::parse(state, "/generate", id, prompts, logprobs, Some(max_tokens), &plain)
}

async fn metrics(State(state): Shared) -> String {
    let counts = *state.counts.borrow();
    let name = &state.options.model;
    let line = |metric: &str, value: u64| {
        format!("# TYPE sglang:{metric} gauge\nsglang:{metric}{{model_name=\"{name}\"}} {value}\n")
    };
    [line("num_running_reqs", counts.running), line("num_queue_reqs", counts.waiting)].concat()
}

async fn server_info(State(state): Shared) -> JsonBody<Value> {
    JsonBody(json!({
        "served_model_name": state.options.model,
        "weight_version": state.version_name(),
        "tp_size": 1,
        "dp_size": 1,
        "max_total_num_tokens": state.options.max_model_len,
        "version": "0.5.23",
    }))
}

async fn flush(State(state): Shared) -> Response {
    if state.counts.borrow().running > 0 {
        let text = "Flush cache failed, there are running requests.\n";
        return (StatusCode::BAD_REQUEST, text).into_response();
    }
    "Cache flushed.\n".into_response()
}

async fn model_info(State(state): Shared) -> JsonBody<Value> {
    let path = state.lock().weights_path.clone();
    let path = path.unwrap_or_else(|| state.options.model.clone());
    JsonBody(json!({
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

async fn weight_version(State(state): Shared) -> JsonBody<Value> {
    JsonBody(json!({ "weight_version": state.version_name() }))
}

fn is_set(body: &Value, name: &str, default: bool) -> bool {
    body.get(name).and_then(Value::as_bool).unwrap_or(default)
}

async fn update_version(State(state): Shared, Body(body): Body) -> JsonResult {
    let name = required(&body, "new_version")?;
    // As SGLang does: a new name aborts all requests by default.
    if is_set(&body, "abort_all_requests", true) {
        state.abort(|_| true);
    }
    state.rename(name);
    let message = format!("Weight version updated to {name}");
    Ok(JsonBody(json!({ "success": true, "message": message, "new_version": name })))
}

/// Replaces the weights. Waits for running requests and admits none, unless generation is paused:
/// then they continue with the new weights. `content` returns further fields of the response, given
/// the number of running requests.
async fn update(
    state: &GenerationState,
    body: &Value,
    source: WeightSource<'_>,
    content: impl FnOnce(u64) -> Value,
) -> Response {
    if is_set(body, "abort_all_requests", false) {
        state.abort(|_| true);
    }
    let paused = state.gate.borrow().frozen;
    if !paused {
        state.gate.send_modify(|gate| gate.admitting = false);
        state.wait_until_idle().await;
    }
    let running = state.counts.borrow().running;
    let outcome = state.update(source).await;
    if !paused {
        state.resume();
    }
    let message = match outcome {
        Ok(_) => {
            if let Some(name) = body.get("weight_version").and_then(Value::as_str) {
                state.rename(name);
            }
            Ok("Succeeded to update model weights.".to_owned())
        }
        Err(error) => Err(error.message),
    };
    updated(message, content(running))
}

fn updated(message: Result<String, String>, mut content: Value) -> Response {
    let status = if message.is_ok() { StatusCode::OK } else { StatusCode::BAD_REQUEST };
    content["success"] = message.is_ok().into();
    content["message"] = message.unwrap_or_else(|message| message).into();
    (status, JsonBody(content)).into_response()
}

async fn update_from_disk(State(state): Shared, Body(body): Body) -> Result<Response, ApiError> {
    let path = required(&body, "model_path")?;
    let content = |running: u64| json!({ "num_paused_requests": running });
    Ok(update(&state, &body, WeightSource::Directory(path), content).await)
}

async fn init_group() -> Response {
    updated(Ok("Succeeded to initialize custom process group.".to_owned()), json!({}))
}

async fn update_from_group(State(state): Shared, Body(body): Body) -> Response {
    // No trainer sends weights: they are the next version, or the one in the request.
    let named = body.get("weight_version").and_then(Value::as_str);
    let next = state.gate.borrow().version + 1;
    let version = named.and_then(|name| name.parse().ok()).unwrap_or(next);
    update(&state, &body, WeightSource::Sent(version), |_| json!({})).await
}

async fn abort(State(state): Shared, Body(body): Body) -> StatusCode {
    let id = body.get("rid").and_then(Value::as_str).unwrap_or_default();
    let all = is_set(&body, "abort_all", false);
    // As SGLang does: the id is a prefix of ids; an empty one matches nothing.
    state.abort(|known| all || (!id.is_empty() && known.starts_with(id)));
    StatusCode::OK
}

async fn pause(State(state): Shared, Body(body): Body) -> JsonResult {
    let mode = match body.get("mode").and_then(Value::as_str).unwrap_or("abort") {
        "abort" => PauseMode::Abort,
        "retract" | "in_place" => PauseMode::Keep,
        other => {
            let message = format!(
                "Invalid mode: '{other}'. Expected one of ['abort', 'retract', 'in_place']."
            );
            return Err(ApiError::bad_request(message).at("mode"));
        }
    };
    state.pause(mode).await;
    let message = "Generation paused successfully.";
    Ok(JsonBody(json!({ "message": message, "status": "ok" })))
}

async fn resume(State(state): Shared) -> JsonBody<Value> {
    state.resume();
    JsonBody(json!({ "message": "Generation continued successfully.", "status": "ok" }))
}
