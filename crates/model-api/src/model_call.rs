//! Model calls in the internal form.

use serde::Serialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// Fields that identify one attempt at a call, not the call.
const ATTEMPT_NAMES: [&str; 2] = ["request_id", "rid"];

/// OpenAI endpoint of servers that a call is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallKind {
    Chat,
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
    pub kind: CallKind,
    pub body: Map<String, Value>,
    pub stream: bool,
    /// Number of requested choices (`n`), at least 1.
    pub choices: u32,
    /// Names of tools whose only argument is plain text in the API of the client.
    pub text_tools: Vec<String>,
    pub labels: CallLabels,
    /// Id of the recorded response that the call continues (`previous_response_id`). Its messages
    /// come before those of the call.
    pub previous: Option<String>,
}

/// Labels that a client gives a call by headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallLabels {
    /// Name of the agent, such as a sub-agent or a side task.
    pub agent: Option<String>,
    /// Id of the response from which the call originates.
    pub parent: Option<String>,
}

impl ModelCall {
    pub fn model(&self) -> Option<&str> {
        self.body.get("model").and_then(Value::as_str)
    }

    /// Identifies the body of a call. Client retries have the same fingerprint: order of keys,
    /// spaces, null instead of absent fields and request ids do not count.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(self.kind.path());
        let mut text = Vec::new();
        let fields = self
            .body
            .iter()
            .filter(|(name, value)| !value.is_null() && !ATTEMPT_NAMES.contains(&name.as_str()));
        write_object(fields, &mut text);
        for label in [&self.labels.agent, &self.labels.parent].into_iter().flatten() {
            text.push(0);
            text.extend_from_slice(label.as_bytes());
        }
        hash.update(&text);
        hash.finalize().into()
    }

    /// Returns whether the call only scores its prompt: nothing is generated, so nothing is
    /// recorded.
    pub fn only_scores(&self) -> bool {
        let is_empty = self.body.get("max_tokens").and_then(Value::as_u64) == Some(0);
        self.kind == CallKind::Completion && self.wants("echo") && is_empty && !self.stream
    }

    /// Returns whether the client requested token ids, which then stay in its response.
    pub fn wants_token_ids(&self) -> bool {
        self.wants("return_token_ids")
    }

    pub fn wants_logprobs(&self) -> bool {
        match self.body.get("logprobs") {
            Some(Value::Bool(wanted)) => *wanted,
            Some(Value::Number(_)) => true,
            _ => false,
        }
    }

    pub fn wants_usage(&self) -> bool {
        let options = self.body.get("stream_options");
        options.and_then(|options| options.get("include_usage")) == Some(&Value::Bool(true))
    }

    /// Returns whether a field is present and not null.
    pub fn has(&self, name: &str) -> bool {
        self.body.get(name).is_some_and(|value| !value.is_null())
    }

    pub fn wants(&self, name: &str) -> bool {
        self.body.get(name) == Some(&Value::Bool(true))
    }
}

/// Writes canonical JSON: sorted keys, no spaces.
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
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(value) => out.extend_from_slice(if *value { b"true" } else { b"false" }),
        Value::Number(number) => write_json(number, out),
        Value::String(text) => write_json(text, out),
    }
}

fn write_object<'a>(fields: impl Iterator<Item = (&'a String, &'a Value)>, out: &mut Vec<u8>) {
    let mut fields: Vec<_> = fields.collect();
    fields.sort_unstable_by_key(|(name, _)| name.as_str());
    out.push(b'{');
    for (name, value) in fields {
        write_json(name, out);
        out.push(b':');
        write_canonical(value, out);
        out.push(b',');
    }
    out.push(b'}');
}

fn write_json(value: &(impl Serialize + ?Sized), out: &mut Vec<u8>) {
    // Writing to memory cannot fail.
    let _ = serde_json::to_writer(out, value);
}
