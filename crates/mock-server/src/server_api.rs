//! APIs of server kinds. A kind is one file here behind [`MockApi`] and one line in [`mock_api`].

mod format;
mod openai;
mod sglang;
mod vllm;

use std::fmt::Debug;
use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRequest, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::{HeaderMap, StatusCode, header};
use rollway_base::ServerKind;
use rollway_net::JsonBody;
use serde_json::{Map, Value, json};

pub(super) use self::format::{CREATED, Format};
use super::api_error::ApiError;
use super::generation_state::GenerationState;
use super::request::{self, MockRequest};
use super::response::respond;

const MAX_BODY_BYTES: usize = 64 << 20;

pub(super) type SharedState = Arc<GenerationState>;
type JsonResult = Result<JsonBody<Value>, ApiError>;

/// Differences between server kinds. The default methods are those of a plain OpenAI server.
pub(super) trait MockApi: Debug + Send + Sync {
    /// Endpoints besides chat, completions, models and health.
    fn routes(&self) -> Router<SharedState> {
        Router::new()
    }

    fn needs_key(&self, path: &str) -> bool {
        path.starts_with("/v1")
    }

    fn owner(&self) -> &'static str {
        "simulated"
    }

    /// Returns whether a failed load leaves no weights, so that the next token ends the server.
    fn loses_weights(&self) -> bool {
        false
    }

    /// Returns whether `/v1/models` names the weights and the maximum length.
    fn describes_model(&self) -> bool {
        true
    }

    /// Returns whether requests for other model names are answered too.
    fn accepts_any_model(&self) -> bool {
        false
    }

    /// Returns whether chats can have the tokens of their prompt (`input_ids`).
    fn takes_prompt_tokens(&self) -> bool {
        false
    }

    /// Refuses requests that only this kind refuses.
    fn check(&self, state: &GenerationState, path: &str, body: &Value) -> Result<(), ApiError> {
        let _ = (state, path, body);
        Ok(())
    }

    /// Returns the id of a response: the client's where the kind allows it, else a new one.
    fn response_id(&self, request: RequestIds<'_>, prefix: &str, new_id: &str) -> String {
        let _ = request;
        format!("{prefix}-{new_id}")
    }

    /// Returns the ids by which a completion of some prompts can be aborted.
    fn completion_abort_ids(&self, id: &str, prompts: usize) -> Vec<String> {
        let _ = prompts;
        vec![id.to_owned()]
    }

    /// Renders the body of an error, given its fields.
    fn error_body(&self, error: Value) -> Value {
        json!({ "error": error })
    }

    fn chat_format(&self, request: &MockRequest) -> Box<dyn Format>;

    fn completion_format(&self, request: &MockRequest) -> Box<dyn Format>;
}

/// Parts of a request that may contain an id.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestIds<'a> {
    pub(super) headers: &'a HeaderMap,
    pub(super) fields: &'a Map<String, Value>,
}

impl RequestIds<'_> {
    fn field(self, name: &str) -> Option<String> {
        self.fields.get(name).and_then(Value::as_str).map(str::to_owned)
    }
}

/// Parses the tokens of a request for their text.
fn token_ids(body: &Value) -> Result<Vec<i32>, ApiError> {
    let id = |token: &Value| token.as_i64().and_then(|id| i32::try_from(id).ok());
    let ids = body["tokens"].as_array().and_then(|tokens| tokens.iter().map(id).collect());
    ids.ok_or_else(|| ApiError::bad_request("tokens must be a list of ids").at("tokens"))
}

/// Returns the server kinds that have a mock.
pub fn mocked_kinds() -> impl Iterator<Item = ServerKind> {
    ServerKind::ALL.into_iter().filter(|kind| mock_api(*kind).is_some())
}

/// Returns the mock of a server kind. `None`: there is no mock of it.
pub(super) fn mock_api(kind: ServerKind) -> Option<&'static dyn MockApi> {
    match kind {
        ServerKind::Vllm => Some(&vllm::VllmMock),
        ServerKind::Sglang => Some(&sglang::SglangMock),
        ServerKind::Openai => Some(&openai::OpenaiMock),
        ServerKind::LlamaCpp => None,
    }
}

pub(super) fn router(state: SharedState) -> Router {
    let common = Router::new()
        .route(request::CHAT_PATH, post(chat))
        .route(request::COMPLETION_PATH, post(completion))
        .route("/v1/embeddings", post(embeddings))
        .route("/v1/models", get(models))
        .route("/health", get(health));
    let authenticate = from_fn_with_state(Arc::clone(&state), authenticate);
    let routes = common.merge(state.api.routes()).fallback(not_found);
    routes.method_not_allowed_fallback(not_allowed).layer(authenticate).with_state(state)
}

