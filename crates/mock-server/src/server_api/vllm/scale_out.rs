//! Endpoints that vLLM has when started with `--enable-scale-out`: a chat is rendered to tokens,
//! tokens are generated from tokens, and the generated tokens are parsed to a chat response.

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http::{HeaderMap, StatusCode};
use rollway_net::JsonBody;
use serde_json::{Map, Value, json};

use super::super::format::{CREATED, Format, aligned, returned_finish, returned_ids};
use super::super::{Body, JsonResult, RequestIds, SharedState};
use super::Shared;
use crate::api_error::ApiError;
use crate::generation::{Generation, Step};
use crate::generation_state::GenerationState;
use crate::request::{self, MockRequest, number, object, prompts};
use crate::response::respond;
use crate::text::{CALL, CALL_END, FIRST_WORD, Tokenizer};
use crate::tools;

const GENERATE_PATH: &str = "/inference/v1/generate";

/// Sampling parameters that chats and generation name alike.
const SAMPLING: [&str; 12] = [
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "min_tokens",
    "ignore_eos",
];

pub(super) fn routes() -> Router<SharedState> {
    Router::new()
        .route("/v1/chat/completions/render", post(render))
        .route("/v1/chat/completions/derender", post(derender))
        .route(GENERATE_PATH, post(generate))
}

fn check_enabled(state: &GenerationState) -> Result<(), ApiError> {
    if state.options.scale_out {
        return Ok(());
    }
    let message = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to \
                   enable them.";
    Err(ApiError::new(StatusCode::FORBIDDEN, message))
}

async fn render(State(state): Shared, headers: HeaderMap, Body(body): Body) -> JsonResult {
    check_enabled(&state)?;
    let request = request::chat(&state, &headers, &body)?;
    let fields = object(&body)?;
    let given = SAMPLING.into_iter().filter_map(|name| Some((name, fields.get(name)?)));
    let mut sampling: Map<String, Value> =
        given.map(|(name, value)| (name.to_owned(), value.clone())).collect();
    sampling.insert("logprobs".to_owned(), request.logprobs.into());
    sampling.insert("max_tokens".to_owned(), request.limit(&state, 0).into());
    // The real server passes on what the tools allow as a grammar.
    let tools = json!({ "tools": fields.get("tools"), "tool_choice": fields.get("tool_choice") });
    sampling.insert("extra_args".to_owned(), tools);
    Ok(JsonBody(json!({
        "request_id": request.id,
        "token_ids": request.prompts[0],
        "features": null,
        "sampling_params": sampling,
        "model": state.options.model,
        "stream": request.stream,
        "stream_options": fields.get("stream_options"),
        "priority": 0,
    })))
}

async fn generate(State(state): Shared, headers: HeaderMap, Body(body): Body) -> Response {
    let request = check_enabled(&state).and_then(|()| parse(&state, &headers, &body));
    respond(&state, request, |_| Box::new(Tokens)).await
}

fn parse(
    state: &GenerationState,
    headers: &HeaderMap,
    body: &Value,
) -> Result<MockRequest, ApiError> {
    let fields = object(body)?;
    request::known_model(state, fields)?;
    let missing = |name: &str| ApiError::bad_request(format!("Field required: {name}")).at(name);
    if !fields.get("token_ids").is_some_and(Value::is_array) {
        return Err(missing("token_ids"));
    }
    let prompts = prompts(state, fields.get("token_ids"))?;
    let sampling = fields.get("sampling_params").and_then(Value::as_object);
    let sampling = sampling.ok_or_else(|| missing("sampling_params"))?;
    let logprobs = number(sampling, "logprobs", 0, 20)?;
    let max_tokens = number(sampling, "max_tokens", 1, u32::MAX)?;
    let ids = RequestIds { headers, fields };
    let id = state.api.response_id(ids, "generate-tokens", &state.new_id());
    let mut plain = fields.clone();
    for name in SAMPLING {
        if let Some(value) = sampling.get(name) {
            plain.insert(name.to_owned(), value.clone());
        }
    }
    let plain = Value::Object(plain);
    let mut request =
        request::parse(state, GENERATE_PATH, id, prompts, logprobs, max_tokens, &plain)?;
    let empty = Map::new();
    let constraint = sampling.get("extra_args").and_then(Value::as_object).unwrap_or(&empty);
    let offered = constraint.get("tools").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    tools::assign(state, constraint, offered, &mut request)?;
    Ok(request)
}

/// Responses of `/inference/v1/generate`.
struct Tokens;

impl Tokens {
    fn choice(generation: &Generation, index: usize, steps: &[Step]) -> Value {
        let entry = |step: &Step| {
            let token = step.token.as_ref()?;
            Some(json!({
                "token_id": token.id,
                "logprob": token.logprob,
                "rank": 1,
                "top_logprobs": [],
            }))
        };
        let logprobs = generation.request.logprobs.map(|_| {
            let content: Vec<_> = aligned(generation, steps).iter().filter_map(entry).collect();
            json!({ "content": content })
        });
        let finish = returned_finish(generation, steps);
        json!({
            "index": index,
            "token_ids": returned_ids(generation, steps),
            "logprobs": logprobs,
            "finish_reason": finish.map(|finish| finish.reason),
            "stop_reason": finish.and_then(|finish| finish.stop.clone()),
            "weight_versions": finish.is_some().then(|| spans(steps)),
        })
    }

    fn envelope(generation: &Generation, choices: Vec<Value>, is_first: bool) -> Value {
        let request = &generation.request;
        let prompt = (is_first && request.wants("return_token_ids")).then(|| &request.prompts[0]);
        json!({
            "request_id": request.id,
            "output_mode": "tokens",
            "choices": choices,
            "prompt_token_ids": prompt,
        })
    }
}

