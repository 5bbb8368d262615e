//! Parsing of completion requests of both endpoints.

use std::sync::Arc;

use axum::http::{HeaderMap, StatusCode};
use rollway_tiny_model::{GenerateRequest, Generator, Vocabulary};
use serde_json::{Map, Value, json};

use super::api_error::TinyApiError;
use super::generation_thread::TinyChoice;
use super::options::TinyServerOptions;
use super::template::{encode, render};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TinyRequestKind {
    Chat,
    Text,
}

#[derive(Debug)]
pub(super) struct TinyRequest {
    pub(super) kind: TinyRequestKind,
    /// Id of the response.
    pub(super) id: String,
    /// Ids by which it can be aborted.
    pub(super) abort_ids: Vec<String>,
    pub(super) prompts: Vec<Vec<u32>>,
    /// Choices for each prompt.
    pub(super) n: usize,
    pub(super) stops: Vec<String>,
    pub(super) logprobs: bool,
    pub(super) token_ids: bool,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
}

/// Default `max_tokens` of the completions endpoint.
const DEFAULT_MAX_TOKENS: usize = 16;

/// Unsupported sampling parameters, and the values at which they have no effect.
const NEUTRAL: [(&str, &[f64]); 8] = [
    ("top_p", &[1.0]),
    ("top_k", &[-1.0, 0.0]),
    ("min_p", &[0.0]),
    ("min_tokens", &[0.0]),
    ("presence_penalty", &[0.0]),
    ("frequency_penalty", &[0.0]),
    ("repetition_penalty", &[1.0]),
    ("best_of", &[1.0]),
];

/// Unsupported parameters that must be null, false or empty.
const ABSENT: [&str; 8] = [
    "echo",
    "suffix",
    "ignore_eos",
    "logit_bias",
    "stop_token_ids",
    "prompt_logprobs",
    "include_stop_str_in_output",
    "use_beam_search",
];

/// Parses a request and its choices.
pub(super) fn read(
    kind: TinyRequestKind,
    options: &TinyServerOptions,
    headers: &HeaderMap,
    body: &Value,
    fresh: impl FnOnce() -> String,
) -> Result<(TinyRequest, Vec<TinyChoice>), TinyApiError> {
    let fields =
        body.as_object().ok_or_else(|| TinyApiError::bad("the body must be a JSON object"))?;
    known_model(options, fields)?;
    supported(fields)?;
    let vocabulary = &options.vocabulary;
    let prompts = match kind {
        TinyRequestKind::Chat => vec![chat_prompt(vocabulary, fields)?],
        TinyRequestKind::Text => text_prompts(vocabulary, fields.get("prompt"))?,
    };
    let n = number(fields, "n", 1)?.unwrap_or(1);
    let choices = n.saturating_mul(prompts.len());
    let room = options.limits.max_running;
    if choices > room {
        let message = format!("{choices} choices requested, at most {room} allowed (max_running)");
        return Err(TinyApiError::bad(message).at("n"));
    }
    let stream = flag(fields, "stream")?;
    let usage = fields.get("stream_options").and_then(|options| options.get("include_usage"));
    let (id, abort_ids) = request_ids(kind, headers, fields, prompts.len(), fresh);
    let stops = stops(present(fields, "stop"))?;
    let request = TinyRequest {
        kind,
        id,
        abort_ids,
        n,
        logprobs: logprobs(kind, fields)?,
        token_ids: flag(fields, "return_token_ids")?,
        stream,
        include_usage: usage.and_then(Value::as_bool).unwrap_or(false),
        stops,
        prompts,
    };
    let choices = choices_of(options, &request, fields)?;
    Ok((request, choices))
}

