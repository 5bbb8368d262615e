//! What a request asks for, whichever endpoint it came to.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use rollway_base::ServerKind;
use serde_json::{Map, Value};

use super::api_error::ApiError;
use super::faults::chance;
use super::generation_state::GenerationState;
use super::script::{Script, ToolCall, mix};
use super::tools;

/// What a request asks for.
#[derive(Clone, Debug)]
pub(super) struct MockRequest {
    pub(super) path: &'static str,
    /// The id of the answer.
    pub(super) id: String,
    /// The ids that it can be aborted by.
    pub(super) ids: Vec<String>,
    pub(super) body: Arc<Value>,
    pub(super) prompts: Vec<Vec<i32>>,
    /// Choices for each prompt.
    pub(super) n: u32,
    pub(super) max_tokens: Option<u32>,
    min_tokens: u32,
    ignore_eos: bool,
    pub(super) stop: Vec<String>,
    seed: Option<i64>,
    /// How many tokens besides the one that was said are wanted with their log-probabilities; none
    /// if not even that one is.
    pub(super) logprobs: Option<u32>,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    /// The tool that is called, and whether the request names it.
    call: Option<ToolCall>,
    pub(super) is_named: bool,
}

impl MockRequest {
    /// Whether the request sets a field to true.
    pub(super) fn wants(&self, field: &str) -> bool {
        self.body.get(field).and_then(Value::as_bool).unwrap_or(false)
    }

    /// How many choices there are in all.
    pub(super) fn choices(&self) -> usize {
        self.prompts.len() * self.n as usize
    }

    /// The most tokens that an answer to a prompt may have.
    pub(super) fn limit(&self, state: &GenerationState, prompt: usize) -> u32 {
        let used = u32::try_from(self.prompts[prompt].len()).unwrap_or(u32::MAX);
        let room = state.options.max_model_len.saturating_sub(used);
        self.max_tokens.map_or(room, |max| max.min(room))
    }

    /// What is said in a choice.
    pub(super) fn script(&self, state: &GenerationState, choice: usize) -> Script {
        let prompt = choice / self.n as usize;
        let number = u32::try_from(choice % self.n as usize).unwrap_or(0);
        let options = &state.options;
        let script = Script::new(
            options.tokenizer(),
            options.lengths,
            options.seed,
            &self.prompts[prompt],
            self.seed,
            number,
        );
        let script = match &self.call {
            Some(call) => script.saying(call.clone()),
            None if self.ignore_eos => script.at_least(u32::MAX),
            None => script.at_least(self.min_tokens),
        };
        script.limited(self.limit(state, prompt))
    }
}

/// Reads a chat request.
pub(super) fn chat(
    state: &GenerationState,
    headers: &HeaderMap,
    body: Value,
) -> Result<MockRequest, ApiError> {
    let fields = object(&body)?;
    known_model(state, fields)?;
    let messages = match fields.get("messages") {
        Some(Value::Array(messages)) if !messages.is_empty() => messages,
        Some(Value::Array(_)) => {
            return Err(ApiError::bad_request("messages is empty").at("messages"));
        }
        _ => return Err(ApiError::bad_request("Field required: messages is a list").at("messages")),
    };
    let offered: &[Value] = match fields.get("tools") {
        None | Some(Value::Null) => &[],
        Some(Value::Array(tools)) => tools,
        Some(_) => return Err(ApiError::bad_request("tools is a list").at("tools")),
    };
    let prompt = state.template.render(messages, offered)?;
    let (tool, is_named) = tools::chosen(state, fields, offered, &prompt)?;
    let top = number(fields, "top_logprobs", 0, 20)?.unwrap_or(0);
    let logprobs = match fields.get("logprobs") {
        None | Some(Value::Null | Value::Bool(false)) => None,
        Some(Value::Bool(true)) => Some(top),
        Some(_) => return Err(ApiError::bad_request("logprobs is true or false").at("logprobs")),
    };
    let id = id_of(state, headers, fields, "chatcmpl");
    let ids = vec![id.clone()];
    let parts = Parts { path: "/v1/chat/completions", id, ids, prompts: vec![prompt], logprobs };
    let max_tokens = number(fields, "max_completion_tokens", 1, u32::MAX)?.or(number(
        fields,
        "max_tokens",
        1,
        u32::MAX,
    )?);
    let mut request = read(state, parts, max_tokens, &body)?;
    request.call = tool.map(|tool| tools::call(state, tool, &request.prompts[0]));
    request.is_named = is_named;
    Ok(request)
}

