//! OpenAI's endpoints without anything that servers add; can refuse fields it does not know.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{get, post};
use http::{HeaderMap, StatusCode};
use serde_json::Value;

use super::api_error::ApiError;
use super::format::Format;
use super::generation_state::GenerationState;
use super::request::{self, MockRequest};
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
}

async fn health(State(state): Shared) -> StatusCode {
    if state.lock().healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

async fn chat(State(state): Shared, headers: HeaderMap, Body(body): Body) -> Response {
    let request = known(&state, &body, CHAT).and_then(|()| request::chat(&state, &headers, body));
    respond(&state, request, |_| Box::new(Chat { ids: false })).await
}

async fn text(State(state): Shared, headers: HeaderMap, Body(body): Body) -> Response {
    let request = known(&state, &body, TEXT).and_then(|()| request::text(&state, &headers, body));
    let format =
        |_: &MockRequest| -> Box<dyn Format> { Box::new(Text { ids: false, offsets: Vec::new() }) };
    respond(&state, request, format).await
}

/// Refuses fields that the API does not have, if the server is strict.
fn known(state: &GenerationState, body: &Value, fields: &[&str]) -> Result<(), ApiError> {
    let unknown = || {
        let given = body.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
        given.filter(|name| !COMMON.contains(name) && !fields.contains(name)).collect::<Vec<_>>()
    };
    match state.options.strict.then(unknown) {
        Some(names) if !names.is_empty() => Err(ApiError::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            format!("Unexpected fields in the request: {}", names.join(", ")),
        )),
        _ => Ok(()),
    }
}

const COMMON: &[&str] = &[
    "model",
    "stream",
    "stream_options",
    "n",
    "max_tokens",
    "stop",
    "seed",
    "temperature",
    "top_p",
    "logprobs",
    "user",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
];
const CHAT: &[&str] = &[
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "top_logprobs",
    "response_format",
    "max_completion_tokens",
    "metadata",
    "store",
    "reasoning_effort",
    "service_tier",
];
const TEXT: &[&str] = &["prompt", "best_of", "echo", "suffix"];
