//! A model call as the client made it.

#[cfg(test)]
mod tests;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::error::{CallError, ErrorKind};

/// How many choices a call may ask for.
const MAX_CHOICES: u64 = 128;

/// What names one attempt at a call, and not the call.
const ATTEMPT_NAMES: [&str; 2] = ["request_id", "rid"];

/// Which of the endpoints was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completion,
}

impl Kind {
    /// Where it is, below the root of a server.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completion => "/v1/completions",
        }
    }
}

/// A model call: valid as far as the gateway has to understand it. Everything else in the body is
/// passed on as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Which endpoint.
    pub kind: Kind,
    /// The body, as the client sent it.
    pub body: Map<String, Value>,
    /// Whether the client wants a stream of events.
    pub stream: bool,
    /// How many choices it wants (`n`), at least 1.
    pub choices: u32,
}

impl Call {
    /// Reads the body of a request. Wrong types of what the gateway relies on (`messages`,
    /// `prompt`, `model`, `stream`, `n`, `stream_options`, `logprobs`, ...) are refused, each with
    /// the name of the field; so is what would make the tokens of the answer unknowable.
    pub fn parse(kind: Kind, body: &[u8]) -> Result<Self, CallError> {
        let body: Value = serde_json::from_slice(body)
            .map_err(|error| refusal(format!("the body is not valid JSON: {error}")))?;
        let Value::Object(body) = body else {
            return Err(refusal(format!("the body must be a JSON object, not {}", a(&body))));
        };
        let fields = Checked(&body);
        fields.text("model")?;
        match kind {
            Kind::Chat => fields.messages()?,
            Kind::Completion => fields.prompt()?,
        }
        let stream = fields.boolean("stream")?.unwrap_or(false);
        let choices = fields.choices()?;
        fields.stream_options()?;
        fields.logprobs(kind)?;
        fields.boolean("return_token_ids")?;
        for name in ["max_tokens", "max_completion_tokens"] {
            fields.integer(name, 0, i64::from(i32::MAX))?;
        }
        fields.list("tools")?;
        fields.recordable()?;
        Ok(Self { kind, stream, choices, body })
    }

    /// The model that the client named.
    pub fn model(&self) -> Option<&str> {
        self.body.get("model").and_then(Value::as_str)
    }

    /// A number that is the same for the same request of the same run: the body without what a
    /// client's retry may change.
    ///
    /// A retry repeats its body. The order of keys and the spaces may differ, a field may be null
    /// instead of absent, and names of the single attempt (`request_id`, `rid`) are new.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(self.kind.path());
        let mut text = Vec::new();
        let fields = self
            .body
            .iter()
            .filter(|(name, value)| !value.is_null() && !ATTEMPT_NAMES.contains(&name.as_str()));
        write_object(fields, &mut text);
        hash.update(&text);
        hash.finalize().into()
    }

    /// Whether the client itself asked for token ids (`return_token_ids`), so that they are not
    /// removed from its answer.
    pub fn wants_token_ids(&self) -> bool {
        self.wants("return_token_ids")
    }

    /// Whether the client itself asked for log-probabilities.
    pub fn wants_logprobs(&self) -> bool {
        match self.body.get("logprobs") {
            Some(Value::Bool(wanted)) => *wanted,
            Some(Value::Number(_)) => true,
            _ => false,
        }
    }

    /// Whether the client itself asked for the number of tokens at the end of a stream.
    pub fn wants_usage(&self) -> bool {
        let options = self.body.get("stream_options");
        options.and_then(|options| options.get("include_usage")) == Some(&Value::Bool(true))
    }

    /// Whether a field of the body is true.
    pub fn wants(&self, name: &str) -> bool {
        self.body.get(name) == Some(&Value::Bool(true))
    }
}

fn refusal(message: impl Into<String>) -> CallError {
    CallError::new(ErrorKind::InvalidRequest, message)
}

/// Names a value's type, with its article.
fn a(value: &Value) -> &'static str {
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

/// The fields of a body, each with the check that it needs.
struct Checked<'a>(&'a Map<String, Value>);

