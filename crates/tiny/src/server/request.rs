//! What a request asks for, whichever endpoint it came to.

use std::sync::Arc;

use axum::http::{HeaderMap, StatusCode};
use rollway_tiny_model::{GenerateRequest, Generator, Vocabulary};
use serde_json::{Map, Value, json};

use super::api_error::TinyApiError;
use super::generation_thread::TinyChoice;
use super::options::TinyServerOptions;
use super::template::{encode, render};

/// Which endpoint a request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TinyRequestKind {
    Chat,
    Text,
}

/// What a request asks for.
#[derive(Debug)]
pub(super) struct TinyRequest {
    pub(super) kind: TinyRequestKind,
    /// The id of the answer.
    pub(super) id: String,
    /// What it can be aborted by.
    pub(super) names: Vec<String>,
    pub(super) prompts: Vec<Vec<u32>>,
    /// Choices for each prompt.
    pub(super) n: usize,
    pub(super) stops: Vec<String>,
    /// Whether log-probabilities are told.
    pub(super) logprobs: bool,
    /// Whether token ids are told.
    pub(super) ids: bool,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
}

/// How long a completion may be where nobody says.
const USUAL_TEXT: usize = 16;

/// Fields that would change what is said in a way that the model does not know, and the values at
/// which they change nothing.
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

/// The same, for fields that are no numbers: nothing, or no, or empty.
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

/// Reads a request. Returns it, and its choices.
pub(super) fn read(
    kind: TinyRequestKind,
    options: &TinyServerOptions,
    headers: &HeaderMap,
    body: &Value,
    fresh: impl FnOnce() -> String,
) -> Result<(TinyRequest, Vec<TinyChoice>), TinyApiError> {
    let fields = body.as_object().ok_or_else(|| TinyApiError::bad("the body is no JSON object"))?;
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
        let message = format!("{choices} choices are wanted, of {room} at most (max_running)");
        return Err(TinyApiError::bad(message).at("n"));
    }
    let stream = flag(fields, "stream")?;
    let usage = fields.get("stream_options").and_then(|options| options.get("include_usage"));
    let (id, names) = names(kind, headers, fields, prompts.len(), fresh);
    let stops = stops(fields.get("stop"))?;
    let ask = TinyRequest {
        kind,
        id,
        names,
        n,
        logprobs: logprobs(kind, fields)?,
        ids: flag(fields, "return_token_ids")?,
        stream,
        include_usage: usage.and_then(Value::as_bool).unwrap_or(false),
        stops,
        prompts,
    };
    let choices = choices_of(options, &ask, fields)?;
    Ok((ask, choices))
}

fn choices_of(
    options: &TinyServerOptions,
    ask: &TinyRequest,
    fields: &Map<String, Value>,
) -> Result<Vec<TinyChoice>, TinyApiError> {
    let limit = number(fields, "max_completion_tokens", 1)?;
    let limit = limit.or(number(fields, "max_tokens", 1)?);
    let limit = limit.or(match ask.kind {
        TinyRequestKind::Chat => None,
        TinyRequestKind::Text => Some(USUAL_TEXT),
    });
    let temperature = float(fields, "temperature")?.unwrap_or(1.0);
    let seed = seed(fields)?;
    // What the model has no tokens for, it never says.
    let known = |stop: &String| options.vocabulary.encode(stop).unwrap_or_default();
    let stops: Arc<[Vec<u32>]> = ask.stops.iter().map(known).map(never_if_empty).collect();
    let context = options.weights.shape().context;
    let judge = Generator::new(Arc::clone(&options.weights));
    let mut choices = Vec::with_capacity(ask.prompts.len() * ask.n);
    for prompt in &ask.prompts {
        for choice in 0..ask.n {
            let request = GenerateRequest {
                prompt: prompt.clone(),
                max_tokens: limit.unwrap_or(context),
                temperature: temperature as f32,
                seed: seed.unwrap_or(0).wrapping_add(choice as u64),
                end: Vocabulary::END,
            };
            if let Some(refusal) = judge.refusal(&request) {
                return Err(TinyApiError::bad(refusal));
            }
            let (is_seeded, stops) = (seed.is_some(), Arc::clone(&stops));
            choices.push(TinyChoice { request, is_seeded, stops });
        }
    }
    Ok(choices)
}

/// No sequence ends with a token that there is not.
fn never_if_empty(tokens: Vec<u32>) -> Vec<u32> {
    if tokens.is_empty() { vec![u32::MAX] } else { tokens }
}