/// Reads a request for a completion.
pub(super) fn text(
    state: &GenerationState,
    headers: &HeaderMap,
    body: Value,
) -> Result<MockRequest, ApiError> {
    let fields = object(&body)?;
    known_model(state, fields)?;
    let prompts = prompts(state, fields.get("prompt"))?;
    let logprobs = number(fields, "logprobs", 0, 20)?;
    let id = id_of(state, headers, fields, "cmpl");
    let ids = match state.kind() {
        ServerKind::Vllm => (0..prompts.len()).map(|index| format!("{id}-{index}")).collect(),
        ServerKind::Sglang | ServerKind::Openai | ServerKind::LlamaCpp => vec![id.clone()],
    };
    let parts = Parts { path: "/v1/completions", id, ids, prompts, logprobs };
    let max_tokens = number(fields, "max_tokens", 1, u32::MAX)?.or(Some(16));
    read(state, parts, max_tokens, &body)
}

/// What differs between endpoints.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) path: &'static str,
    pub(super) id: String,
    pub(super) ids: Vec<String>,
    pub(super) prompts: Vec<Vec<i32>>,
    pub(super) logprobs: Option<u32>,
}

/// Reads what requests have in common. `body` is where the sampling parameters are.
pub(super) fn read(
    state: &GenerationState,
    parts: Parts,
    max_tokens: Option<u32>,
    body: &Value,
) -> Result<MockRequest, ApiError> {
    let fields = object(body)?;
    let longest = parts.prompts.iter().map(Vec::len).max().unwrap_or(0);
    if longest >= state.options.max_model_len as usize {
        return Err(ApiError::bad_request(format!(
            "This model's maximum context length is {} tokens. However, your request has {longest} \
             input tokens. Please reduce the length of the input messages.",
            state.options.max_model_len
        )));
    }
    let stream = flag(fields, "stream")?;
    let usage = fields.get("stream_options").and_then(|options| options.get("include_usage"));
    if usage.is_some() && !stream {
        let message = "Stream options can only be defined when `stream=True`.";
        return Err(ApiError::bad_request(message).at("stream_options"));
    }
    Ok(MockRequest {
        path: parts.path,
        id: parts.id,
        ids: parts.ids,
        prompts: parts.prompts,
        logprobs: parts.logprobs,
        n: number(fields, "n", 1, 4096)?.unwrap_or(1),
        max_tokens,
        min_tokens: number(fields, "min_tokens", 0, u32::MAX)?.unwrap_or(0),
        ignore_eos: flag(fields, "ignore_eos")?,
        stop: stops(fields.get("stop"))?,
        seed: fields.get("seed").and_then(Value::as_i64),
        stream,
        include_usage: usage.and_then(Value::as_bool).unwrap_or(false),
        call: None,
        is_named: false,
        body: Arc::new(body.clone()),
    })
}

/// The fields of a body.
pub(super) fn object(body: &Value) -> Result<&Map<String, Value>, ApiError> {
    body.as_object().ok_or_else(|| ApiError::bad_request("the body is no JSON object"))
}

/// A whole number within bounds, if the field is there.
pub(super) fn number(
    fields: &Map<String, Value>,
    name: &str,
    min: u32,
    max: u32,
) -> Result<Option<u32>, ApiError> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value
            .as_u64()
            .and_then(|value| u32::try_from(value).ok())
            .filter(|value| (min..=max).contains(value))
            .map(Some)
            .ok_or_else(|| {
                let message =
                    format!("{name} must be a whole number of at least {min}, got {value}");
                ApiError::bad_request(message).at(name)
            }),
    }
}

