//! OpenAI's endpoints without anything that servers add; can refuse fields it does not know.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{get, post};
use http::{HeaderMap, StatusCode};
use serde_json::Value;

use super::answer::answer;
use super::ask::{self, Ask};
use super::engine::Engine;
use super::form::Form;
use super::form_vllm::{Chat, Text};
use super::refusal::Refusal;
use super::routes::{Body, models};

type Shared = State<Arc<Engine>>;

pub(super) fn router() -> Router<Arc<Engine>> {
    Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(text))
        .route("/v1/models", get(models))
        .route("/health", get(health))
}

async fn health(State(engine): Shared) -> StatusCode {
    if engine.lock().healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

async fn chat(State(engine): Shared, headers: HeaderMap, Body(body): Body) -> Response {
    let ask = known(&engine, &body, CHAT).and_then(|()| ask::chat(&engine, &headers, body));
    answer(&engine, ask, |_| Box::new(Chat { ids: false })).await
}

async fn text(State(engine): Shared, headers: HeaderMap, Body(body): Body) -> Response {
    let ask = known(&engine, &body, TEXT).and_then(|()| ask::text(&engine, &headers, body));
    let form = |_: &Ask| -> Box<dyn Form> { Box::new(Text { ids: false, offsets: Vec::new() }) };
    answer(&engine, ask, form).await
}

/// Refuses fields that the API does not have, if the server is strict.
fn known(engine: &Engine, body: &Value, fields: &[&str]) -> Result<(), Refusal> {
    let unknown = || {
        let given = body.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
        given.filter(|name| !COMMON.contains(name) && !fields.contains(name)).collect::<Vec<_>>()
    };
    match engine.options.strict.then(unknown) {
        Some(names) if !names.is_empty() => Err(Refusal::new(
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