fn choices_of(
    options: &TinyServerOptions,
    request: &TinyRequest,
    fields: &Map<String, Value>,
) -> Result<Vec<TinyChoice>, TinyApiError> {
    let limit = number(fields, "max_completion_tokens", 1)?;
    let limit = limit.or(number(fields, "max_tokens", 1)?);
    let limit = limit.or(match request.kind {
        TinyRequestKind::Chat => None,
        TinyRequestKind::Text => Some(DEFAULT_MAX_TOKENS),
    });
    let temperature = read_as(fields, "temperature", "a number", Value::as_f64)?.unwrap_or(1.0);
    let seed = read_as(fields, "seed", "a whole number", |value| {
        value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned))
    })?;
    // A stop text with unknown characters never occurs.
    let tokens = |stop: &String| options.vocabulary.encode(stop).unwrap_or_else(|_| vec![u32::MAX]);
    let stops: Arc<[Vec<u32>]> = request.stops.iter().map(tokens).collect();
    let context = options.weights.shape().context;
    let generator = Generator::new(Arc::clone(&options.weights));
    let mut choices = Vec::with_capacity(request.prompts.len() * request.n);
    for prompt in &request.prompts {
        for choice in 0..request.n {
            let generate = GenerateRequest {
                prompt: prompt.clone(),
                max_tokens: limit.unwrap_or(context),
                temperature: temperature as f32,
                seed: seed.unwrap_or(0).wrapping_add(choice as u64),
                end: Vocabulary::END,
            };
            if let Some(refusal) = generator.refusal(&generate) {
                return Err(TinyApiError::bad(refusal));
            }
            let (is_seeded, stops) = (seed.is_some(), Arc::clone(&stops));
            choices.push(TinyChoice { request: generate, is_seeded, stops });
        }
    }
    Ok(choices)
}

fn known_model(
    options: &TinyServerOptions,
    fields: &Map<String, Value>,
) -> Result<(), TinyApiError> {
    match present(fields, "model").filter(|name| **name != options.model) {
        None => Ok(()),
        Some(name) => {
            let message = format!("unknown model {name}: this server has `{}`", options.model);
            Err(TinyApiError::new(StatusCode::NOT_FOUND, message).at("model"))
        }
    }
}

/// Refuses parameters that the model cannot honour.
fn supported(fields: &Map<String, Value>) -> Result<(), TinyApiError> {
    let refuse = |name: &str, value: &Value| {
        let message = format!("the tiny model does not support {name} = {value}: leave it out");
        Err(TinyApiError::bad(message).at(name))
    };
    for (name, neutral) in NEUTRAL {
        if let Some(value) = present(fields, name)
            && !value.as_f64().is_some_and(|value| neutral.contains(&value))
        {
            return refuse(name, value);
        }
    }
    for name in ABSENT {
        let value = fields.get(name).unwrap_or(&Value::Null);
        let nothing = [Value::Null, json!(false), json!([]), json!({}), json!("")];
        if !nothing.contains(value) {
            return refuse(name, value);
        }
    }
    let tools = fields.get("tools").unwrap_or(&Value::Null);
    let are_used = fields.get("tool_choice").and_then(Value::as_str) != Some("none");
    if are_used && tools.as_array().is_some_and(|tools| !tools.is_empty()) {
        return Err(
            TinyApiError::bad("the tiny model does not support tools: leave them out").at("tools")
        );
    }
    match fields.get("response_format").and_then(|format| format.get("type")) {
        None | Some(Value::Null) => Ok(()),
        Some(kind) if kind == "text" => Ok(()),
        Some(kind) => refuse("response_format", kind),
    }
}

fn chat_prompt(
    vocabulary: &Vocabulary,
    fields: &Map<String, Value>,
) -> Result<Vec<u32>, TinyApiError> {
    match fields.get("messages") {
        Some(Value::Array(messages)) if !messages.is_empty() => render(vocabulary, messages),
        _ => {
            Err(TinyApiError::bad("messages must be a list of at least one message").at("messages"))
        }
    }
}

