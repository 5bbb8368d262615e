//! Token ids of a prompt, which `llama-server` returns only by separate requests.

use serde_json::{Map, Value, json};

use crate::model_call::{CallKind, ModelCall};
use crate::server_api::{LookupStep, PromptLookup, ResponseParseError, UpstreamBody};

const APPLY_TEMPLATE: &str = "/apply-template";
const TOKENIZE: &str = "/tokenize";

/// Renders the chat template, then tokenizes the text, as the server does for the call itself.
pub(super) struct LlamaPromptLookup {
    kind: CallKind,
    body: Map<String, Value>,
    path: &'static str,
}

impl LlamaPromptLookup {
    pub(super) fn new(call: &ModelCall) -> Self {
        let mut body = call.body.clone();
        match call.kind {
            CallKind::Chat => {
                for name in ["stream", "stream_options", "logprobs", "top_logprobs", "n"] {
                    body.remove(name);
                }
            }
            CallKind::Completion => body.retain(|name, _| name == "prompt"),
        }
        Self { kind: call.kind, body, path: APPLY_TEMPLATE }
    }

    fn request(&mut self, path: &'static str, body: Value) -> LookupStep {
        self.path = path;
        LookupStep::Request(UpstreamBody { path, body, stream: false })
    }

    fn tokenize(&mut self, text: &str) -> LookupStep {
        let body = json!({ "content": text, "add_special": true, "parse_special": true });
        self.request(TOKENIZE, body)
    }
}

impl PromptLookup for LlamaPromptLookup {
    fn start(&mut self) -> Result<LookupStep, ResponseParseError> {
        let body = std::mem::take(&mut self.body);
        match self.kind {
            CallKind::Chat => Ok(self.request(APPLY_TEMPLATE, Value::Object(body))),
            CallKind::Completion => match body.get("prompt") {
                Some(Value::String(text)) => Ok(self.tokenize(text)),
                Some(Value::Array(ids)) => {
                    numbers(ids).map(LookupStep::Tokens).ok_or_else(several_prompts)
                }
                _ => Err(several_prompts()),
            },
        }
    }

    fn reply(&mut self, reply: &Value) -> Result<LookupStep, ResponseParseError> {
        if self.path == APPLY_TEMPLATE {
            let text = reply.get("prompt").and_then(Value::as_str);
            let text = text.ok_or_else(|| unexpected(APPLY_TEMPLATE, reply))?;
            return Ok(self.tokenize(text));
        }
        let tokens = reply.get("tokens").and_then(Value::as_array);
        let tokens = tokens.and_then(|tokens| numbers(tokens));
        tokens.map(LookupStep::Tokens).ok_or_else(|| unexpected(TOKENIZE, reply))
    }
}

/// Parses token ids. A nested list is one prompt of several.
fn numbers(list: &[Value]) -> Option<Vec<i32>> {
    let number = |value: &Value| value.as_i64().and_then(|id| i32::try_from(id).ok());
    match list {
        [Value::Array(only)] => only.iter().map(number).collect(),
        _ => list.iter().map(number).collect(),
    }
}

fn several_prompts() -> ResponseParseError {
    ResponseParseError::new("a recorded completion needs one prompt, as a text or as token ids")
}

fn unexpected(path: &str, reply_body: &Value) -> ResponseParseError {
    let shown: String = reply_body.to_string().chars().take(200).collect();
    ResponseParseError::new(format!("llama-server: {path} responded with {shown}"))
}
