//! What a request asks for, whichever endpoint it came to.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use serde_json::{Map, Value};

use super::engine::Engine;
use super::faults::chance;
use super::options::Kind;
use super::refusal::Refusal;
use super::script::{Script, ToolCall, mix};
use super::tools;

/// What a request asks for.
#[derive(Clone, Debug)]
pub(super) struct Ask {
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

impl Ask {
    /// Whether the request sets a field to true.
    pub(super) fn wants(&self, field: &str) -> bool {
        self.body.get(field).and_then(Value::as_bool).unwrap_or(false)
    }

    /// How many choices there are in all.
    pub(super) fn choices(&self) -> usize {
        self.prompts.len() * self.n as usize
    }

    /// The most tokens that an answer to a prompt may have.
    pub(super) fn limit(&self, engine: &Engine, prompt: usize) -> u32 {
        let used = u32::try_from(self.prompts[prompt].len()).unwrap_or(u32::MAX);
        let room = engine.options.max_model_len.saturating_sub(used);
        self.max_tokens.map_or(room, |max| max.min(room))
    }

    /// What is said in a choice.
    pub(super) fn script(&self, engine: &Engine, choice: usize) -> Script {
        let prompt = choice / self.n as usize;
        let number = u32::try_from(choice % self.n as usize).unwrap_or(0);
        let options = &engine.options;
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
        script.limited(self.limit(engine, prompt))
    }
}

/// Reads a chat request.
pub(super) fn chat(engine: &Engine, headers: &HeaderMap, body: Value) -> Result<Ask, Refusal> {
    let fields = object(&body)?;
    known_model(engine, fields)?;
    let messages = match fields.get("messages") {
        Some(Value::Array(messages)) if !messages.is_empty() => messages,
        Some(Value::Array(_)) => return Err(Refusal::bad("messages is empty").at("messages")),
        _ => return Err(Refusal::bad("Field required: messages is a list").at("messages")),
    };
    let offered: &[Value] = match fields.get("tools") {
        None | Some(Value::Null) => &[],
        Some(Value::Array(tools)) => tools,
        Some(_) => return Err(Refusal::bad("tools is a list").at("tools")),
    };
    let prompt = engine.template.render(messages, offered)?;
    let (tool, is_named) = tools::chosen(engine, fields, offered, &prompt)?;
    let top = number(fields, "top_logprobs", 0, 20)?.unwrap_or(0);
    let logprobs = match fields.get("logprobs") {
        None | Some(Value::Null | Value::Bool(false)) => None,
        Some(Value::Bool(true)) => Some(top),
        Some(_) => return Err(Refusal::bad("logprobs is true or false").at("logprobs")),
    };
    let id = id_of(engine, headers, fields, "chatcmpl");
    let ids = vec![id.clone()];
    let parts = Parts { path: "/v1/chat/completions", id, ids, prompts: vec![prompt], logprobs };
    let max_tokens = number(fields, "max_completion_tokens", 1, u32::MAX)?.or(number(
        fields,
        "max_tokens",
        1,
        u32::MAX,
    )?);
    let mut ask = read(engine, parts, max_tokens, &body)?;
    ask.call = tool.map(|tool| tools::call(engine, tool, &ask.prompts[0]));
    ask.is_named = is_named;
    Ok(ask)
}

/// Reads a request for a completion.
pub(super) fn text(engine: &Engine, headers: &HeaderMap, body: Value) -> Result<Ask, Refusal> {
    let fields = object(&body)?;
    known_model(engine, fields)?;
    let prompts = prompts(engine, fields.get("prompt"))?;
    let logprobs = number(fields, "logprobs", 0, 20)?;
    let id = id_of(engine, headers, fields, "cmpl");
    let ids = match engine.kind() {
        Kind::Vllm => (0..prompts.len()).map(|index| format!("{id}-{index}")).collect(),
        Kind::Sglang | Kind::OpenAi => vec![id.clone()],
    };
    let parts = Parts { path: "/v1/completions", id, ids, prompts, logprobs };
    let max_tokens = number(fields, "max_tokens", 1, u32::MAX)?.or(Some(16));
    read(engine, parts, max_tokens, &body)
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
    engine: &Engine,
    parts: Parts,
    max_tokens: Option<u32>,
    body: &Value,
) -> Result<Ask, Refusal> {
    let fields = object(body)?;
    let longest = parts.prompts.iter().map(Vec::len).max().unwrap_or(0);
    if longest >= engine.options.max_model_len as usize {
        return Err(Refusal::bad(format!(
            "This model's maximum context length is {} tokens. However, your request has {longest} \
             input tokens. Please reduce the length of the input messages.",
            engine.options.max_model_len
        )));
    }
    let stream = flag(fields, "stream")?;
    let usage = fields.get("stream_options").and_then(|options| options.get("include_usage"));
    if usage.is_some() && !stream {
        let message = "Stream options can only be defined when `stream=True`.";
        return Err(Refusal::bad(message).at("stream_options"));
    }
    Ok(Ask {
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
pub(super) fn object(body: &Value) -> Result<&Map<String, Value>, Refusal> {
    body.as_object().ok_or_else(|| Refusal::bad("the body is no JSON object"))
}

/// A whole number within bounds, if the field is there.
pub(super) fn number(
    fields: &Map<String, Value>,
    name: &str,
    min: u32,
    max: u32,
) -> Result<Option<u32>, Refusal> {
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
                Refusal::bad(message).at(name)
            }),
    }
}

fn flag(fields: &Map<String, Value>, name: &str) -> Result<bool, Refusal> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(_) => Err(Refusal::bad(format!("{name} is true or false")).at(name)),
    }
}

