//! What the endpoints of all dialects share: the key at the door, bodies, the list of models.

use std::sync::Arc;

use axum::extract::{FromRequest, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use http::{StatusCode, header};
use rollway_base::ServerKind;
use serde_json::{Value, json};

use super::api_error::ApiError;
use super::generation_state::GenerationState;
use super::{openai, sglang, vllm};

/// How large a body may be.
const MAX_BODY: usize = 64 << 20;

/// All endpoints of the imitated server.
pub(super) fn router(state: Arc<GenerationState>) -> Router {
    let routes = match state.kind() {
        ServerKind::Vllm => vllm::router(),
        ServerKind::Sglang => sglang::router(),
        ServerKind::Openai | ServerKind::LlamaCpp => openai::router(),
    };
    routes.layer(from_fn_with_state(Arc::clone(&state), door)).with_state(state)
}

/// Lets in who shows the key. vLLM guards only what is below `/v1`, SGLang all but its health.
async fn door(State(state): State<Arc<GenerationState>>, request: Request, next: Next) -> Response {
    state.note(request.method(), request.uri());
    let path = request.uri().path();
    let is_guarded = match state.kind() {
        ServerKind::Vllm | ServerKind::Openai | ServerKind::LlamaCpp => path.starts_with("/v1"),
        ServerKind::Sglang => !path.starts_with("/health") && !path.starts_with("/metrics"),
    };
    if let Some(key) = &state.options.api_key
        && is_guarded
    {
        let shown = request.headers().get(header::AUTHORIZATION).and_then(|it| it.to_str().ok());
        if shown.and_then(|shown| shown.strip_prefix("Bearer ")) != Some(key.as_str()) {
            let body = Json(json!({ "error": "Unauthorized" }));
            return (StatusCode::UNAUTHORIZED, body).into_response();
        }
    }
    next.run(request).await
}

/// The JSON of a request; nothing at all counts as an empty object.
#[derive(Debug)]
pub(super) struct Body(pub(super) Value);

impl FromRequest<Arc<GenerationState>> for Body {
    type Rejection = Response;

    async fn from_request(
        request: Request,
        state: &Arc<GenerationState>,
    ) -> Result<Self, Response> {
        let refused = |message: String| ApiError::bad_request(message).response(state.kind());
        let bytes = axum::body::to_bytes(request.into_body(), MAX_BODY).await;
        let bytes = bytes.map_err(|error| refused(format!("the body cannot be read: {error}")))?;
        if bytes.is_empty() {
            return Ok(Self(json!({})));
        }
        let value = serde_json::from_slice(&bytes);
        value.map(Self).map_err(|error| refused(format!("JSON decode error: {error}")))
    }
}

/// The list of models: one.
pub(super) async fn models(State(state): State<Arc<GenerationState>>) -> Json<Value> {
    let owner = match state.kind() {
        ServerKind::Vllm => "vllm",
        ServerKind::Sglang => "sglang",
        ServerKind::Openai | ServerKind::LlamaCpp => "simulated",
    };
    let mut model = json!({
        "id": state.options.model,
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": owner,
    });
    if state.kind() != ServerKind::Openai {
        model["root"] = state.options.model.clone().into();
        model["parent"] = Value::Null;
        model["max_model_len"] = state.options.max_model_len.into();
    }
    Json(json!({ "object": "list", "data": [model] }))
}
