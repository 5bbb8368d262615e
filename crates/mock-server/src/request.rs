//! Parsing of generation requests.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use serde_json::{Map, Value};

use super::api_error::ApiError;
use super::faults::chance;
use super::generation_state::GenerationState;
use super::script::{Script, ToolCall, mix};
use super::server_api::RequestIds;
use super::tools;

pub(super) const CHAT_PATH: &str = "/v1/chat/completions";
pub(super) const COMPLETION_PATH: &str = "/v1/completions";

#[derive(Clone, Debug)]
pub(super) struct MockRequest {
    pub(super) path: &'static str,
    /// Id of the response.
    pub(super) id: String,
    /// Ids by which it can be aborted.
    pub(super) abort_ids: Vec<String>,
    pub(super) body: Arc<Value>,
    pub(super) prompts: Vec<Vec<i32>>,
    /// Choices per prompt.
    pub(super) n: u32,
    pub(super) max_tokens: Option<u32>,
    min_tokens: u32,
    ignore_eos: bool,
    pub(super) stop: Vec<String>,
    seed: Option<i64>,
    /// Number of alternatives with log-probabilities. `None`: no log-probabilities at all.
    pub(super) logprobs: Option<u32>,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) call: Option<ToolCall>,
    pub(super) is_named: bool,
    /// Tokens of a prescribed text.
    pub(super) text: Option<Vec<i32>>,
}

impl MockRequest {
    /// Returns whether a field is true.
    pub(super) fn wants(&self, field: &str) -> bool {
        self.body.get(field).and_then(Value::as_bool).unwrap_or(false)
    }

    /// Returns whether the request only scores its prompts.
    pub(super) fn only_scores(&self) -> bool {
        self.path == COMPLETION_PATH && self.wants("echo") && self.max_tokens == Some(0)
    }

    pub(super) fn choices(&self) -> usize {
        self.prompts.len() * self.n as usize
    }

    /// Returns the maximum number of tokens of a completion.
    pub(super) fn limit(&self, state: &GenerationState, prompt: usize) -> u32 {
        let used = u32::try_from(self.prompts[prompt].len()).unwrap_or(u32::MAX);
        let room = state.options.max_model_len.saturating_sub(used);
        self.max_tokens.map_or(room, |max| max.min(room))
    }

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
        let script = match (&self.call, &self.text) {
            (Some(call), _) => script.with_tool_call(call.clone()),
            (None, Some(text)) => script.with_text(text.clone()),
            (None, None) if self.ignore_eos => script.at_least(u32::MAX),
            (None, None) => script.at_least(self.min_tokens),
        };
        script.limited(self.limit(state, prompt))
    }
}

pub(super) fn chat(
    state: &GenerationState,
    headers: &HeaderMap,
    body: &Value,
) -> Result<MockRequest, ApiError> {
    let fields = object(body)?;
    known_model(state, fields)?;
    let messages = match fields.get("messages") {
        Some(Value::Array(messages)) if !messages.is_empty() => messages,
        Some(Value::Array(_)) => {
            return Err(ApiError::bad_request("messages is empty").at("messages"));
        }
        _ => {
            return Err(ApiError::bad_request("Field required: messages, a list").at("messages"));
        }
    };
    let (prompt, offered) = rendered(state, fields, messages)?;
    let prompt = match fields.get("input_ids").filter(|ids| !ids.is_null()) {
        Some(Value::Array(items)) if state.api.takes_prompt_tokens() => ids(state, items)?,
        _ => prompt,
    };
    let top = number(fields, "top_logprobs", 0, 20)?.unwrap_or(0);
    let logprobs = match fields.get("logprobs") {
        None | Some(Value::Null | Value::Bool(false)) => None,
        Some(Value::Bool(true)) => Some(top),
        Some(_) => {
            return Err(ApiError::bad_request("logprobs must be true or false").at("logprobs"));
        }
    };
    let id = response_id(state, headers, fields, "chatcmpl");
    let max_tokens = match number(fields, "max_completion_tokens", 1, u32::MAX)? {
        None => number(fields, "max_tokens", 1, u32::MAX)?,
        max_tokens => max_tokens,
    };
    let mut request = parse(state, CHAT_PATH, id, vec![prompt], logprobs, max_tokens, body)?;
    tools::assign(state, fields, offered, &mut request)?;
    Ok(request)
}

/// Renders a conversation. Returns its tokens, and the offered tools.
pub(super) fn rendered<'a>(
    state: &GenerationState,
    fields: &'a Map<String, Value>,
    messages: &[Value],
) -> Result<(Vec<i32>, &'a [Value]), ApiError> {
    let offered: &[Value] = match fields.get("tools") {
        None | Some(Value::Null) => &[],
        Some(Value::Array(tools)) => tools,
        Some(_) => return Err(ApiError::bad_request("tools must be a list").at("tools")),
    };
    let is_open = fields.get("add_generation_prompt") != Some(&Value::Bool(false));
    Ok((state.template.render(messages, offered, is_open)?, offered))
}

