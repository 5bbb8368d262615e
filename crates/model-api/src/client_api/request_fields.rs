//! Validation of the fields of an OpenAI request that the gateway relies on.

use serde_json::{Map, Value};

use crate::error::{CallError, ErrorKind};
use crate::model_call::{CallKind, CallLabels, ModelCall};

const MAX_CHOICES: u64 = 128;

type FieldCheck = fn(&RequestFields<'_>) -> Result<(), CallError>;

/// Parses the body of an OpenAI request. Refuses fields of a wrong type, and options that make the
/// tokens of the response unknown. `input` checks the messages or the prompt, `logprobs` the
/// options of log-probabilities.
pub(super) fn parse(
    kind: CallKind,
    body: &[u8],
    input: FieldCheck,
    logprobs: FieldCheck,
) -> Result<ModelCall, CallError> {
    check(kind, parse_object(body)?, input, logprobs)
}

/// Parses a body as a JSON object.
pub(super) fn parse_object(body: &[u8]) -> Result<Map<String, Value>, CallError> {
    let body: Value = serde_json::from_slice(body)
        .map_err(|error| refusal(format!("the body is not valid JSON: {error}")))?;
    match body {
        Value::Object(body) => Ok(body),
        other => Err(refusal(format!("the body must be a JSON object, not {}", a(&other)))),
    }
}

/// Checks the body of an OpenAI request, see [`parse`].
pub(super) fn check(
    kind: CallKind,
    body: Map<String, Value>,
    input: FieldCheck,
    logprobs: FieldCheck,
) -> Result<ModelCall, CallError> {
    let fields = RequestFields(&body);
    fields.text("model")?;
    input(&fields)?;
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let choices = fields.choices()?;
    fields.stream_options()?;
    logprobs(&fields)?;
    fields.boolean("return_token_ids")?;
    for name in ["max_tokens", "max_completion_tokens"] {
        fields.integer(name, 0, i64::from(i32::MAX))?;
    }
    fields.list("tools")?;
    fields.boolean("echo")?;
    fields.recordable()?;
    let call = ModelCall {
        kind,
        stream,
        choices,
        body,
        text_tools: Vec::new(),
        labels: CallLabels::default(),
        previous: None,
    };
    if call.wants("echo") && !call.only_scores() {
        let message = "echo is not supported: the response would repeat the prompt as if the model \
                       had generated it; with max_tokens 0, completions score the prompt";
        return Err(refusal(message).at("echo"));
    }
    Ok(call)
}

pub(super) fn refusal(message: impl Into<String>) -> CallError {
    CallError::new(ErrorKind::InvalidRequest, message)
}

/// Names the type of a value, with its article.
pub(super) fn a(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a number with a fraction",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

pub(super) struct RequestFields<'a>(pub(super) &'a Map<String, Value>);

impl<'a> RequestFields<'a> {
    /// Returns a field that is present and not null.
    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>, CallError> {
        self.typed(name, "a string", Value::as_str)
    }

    pub(super) fn boolean(&self, name: &str) -> Result<Option<bool>, CallError> {
        self.typed(name, "true or false", Value::as_bool)
    }

    pub(super) fn list(&self, name: &str) -> Result<Option<&'a Vec<Value>>, CallError> {
        self.typed(name, "a list", Value::as_array)
    }

    pub(super) fn typed<T>(
        &self,
        name: &str,
        wanted: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, CallError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match read(value) {
            Some(read) => Ok(Some(read)),
            None => Err(refusal(format!("{name} must be {wanted}, not {}", a(value))).at(name)),
        }
    }

    pub(super) fn integer(&self, name: &str, min: i64, max: i64) -> Result<Option<i64>, CallError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_i64() {
            Some(number) if (min..=max).contains(&number) => Ok(Some(number)),
            _ => {
                let shown = if value.is_number() { value.to_string() } else { a(value).to_owned() };
                let wanted = format!("an integer from {min} to {max}");
                Err(refusal(format!("{name} must be {wanted}, not {shown}")).at(name))
            }
        }
    }

    fn choices(&self) -> Result<u32, CallError> {
        let choices = self.integer("n", 1, MAX_CHOICES.cast_signed())?.unwrap_or(1);
        let choices = u32::try_from(choices).unwrap_or(1);
        match self.integer("best_of", 1, MAX_CHOICES.cast_signed())? {
            Some(best_of) if best_of != i64::from(choices) => Err(refusal(format!(
                "best_of is {best_of}, but n is {choices}: samples that are not returned cannot \
                 be recorded; leave best_of out"
            ))
            .at("best_of")),
            _ => Ok(choices),
        }
    }

    fn stream_options(&self) -> Result<(), CallError> {
        let Some(options) = self.typed("stream_options", "an object", Value::as_object)? else {
            return Ok(());
        };
        match options.get("include_usage") {
            None | Some(Value::Null | Value::Bool(_)) => Ok(()),
            Some(other) => {
                let at = "stream_options.include_usage";
                Err(refusal(format!("{at} must be true or false, not {}", a(other))).at(at))
            }
        }
    }

    /// Refuses options whose response does not contain the sampled tokens.
    fn recordable(&self) -> Result<(), CallError> {
        let unsupported = |name: &str, reason: &str| {
            Err(refusal(format!("{name} is not supported: {reason}")).at(name))
        };
        if self.boolean("use_beam_search")? == Some(true) {
            return unsupported("use_beam_search", "its completions are not samples of the model");
        }
        if self.boolean("include_reasoning")? == Some(false) {
            return unsupported(
                "include_reasoning",
                "servers that hide the reasoning hide all token ids",
            );
        }
        Ok(())
    }
}