impl<'a> Checked<'a> {
    /// A field that is there and not null.
    fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn text(&self, name: &str) -> Result<Option<&'a str>, CallError> {
        self.typed(name, "a string", Value::as_str)
    }

    fn boolean(&self, name: &str) -> Result<Option<bool>, CallError> {
        self.typed(name, "true or false", Value::as_bool)
    }

    fn list(&self, name: &str) -> Result<Option<&'a Vec<Value>>, CallError> {
        self.typed(name, "a list", Value::as_array)
    }

    fn typed<T>(
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

    fn integer(&self, name: &str, least: i64, most: i64) -> Result<Option<i64>, CallError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_i64() {
            Some(number) if (least..=most).contains(&number) => Ok(Some(number)),
            _ => {
                let told = if value.is_number() { value.to_string() } else { a(value).to_owned() };
                let wanted = format!("an integer from {least} to {most}");
                Err(refusal(format!("{name} must be {wanted}, not {told}")).at(name))
            }
        }
    }

    fn messages(&self) -> Result<(), CallError> {
        let at = "messages";
        let Some(messages) = self.list(at)? else {
            return Err(refusal("messages is missing: a chat needs at least one").at(at));
        };
        if messages.is_empty() {
            return Err(refusal("messages is empty: a chat needs at least one").at(at));
        }
        for (number, message) in messages.iter().enumerate() {
            let at = format!("messages[{number}]");
            if !message.is_object() {
                return Err(refusal(format!("{at} must be an object, not {}", a(message))).at(at));
            }
            let at = format!("{at}.role");
            match message.get("role") {
                Some(Value::String(_)) => {}
                Some(role) => {
                    return Err(refusal(format!("{at} must be a string, not {}", a(role))).at(at));
                }
                None => return Err(refusal(format!("{at} is missing")).at(at)),
            }
        }
        Ok(())
    }

    /// One prompt. The choices of an answer have one prompt, which the record relies on.
    fn prompt(&self) -> Result<(), CallError> {
        let at = "prompt";
        let prompts = match self.get(at) {
            Some(Value::String(_)) => return Ok(()),
            Some(Value::Array(prompts)) => prompts,
            Some(other) => {
                let wanted = "a string or a list of token ids";
                return Err(refusal(format!("prompt must be {wanted}, not {}", a(other))).at(at));
            }
            None => return Err(refusal("prompt is missing").at(at)),
        };
        match prompts.as_slice() {
            [] => Err(refusal("prompt is empty: it needs at least one token id").at(at)),
            [Value::String(_)] => Ok(()),
            [Value::Array(ids)] => token_ids(ids),
            [Value::String(_) | Value::Array(_), ..] => Err(refusal(format!(
                "prompt has {} prompts, but one call takes one: make a call for each",
                prompts.len()
            ))
            .at(at)),
            ids => token_ids(ids),
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

    fn logprobs(&self, kind: Kind) -> Result<(), CallError> {
        let most = i64::from(i32::MAX);
        let top = self.integer("top_logprobs", -1, most)?;
        match kind {
            Kind::Completion => self.integer("logprobs", -1, most).map(drop),
            Kind::Chat => match (self.boolean("logprobs")?, top) {
                (Some(true), _) | (_, None | Some(0)) => Ok(()),
                _ => Err(refusal("top_logprobs needs logprobs to be true").at("top_logprobs")),
            },
        }
    }

    /// Refuses what makes an answer say other tokens than the model did.
    fn recordable(&self) -> Result<(), CallError> {
        let no = |name: &str, why: &str| {
            Err(refusal(format!("{name} is not supported: {why}")).at(name))
        };
        if self.boolean("echo")? == Some(true) {
            return no("echo", "the answer would repeat the prompt as if the model had said it");
        }
        if self.boolean("use_beam_search")? == Some(true) {
            return no("use_beam_search", "its answers are not samples of the model");
        }
        if self.boolean("include_reasoning")? == Some(false) {
            return no("include_reasoning", "servers that hide the reasoning hide all token ids");
        }
        Ok(())
    }
}

fn token_ids(ids: &[Value]) -> Result<(), CallError> {
    let at = "prompt";
    if ids.is_empty() {
        return Err(refusal("prompt is empty: it needs at least one token id").at(at));
    }
    for (number, id) in ids.iter().enumerate() {
        if id.as_u64().is_none_or(|id| id > i32::MAX.cast_unsigned().into()) {
            let told = if id.is_number() { id.to_string() } else { a(id).to_owned() };
            return Err(refusal(format!("prompt[{number}] must be a token id, not {told}")).at(at));
        }
    }
    Ok(())
}

/// Writes JSON in the one form that its meaning has: keys in order, no spaces.
fn write_canonical(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Object(fields) => write_object(fields.iter(), out),
        Value::Array(items) => {
            out.push(b'[');
            for item in items {
                write_canonical(item, out);
                out.push(b',');
            }
            out.push(b']');
        }
        _ => out.extend_from_slice(value.to_string().as_bytes()),
    }
}

fn write_object<'a>(fields: impl Iterator<Item = (&'a String, &'a Value)>, out: &mut Vec<u8>) {
    let mut fields: Vec<_> = fields.collect();
    fields.sort_unstable_by_key(|(name, _)| name.as_str());
    out.push(b'{');
    for (name, value) in fields {
        write_canonical(&Value::String(name.clone()), out);
        out.push(b':');
        write_canonical(value, out);
        out.push(b',');
    }
    out.push(b'}');
}
