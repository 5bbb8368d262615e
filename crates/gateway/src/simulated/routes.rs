//! What the endpoints of all dialects share: the key at the door, bodies, the list of models.

use std::sync::Arc;

use axum::extract::{FromRequest, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use http::{StatusCode, header};
use serde_json::{Value, json};

use super::engine::Engine;
use super::options::Kind;
use super::refusal::Refusal;
use super::{openai, sglang, vllm};

/// How large a body may be.
const MAX_BODY: usize = 64 << 20;

/// All endpoints of the imitated server.
pub(super) fn router(engine: Arc<Engine>) -> Router {
    let routes = match engine.kind() {
        Kind::Vllm => vllm::router(),
        Kind::Sglang => sglang::router(),
        Kind::OpenAi => openai::router(),
    };
    routes.layer(from_fn_with_state(Arc::clone(&engine), door)).with_state(engine)
}

/// Lets in who shows the key. vLLM guards only what is below `/v1`, SGLang all but its health.
async fn door(State(engine): State<Arc<Engine>>, request: Request, next: Next) -> Response {
    engine.note(request.method(), request.uri());
    let path = request.uri().path();
    let is_guarded = match engine.kind() {
        Kind::Vllm | Kind::OpenAi => path.starts_with("/v1"),
        Kind::Sglang => !path.starts_with("/health") && !path.starts_with("/metrics"),
    };
    if let Some(key) = &engine.options.api_key
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

impl FromRequest<Arc<Engine>> for Body {
    type Rejection = Response;

    async fn from_request(request: Request, engine: &Arc<Engine>) -> Result<Self, Response> {
        let refused = |message: String| Refusal::bad(message).response(engine.kind());
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
pub(super) async fn models(State(engine): State<Arc<Engine>>) -> Json<Value> {
    let owner = match engine.kind() {
        Kind::Vllm => "vllm",
        Kind::Sglang => "sglang",
        Kind::OpenAi => "simulated",
    };
    let mut model = json!({
        "id": engine.options.model,
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": owner,
    });
    if engine.kind() != Kind::OpenAi {
        model["root"] = engine.options.model.clone().into();
        model["parent"] = Value::Null;
        model["max_model_len"] = engine.options.max_model_len.into();
    }
    Json(json!({ "object": "list", "data": [model] }))
}