fn known_model(
    options: &TinyServerOptions,
    fields: &Map<String, Value>,
) -> Result<(), TinyApiError> {
    match fields.get("model") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(name)) if *name == options.model => Ok(()),
        Some(name) => {
            let message = format!("there is no model {name}, only `{}`", options.model);
            Err(TinyApiError::new(StatusCode::NOT_FOUND, message).at("model"))
        }
    }
}

/// Refuses what would be answered otherwise than the client thinks.
fn supported(fields: &Map<String, Value>) -> Result<(), TinyApiError> {
    let refuse = |name: &str, value: &Value| {
        let message = format!("{name} = {value} is not for the tiny model: leave it out");
        Err(TinyApiError::bad(message).at(name))
    };
    for (name, neutral) in NEUTRAL {
        match fields.get(name) {
            None | Some(Value::Null) => {}
            Some(value) if value.as_f64().is_some_and(|value| neutral.contains(&value)) => {}
            Some(value) => return refuse(name, value),
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
        return Err(TinyApiError::bad("the tiny model calls no tools: leave them out").at("tools"));
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
        _ => Err(TinyApiError::bad("messages is a list of one or more").at("messages")),
    }
}

/// Prompts: a text, a list of texts, a list of ids, or a list of lists of ids. Ids are taken as
/// they are, without a mark before them.
fn text_prompts(
    vocabulary: &Vocabulary,
    prompt: Option<&Value>,
) -> Result<Vec<Vec<u32>>, TinyApiError> {
    let wrong = || TinyApiError::bad("prompt is a text, ids of tokens, or a list of them");
    let id = |id: &Value| {
        let known = |id: &u32| (*id as usize) < vocabulary.size();
        let number = id.as_u64().and_then(|id| u32::try_from(id).ok()).filter(known);
        number.ok_or_else(|| {
            let size = vocabulary.size();
            TinyApiError::bad(format!("there is no token {id}: there are {size}"))
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

/// Whether log-probabilities are wanted. There are only those of what was said.
fn logprobs(kind: TinyRequestKind, fields: &Map<String, Value>) -> Result<bool, TinyApiError> {
    let alone = |name: &str, count: Option<usize>| match count {
        Some(2..) => {
            let message = "the tiny model tells the log-probability of what it said, no others";
            Err(TinyApiError::bad(message).at(name))
        }
        count => Ok(count.is_some()),
    };
    match kind {
        TinyRequestKind::Chat => {
            alone("top_logprobs", number(fields, "top_logprobs", 0)?)?;
            flag(fields, "logprobs")
        }
        TinyRequestKind::Text => alone("logprobs", number(fields, "logprobs", 0)?),
    }
}

/// The id of an answer, and what it can be aborted by, as vLLM makes them.
fn names(
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

fn seed(fields: &Map<String, Value>) -> Result<Option<u64>, TinyApiError> {
    match fields.get("seed") {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let seed = value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned));
            let wrong =
                || TinyApiError::bad(format!("seed is a whole number, got {value}")).at("seed");
            seed.map(Some).ok_or_else(wrong)
        }
    }
}

fn stops(stop: Option<&Value>) -> Result<Vec<String>, TinyApiError> {
    let wrong = || TinyApiError::bad("stop is a text or a list of texts").at("stop");
    let text = |item: &Value| item.as_str().map(str::to_owned).ok_or_else(wrong);
    let stops: Vec<String> = match stop {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(items)) => items.iter().map(text).collect::<Result<_, _>>()?,
        Some(item) => vec![text(item)?],
    };
    Ok(stops.into_iter().filter(|stop| !stop.is_empty()).collect())
}

fn flag(fields: &Map<String, Value>, name: &str) -> Result<bool, TinyApiError> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(_) => Err(TinyApiError::bad(format!("{name} is true or false")).at(name)),
    }
}

fn float(fields: &Map<String, Value>, name: &str) -> Result<Option<f64>, TinyApiError> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let wrong = || TinyApiError::bad(format!("{name} is a number, got {value}")).at(name);
            value.as_f64().map(Some).ok_or_else(wrong)
        }
    }
}

/// A whole number of at least `min`, if the field is there.
fn number(
    fields: &Map<String, Value>,
    name: &str,
    min: usize,
) -> Result<Option<usize>, TinyApiError> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
            let within = number.filter(|number| *number >= min);
            within.map(Some).ok_or_else(|| {
                let message = format!("{name} is a whole number of {min} or more, got {value}");
                TinyApiError::bad(message).at(name)
            })
        }
    }
}