/// Parses prompts: a text, a list of texts, token ids, or a list of lists of them. Token ids are
/// taken as they are, without a start token.
fn text_prompts(
    vocabulary: &Vocabulary,
    prompt: Option<&Value>,
) -> Result<Vec<Vec<u32>>, TinyApiError> {
    let wrong = || TinyApiError::bad("prompt must be a text, token ids, or a list of them");
    let id = |id: &Value| {
        let known = |id: &u32| (*id as usize) < vocabulary.size();
        let number = id.as_u64().and_then(|id| u32::try_from(id).ok()).filter(known);
        number.ok_or_else(|| {
            let size = vocabulary.size();
            TinyApiError::bad(format!("no token {id}: the vocabulary has {size} tokens"))
        })
    };
    let one = |prompt: &Value| match prompt {
        Value::String(text) => Ok([vec![Vocabulary::BEGIN], encode(vocabulary, text)?].concat()),
        Value::Array(ids) => ids.iter().map(id).collect(),
        _ => Err(wrong()),
    };
    let prompts = match prompt {
        Some(Value::Array(items)) if items.iter().any(|item| !item.is_number()) => {
            items.iter().map(one).collect()
        }
        Some(prompt) => one(prompt).map(|prompt| vec![prompt]),
        None => Err(wrong()),
    };
    prompts.map_err(|refusal| refusal.at("prompt"))
}

/// Returns whether log-probabilities are requested. Only those of sampled tokens exist.
fn logprobs(kind: TinyRequestKind, fields: &Map<String, Value>) -> Result<bool, TinyApiError> {
    let sampled_only = |name: &str, count: Option<usize>| match count {
        Some(2..) => {
            let message =
                "the tiny model returns log-probabilities of sampled tokens only: request 0 or 1";
            Err(TinyApiError::bad(message).at(name))
        }
        count => Ok(count.is_some()),
    };
    match kind {
        TinyRequestKind::Chat => {
            sampled_only("top_logprobs", number(fields, "top_logprobs", 0)?)?;
            flag(fields, "logprobs")
        }
        TinyRequestKind::Text => sampled_only("logprobs", number(fields, "logprobs", 0)?),
    }
}

/// Returns the id of the response and the ids for aborting, like vLLM.
fn request_ids(
    kind: TinyRequestKind,
    headers: &HeaderMap,
    fields: &Map<String, Value>,
    prompts: usize,
    fresh: impl FnOnce() -> String,
) -> (String, Vec<String>) {
    let header = headers.get("x-request-id").and_then(|id| id.to_str().ok());
    let given = header.or_else(|| fields.get("request_id").and_then(Value::as_str));
    let given = given.map_or_else(fresh, str::to_owned);
    match kind {
        TinyRequestKind::Chat => {
            let id = format!("chatcmpl-{given}");
            (id.clone(), vec![id])
        }
        TinyRequestKind::Text => {
            let id = format!("cmpl-{given}");
            let names = (0..prompts).map(|index| format!("{id}-{index}")).collect();
            (id, names)
        }
    }
}

fn stops(stop: Option<&Value>) -> Result<Vec<String>, TinyApiError> {
    let wrong = || TinyApiError::bad("stop must be a text or a list of texts").at("stop");
    let text = |item: &Value| item.as_str().map(str::to_owned).ok_or_else(wrong);
    let stops: Vec<String> = match stop {
        None => Vec::new(),
        Some(Value::Array(items)) => items.iter().map(text).collect::<Result<_, _>>()?,
        Some(item) => vec![text(item)?],
    };
    Ok(stops.into_iter().filter(|stop| !stop.is_empty()).collect())
}

/// Returns a field that is there and not null.
fn present<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null())
}

/// Reads an optional field. `expected` describes valid values.
fn read_as<T>(
    fields: &Map<String, Value>,
    name: &str,
    expected: &str,
    parse: impl FnOnce(&Value) -> Option<T>,
) -> Result<Option<T>, TinyApiError> {
    let Some(value) = present(fields, name) else { return Ok(None) };
    let invalid = || TinyApiError::bad(format!("{name} must be {expected}, got {value}")).at(name);
    parse(value).map(Some).ok_or_else(invalid)
}

fn flag(fields: &Map<String, Value>, name: &str) -> Result<bool, TinyApiError> {
    Ok(read_as(fields, name, "true or false", Value::as_bool)?.unwrap_or(false))
}

/// A whole number of at least `min`. `None`: the field is missing.
fn number(
    fields: &Map<String, Value>,
    name: &str,
    min: usize,
) -> Result<Option<usize>, TinyApiError> {
    read_as(fields, name, &format!("a whole number of at least {min}"), |value| {
        value.as_u64().and_then(|number| usize::try_from(number).ok()).filter(|it| *it >= min)
    })
}