pub(super) fn completion(
    state: &GenerationState,
    headers: &HeaderMap,
    body: &Value,
) -> Result<MockRequest, ApiError> {
    let fields = object(body)?;
    known_model(state, fields)?;
    let prompts = prompts(state, fields.get("prompt"))?;
    let logprobs = number(fields, "logprobs", 0, 20)?;
    let id = response_id(state, headers, fields, "cmpl");
    let least = if flag(fields, "echo")? { 0 } else { 1 };
    let max_tokens = number(fields, "max_tokens", least, u32::MAX)?.or(Some(16));
    parse(state, COMPLETION_PATH, id, prompts, logprobs, max_tokens, body)
}

/// Parses the fields that all endpoints share.
pub(super) fn parse(
    state: &GenerationState,
    path: &'static str,
    id: String,
    prompts: Vec<Vec<i32>>,
    logprobs: Option<u32>,
    max_tokens: Option<u32>,
    body: &Value,
) -> Result<MockRequest, ApiError> {
    let fields = object(body)?;
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    if longest >= state.options.max_model_len as usize {
        return Err(ApiError::bad_request(format!(
            "This model's maximum context length is {} tokens. However, your request has {longest} \
             input tokens. Please reduce the length of the input messages.",
            state.options.max_model_len
        )));
    }
    let abort_ids = match path {
        COMPLETION_PATH => state.api.completion_abort_ids(&id, prompts.len()),
        _ => vec![id.clone()],
    };
    let stream = flag(fields, "stream")?;
    let usage = fields.get("stream_options").and_then(|options| options.get("include_usage"));
    if usage.is_some() && !stream {
        let message = "Stream options can only be defined when `stream=True`.";
        return Err(ApiError::bad_request(message).at("stream_options"));
    }
    Ok(MockRequest {
        path,
        id,
        abort_ids,
        prompts,
        logprobs,
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
        text: None,
        body: Arc::new(body.clone()),
    })
}

pub(super) fn object(body: &Value) -> Result<&Map<String, Value>, ApiError> {
    body.as_object().ok_or_else(|| ApiError::bad_request("the body must be a JSON object"))
}

/// Parses an integer within bounds. `None`: absent.
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
        Some(_) => Err(ApiError::bad_request(format!("{name} must be true or false")).at(name)),
    }
}

pub(super) fn known_model(
    state: &GenerationState,
    fields: &Map<String, Value>,
) -> Result<(), ApiError> {
    match fields.get("model") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(_)) if state.api.accepts_any_model() => Ok(()),
        Some(Value::String(name)) if *name == state.options.model => Ok(()),
        Some(Value::String(name)) => {
            let message = format!("The model `{name}` does not exist.");
            Err(ApiError::new(StatusCode::NOT_FOUND, message).at("model"))
        }
        Some(_) => Err(ApiError::bad_request("model must be a string").at("model")),
    }
}

fn response_id(
    state: &GenerationState,
    headers: &HeaderMap,
    fields: &Map<String, Value>,
    prefix: &str,
) -> String {
    state.api.response_id(RequestIds { headers, fields }, prefix, &state.new_id())
}

/// Parses prompts: a text, a list of texts, a list of token ids, or a list of such lists.
pub(super) fn prompts(
    state: &GenerationState,
    prompt: Option<&Value>,
) -> Result<Vec<Vec<i32>>, ApiError> {
    let tokenizer = state.template.tokenizer;
    let refused = || {
        ApiError::bad_request("prompt must be a text, token ids, or a list of them").at("prompt")
    };
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

fn ids(state: &GenerationState, items: &[Value]) -> Result<Vec<i32>, ApiError> {
    let read = |item: &Value| {
        let id = item.as_i64().and_then(|id| i32::try_from(id).ok());
        id.filter(|id| state.template.tokenizer.is_valid_token(*id)).ok_or_else(|| {
            ApiError::bad_request(format!("Token id {item} is out of vocabulary")).at("prompt")
        })
    };
    items.iter().map(read).collect()
}

pub(super) fn stops(stop: Option<&Value>) -> Result<Vec<String>, ApiError> {
    let refused = || ApiError::bad_request("stop must be a string or a list of strings").at("stop");
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

/// Decides whether the model calls a tool that it may but need not call.
pub(super) fn wants_tool(state: &GenerationState, prompt: &[i32]) -> bool {
    let hash = prompt.iter().fold(state.options.seed, |hash, id| mix(hash, id.abs_diff(0).into()));
    chance(mix(hash, 11), state.options.tool_call_rate)
}