fn flag(fields: &Map<String, Value>, name: &str) -> Result<bool, ApiError> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(_) => Err(ApiError::bad_request(format!("{name} is true or false")).at(name)),
    }
}

fn known_model(state: &GenerationState, fields: &Map<String, Value>) -> Result<(), ApiError> {
    match fields.get("model") {
        None | Some(Value::Null) => Ok(()),
        // SGLang answers whatever it is called.
        Some(Value::String(_)) if state.kind() == ServerKind::Sglang => Ok(()),
        Some(Value::String(name)) if *name == state.options.model => Ok(()),
        Some(Value::String(name)) => {
            let message = format!("The model `{name}` does not exist.");
            Err(ApiError::new(StatusCode::NOT_FOUND, message).at("model"))
        }
        Some(_) => Err(ApiError::bad_request("model is a string").at("model")),
    }
}

/// The id of an answer: what the client calls it where the server lets it, else one that depends on
/// what was asked.
fn id_of(
    state: &GenerationState,
    headers: &HeaderMap,
    fields: &Map<String, Value>,
    kind: &str,
) -> String {
    let given = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
    match state.kind() {
        ServerKind::Vllm => {
            let header = headers.get("x-request-id").and_then(|id| id.to_str().ok());
            let id = header.map(str::to_owned).or_else(|| given("request_id"));
            format!("{kind}-{}", id.unwrap_or_else(|| state.fresh_id()))
        }
        ServerKind::Sglang => given("rid").unwrap_or_else(|| state.fresh_id()),
        ServerKind::Openai | ServerKind::LlamaCpp => format!("{kind}-{}", state.fresh_id()),
    }
}

/// Prompts: a text, a list of texts, a list of ids, or a list of lists of ids.
pub(super) fn prompts(
    state: &GenerationState,
    prompt: Option<&Value>,
) -> Result<Vec<Vec<i32>>, ApiError> {
    let tokenizer = state.template.tokenizer;
    let refused =
        || ApiError::bad_request("prompt is a text, ids of tokens, or a list of them").at("prompt");
    let prompts = match prompt {
        Some(Value::String(text)) => vec![tokenizer.encode(text)],
        Some(Value::Array(items)) if items.iter().all(Value::is_number) => {
            vec![ids(state, items)?]
        }
        Some(Value::Array(items)) => items
            .iter()
            .map(|item| match item {
                Value::String(text) => Ok(tokenizer.encode(text)),
                Value::Array(items) => ids(state, items),
                _ => Err(refused()),
            })
            .collect::<Result<_, _>>()?,
        _ => return Err(refused()),
    };
    if prompts.iter().any(Vec::is_empty) {
        let message = "Either prompt or prompt_embeds must be provided and non-empty.";
        return Err(ApiError::bad_request(message).at("prompt"));
    }
    Ok(prompts)
}

/// The ids of a prompt's tokens.
fn ids(state: &GenerationState, items: &[Value]) -> Result<Vec<i32>, ApiError> {
    let read = |item: &Value| {
        let id = item.as_i64().and_then(|id| i32::try_from(id).ok());
        id.filter(|id| state.template.tokenizer.knows(*id)).ok_or_else(|| {
            ApiError::bad_request(format!("RecordedToken id {item} is out of vocabulary"))
                .at("prompt")
        })
    };
    items.iter().map(read).collect()
}

pub(super) fn stops(stop: Option<&Value>) -> Result<Vec<String>, ApiError> {
    let refused = || ApiError::bad_request("stop is a string or a list of strings").at("stop");
    match stop {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(text)) if text.is_empty() => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![text.clone()]),
        Some(Value::Array(items)) => {
            let text =
                |item: &Value| item.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
            items.iter().map(|item| text(item).ok_or_else(refused)).collect()
        }
        Some(_) => Err(refused()),
    }
}

/// Whether the model wants to call a tool although it need not.
pub(super) fn wants_tool(state: &GenerationState, prompt: &[i32]) -> bool {
    let hash = prompt.iter().fold(state.options.seed, |hash, id| mix(hash, id.abs_diff(0).into()));
    chance(mix(hash, 11), state.options.tool_call_rate)
}