/// Returns the versions of the weights as spans of tokens.
fn spans(steps: &[Step]) -> Vec<Value> {
    let tokens: Vec<_> = steps.iter().filter_map(|step| step.token.as_ref()).collect();
    let mut start = 0;
    let chunks = tokens.chunk_by(|one, next| one.version_name == next.version_name);
    chunks
        .map(|chunk| {
            let end = start + chunk.len();
            let span = json!({ "version": &*chunk[0].version_name, "start": start, "end": end });
            start = end;
            span
        })
        .collect()
}

impl Format for Tokens {
    fn steps(&mut self, generation: &Generation, steps: &[Step]) -> Vec<Value> {
        let event = |step: &Step| {
            let mut choice = Self::choice(generation, step.choice, std::slice::from_ref(step));
            // Spans cover the whole completion, which one step does not know.
            choice["weight_versions"] = Value::Null;
            Self::envelope(generation, vec![choice], step.position == 0)
        };
        steps.iter().map(event).collect()
    }

    fn full(&mut self, generation: &Generation, choices: &[Vec<Step>]) -> Value {
        let rendered = choices.iter().enumerate();
        let rendered = rendered.map(|(index, steps)| Self::choice(generation, index, steps));
        let mut body = Self::envelope(generation, rendered.collect(), true);
        body["model"] = generation.state.options.model.clone().into();
        body["created"] = CREATED.into();
        body
    }
}

async fn derender(State(state): Shared, Body(body): Body) -> Response {
    match check_enabled(&state).and_then(|()| chat_response(&state, &body)) {
        Ok(response) => JsonBody(response).into_response(),
        Err(error) => error.into_response(),
    }
}

/// Returns the chat response of generated tokens. The finish reason stays that of the generation,
/// as in the real server.
fn chat_response(state: &GenerationState, body: &Value) -> Result<Value, ApiError> {
    let generated = body.get("generate_response").unwrap_or(&Value::Null);
    let Some(choices) = generated.get("choices").and_then(Value::as_array) else {
        return Err(ApiError::bad_request("Field required: generate_response"));
    };
    if state.options.derender_fails {
        return Err(ApiError::server_error("injected fault"));
    }
    let tokenizer = state.template.tokenizer;
    let mut completion_tokens = 0;
    let mut rendered = Vec::with_capacity(choices.len());
    for choice in choices {
        let ids = choice.get("token_ids").and_then(Value::as_array).into_iter().flatten();
        let ids: Vec<i32> =
            ids.filter_map(Value::as_i64).filter_map(|id| i32::try_from(id).ok()).collect();
        if ids.is_empty() {
            let message = format!("choice {} has empty or null token_ids", choice["index"]);
            return Err(ApiError::bad_request(message));
        }
        completion_tokens += ids.len() as u64;
        rendered.push(json!({
            "index": choice["index"],
            "message": message(tokenizer, &ids, generated["request_id"].as_str()),
            "logprobs": named_logprobs(tokenizer, &choice["logprobs"]),
            "finish_reason": choice["finish_reason"],
            "stop_reason": choice["stop_reason"],
            "token_ids": null,
        }));
    }
    let prompt_tokens = body.get("prompt_tokens").and_then(Value::as_u64).unwrap_or(0);
    Ok(json!({
        "id": generated["request_id"],
        "object": "chat.completion",
        "created": CREATED,
        "model": state.options.model,
        "choices": rendered,
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
    }))
}

fn message(tokenizer: Tokenizer, ids: &[i32], request_id: Option<&str>) -> Value {
    let mut message = json!({
        "role": "assistant",
        "content": text(tokenizer, ids),
        "reasoning": null,
        "tool_calls": [],
    });
    if let Some((name, arguments)) = tool_call(tokenizer, ids) {
        let id: String =
            request_id.unwrap_or_default().chars().filter(char::is_ascii_alphanumeric).collect();
        message["content"] = Value::Null;
        message["tool_calls"] = json!([{
            "id": format!("call_{}", &id[id.len().saturating_sub(20)..]),
            "type": "function",
            "function": { "name": name, "arguments": arguments },
        }]);
    }
    message
}

/// Returns the text without special tokens.
fn text(tokenizer: Tokenizer, ids: &[i32]) -> String {
    let is_text = |id: &i32| *id < 256 || *id >= FIRST_WORD;
    tokenizer.decode(&ids.iter().copied().filter(is_text).collect::<Vec<_>>())
}

/// Returns name and arguments of a complete tool call.
fn tool_call(tokenizer: Tokenizer, ids: &[i32]) -> Option<(String, String)> {
    let start = ids.iter().position(|id| *id == CALL)?;
    let end = ids.iter().position(|id| *id == CALL_END)?;
    let text = text(tokenizer, ids.get(start + 1..end)?);
    let (name, arguments) = text.strip_prefix("{\"name\": ")?.split_once(", \"arguments\": ")?;
    let name = serde_json::from_str(name).ok()?;
    Some((name, arguments.strip_suffix('}')?.to_owned()))
}

/// Returns log-probabilities with the text of tokens in place of their ids.
fn named_logprobs(tokenizer: Tokenizer, logprobs: &Value) -> Value {
    let Some(content) = logprobs.get("content").and_then(Value::as_array) else {
        return Value::Null;
    };
    let entry = |entry: &Value| {
        let id = entry["token_id"].as_i64().and_then(|id| i32::try_from(id).ok());
        let token = tokenizer.decode(&[id.unwrap_or_default()]);
        let bytes = token.as_bytes().to_vec();
        json!({
            "token": token,
            "logprob": entry["logprob"],
            "bytes": bytes,
            "top_logprobs": [],
        })
    };
    json!({ "content": content.iter().map(entry).collect::<Vec<_>>() })
}
