//! Model calls in the internal form.

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// Fields that identify one attempt at a call, not the call.
const ATTEMPT_NAMES: [&str; 2] = ["request_id", "rid"];

/// OpenAI endpoint of servers that a call is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completion,
}

impl CallKind {
    /// Path of the endpoint, below the root of a server.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completion => "/v1/completions",
        }
    }
}

/// A model call in the internal form. The fields that the gateway relies on are valid; all other
/// fields of the body are forwarded unchanged.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelCall {
    /// Endpoint.
    pub kind: CallKind,
    /// Body of the endpoint's request; of an OpenAI client, the body that it sent.
    pub body: Map<String, Value>,
    /// Whether the client requested a stream of events.
    pub stream: bool,
    /// Number of requested choices (`n`), at least 1.
    pub choices: u32,
}

impl ModelCall {
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