fn known_model(engine: &Engine, fields: &Map<String, Value>) -> Result<(), Refusal> {
    match fields.get("model") {
        None | Some(Value::Null) => Ok(()),
        // SGLang answers whatever it is called.
        Some(Value::String(_)) if engine.kind() == Kind::Sglang => Ok(()),
        Some(Value::String(name)) if *name == engine.options.model => Ok(()),
        Some(Value::String(name)) => {
            let message = format!("The model `{name}` does not exist.");
            Err(Refusal::new(StatusCode::NOT_FOUND, message).at("model"))
        }
        Some(_) => Err(Refusal::bad("model is a string").at("model")),
    }
}

/// The id of an answer: what the client calls it where the server lets it, else one that depends on
/// what was asked.
fn id_of(engine: &Engine, headers: &HeaderMap, fields: &Map<String, Value>, kind: &str) -> String {
    let given = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
    match engine.kind() {
        Kind::Vllm => {
            let header = headers.get("x-request-id").and_then(|id| id.to_str().ok());
            let id = header.map(str::to_owned).or_else(|| given("request_id"));
            format!("{kind}-{}", id.unwrap_or_else(|| engine.fresh_id()))
        }
        Kind::Sglang => given("rid").unwrap_or_else(|| engine.fresh_id()),
        Kind::OpenAi => format!("{kind}-{}", engine.fresh_id()),
    }
}

/// Prompts: a text, a list of texts, a list of ids, or a list of lists of ids.
pub(super) fn prompts(engine: &Engine, prompt: Option<&Value>) -> Result<Vec<Vec<i32>>, Refusal> {
    let tokenizer = engine.template.tokenizer;
    let refused =
        || Refusal::bad("prompt is a text, ids of tokens, or a list of them").at("prompt");
    let prompts = match prompt {
        Some(Value::String(text)) => vec![tokenizer.encode(text)],
        Some(Value::Array(items)) if items.iter().all(Value::is_number) => {
            vec![ids(engine, items)?]
        }
        Some(Value::Array(items)) => items
            .iter()
            .map(|item| match item {
                Value::String(text) => Ok(tokenizer.encode(text)),
                Value::Array(items) => ids(engine, items),
                _ => Err(refused()),
            })
            .collect::<Result<_, _>>()?,
        _ => return Err(refused()),
    };
    if prompts.iter().any(Vec::is_empty) {
        let message = "Either prompt or prompt_embeds must be provided and non-empty.";
        return Err(Refusal::bad(message).at("prompt"));
    }
    Ok(prompts)
}

/// The ids of a prompt's tokens.
fn ids(engine: &Engine, items: &[Value]) -> Result<Vec<i32>, Refusal> {
    let read = |item: &Value| {
        let id = item.as_i64().and_then(|id| i32::try_from(id).ok());
        id.filter(|id| engine.template.tokenizer.knows(*id)).ok_or_else(|| {
            Refusal::bad(format!("Token id {item} is out of vocabulary")).at("prompt")
        })
    };
    items.iter().map(read).collect()
}

pub(super) fn stops(stop: Option<&Value>) -> Result<Vec<String>, Refusal> {
    let refused = || Refusal::bad("stop is a string or a list of strings").at("stop");
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
pub(super) fn wants_tool(engine: &Engine, prompt: &[i32]) -> bool {
    let hash = prompt.iter().fold(engine.options.seed, |hash, id| mix(hash, id.abs_diff(0).into()));
    chance(mix(hash, 11), engine.options.tool_call_rate)
}