async fn not_found() -> Response {
    (StatusCode::NOT_FOUND, JsonBody(json!({ "detail": "Not Found" }))).into_response()
}

async fn not_allowed() -> Response {
    let body = JsonBody(json!({ "detail": "Method Not Allowed" }));
    (StatusCode::METHOD_NOT_ALLOWED, body).into_response()
}

async fn authenticate(State(state): State<SharedState>, request: Request, next: Next) -> Response {
    state.note(request.method(), request.uri());
    if state.options.missing_endpoints.iter().any(|path| path == request.uri().path()) {
        return not_found().await;
    }
    if let Some(key) = &state.options.api_key
        && state.api.needs_key(request.uri().path())
    {
        let sent = request.headers().get(header::AUTHORIZATION).and_then(|it| it.to_str().ok());
        if sent.and_then(|sent| sent.strip_prefix("Bearer ")) != Some(key.as_str()) {
            let body = JsonBody(json!({ "error": "Unauthorized" }));
            return (StatusCode::UNAUTHORIZED, body).into_response();
        }
    }
    let response = next.run(request).await;
    match response.extensions().get::<ApiError>() {
        Some(error) => error.render(state.api),
        None => response,
    }
}

/// JSON of a request; an empty body counts as an empty object.
#[derive(Debug)]
struct Body(Value);

impl FromRequest<SharedState> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &SharedState) -> Result<Self, ApiError> {
        let bytes = axum::body::to_bytes(request.into_body(), MAX_BODY_BYTES).await;
        let bytes = bytes
            .map_err(|error| ApiError::bad_request(format!("cannot read the body: {error}")))?;
        if bytes.is_empty() {
            return Ok(Self(json!({})));
        }
        let value = serde_json::from_slice(&bytes);
        value
            .map(Self)
            .map_err(|error| ApiError::bad_request(format!("JSON decode error: {error}")))
    }
}

async fn chat(State(state): State<SharedState>, headers: HeaderMap, Body(body): Body) -> Response {
    let request = state.api.check(&state, request::CHAT_PATH, &body);
    let request = request.and_then(|()| request::chat(&state, &headers, &body));
    respond(&state, request, |request| state.api.chat_format(request)).await
}

async fn completion(
    State(state): State<SharedState>,
    headers: HeaderMap,
    Body(body): Body,
) -> Response {
    let request = state.api.check(&state, request::COMPLETION_PATH, &body);
    let request = request.and_then(|()| request::completion(&state, &headers, &body));
    respond(&state, request, |request| state.api.completion_format(request)).await
}

/// Returns a vector for each input: the number of its tokens, and its first and last token.
async fn embeddings(State(state): State<SharedState>, Body(body): Body) -> JsonResult {
    request::known_model(&state, request::object(&body)?)?;
    let inputs = request::prompts(&state, body.get("input"))?;
    let vector = |(index, tokens): (usize, &Vec<i32>)| {
        let ends = [tokens.first(), tokens.last()].map(|token| token.copied().unwrap_or_default());
        let vector = [i32::try_from(tokens.len()).unwrap_or(i32::MAX), ends[0], ends[1]];
        json!({ "object": "embedding", "index": index, "embedding": vector.map(f64::from) })
    };
    let tokens: usize = inputs.iter().map(Vec::len).sum();
    Ok(JsonBody(json!({
        "object": "list",
        "data": inputs.iter().enumerate().map(vector).collect::<Vec<_>>(),
        "model": state.options.model,
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    })))
}

async fn models(State(state): State<SharedState>) -> JsonBody<Value> {
    let mut model = json!({
        "id": state.options.model,
        "object": "model",
        "created": CREATED,
        "owned_by": state.api.owner(),
    });
    if state.api.describes_model() {
        model["root"] = state.options.model.clone().into();
        model["parent"] = Value::Null;
        model["max_model_len"] = state.options.max_model_len.into();
    }
    JsonBody(json!({ "object": "list", "data": [model] }))
}

async fn health(State(state): State<SharedState>) -> StatusCode {
    if state.lock().healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

fn required<'a>(body: &'a Value, name: &str) -> Result<&'a str, ApiError> {
    let field = body.get(name).and_then(Value::as_str);
    field.ok_or_else(|| ApiError::bad_request(format!("Field required: {name}")).at(name))
}
