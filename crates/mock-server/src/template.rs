//! Chat template. A conversation that repeats a completion begins with the tokens of its prompt and
//! of the completion.

use serde_json::Value;

use super::api_error::ApiError;
use super::options::MockServerOptions;
use super::script::ToolCall;
use super::text::{ASSISTANT, BEGIN, END, SYSTEM, TOOL, TOOLS, Tokenizer, USER};

#[derive(Clone, Copy, Debug)]
pub(super) struct Template {
    pub(super) tokenizer: Tokenizer,
    /// True if completions are tokenized differently when they come back.
    drift: bool,
    /// True if the text of model turns before the last user message is removed.
    strips_turns: bool,
}

impl Template {
    pub(super) fn new(options: &MockServerOptions) -> Self {
        let MockServerOptions { drift, strips_turns, .. } = *options;
        Self { tokenizer: options.tokenizer(), drift, strips_turns }
    }

    /// Renders a conversation; up to the model's turn if `is_open`.
    pub(super) fn render(
        &self,
        messages: &[Value],
        tools: &[Value],
        is_open: bool,
    ) -> Result<Vec<i32>, ApiError> {
        let mut prompt = vec![BEGIN];
        if !tools.is_empty() {
            prompt.push(TOOLS);
            prompt.extend(self.tokenizer.encode(&Value::from(tools.to_vec()).to_string()));
            prompt.push(END);
        }
        let is_user = |message: &Value| message["role"] == "user";
        let last_user = messages.iter().rposition(is_user).unwrap_or(0);
        for (number, message) in messages.iter().enumerate() {
            let is_stripped = self.strips_turns && number < last_user;
            self.message(message, is_stripped, &mut prompt)
                .map_err(|refusal| refusal.at(format!("messages.{number}")))?;
        }
        if is_open {
            prompt.push(ASSISTANT);
        }
        Ok(prompt)
    }

    fn message(
        &self,
        message: &Value,
        is_stripped: bool,
        prompt: &mut Vec<i32>,
    ) -> Result<(), ApiError> {
        let role = message.get("role").and_then(Value::as_str);
        let text = text_of(message.get("content"))?;
        let marker = match role {
            Some("system" | "developer") => SYSTEM,
            Some("user") => USER,
            Some("tool") => TOOL,
            Some("assistant") => ASSISTANT,
            Some(other) => {
                return Err(ApiError::bad_request(format!("Unexpected message role: {other}")));
            }
            None => return Err(ApiError::bad_request("Field required: role")),
        };
        prompt.push(marker);
        let is_model = marker == ASSISTANT;
        // Templates remove the reasoning of earlier turns; here it is all of the text.
        let text = if is_model && is_stripped { String::new() } else { text };
        if is_model && self.drift {
            prompt.extend(self.tokenizer.encode_bytes(&text));
        } else {
            prompt.extend(self.tokenizer.encode(&text));
        }
        if is_model {
            let calls = message.get("tool_calls").and_then(Value::as_array);
            for call in calls.into_iter().flatten() {
                prompt.extend(self.call(call)?.tokens);
            }
        }
        prompt.push(END);
        Ok(())
    }

    fn call(&self, call: &Value) -> Result<ToolCall, ApiError> {
        let function = call.get("function").unwrap_or(&Value::Null);
        let Some(name) = function.get("name").and_then(Value::as_str) else {
            return Err(ApiError::bad_request("Field required: tool_calls.function.name"));
        };
        let arguments = match function.get("arguments") {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => "{}".to_owned(),
        };
        Ok(ToolCall::new(self.tokenizer, name, &arguments))
    }
}

/// Returns the text of a message: a string, text parts, or nothing.
fn text_of(content: Option<&Value>) -> Result<String, ApiError> {
    match content {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().map(|part| match part {
                Value::String(text) => Ok(text.as_str()),
                Value::Object(fields) => fields
                    .get("text")
                    .and_then(Value::as_str)
                    .ok_or_else(|| ApiError::bad_request("This is not a multimodal model")),
                _ => Err(ApiError::bad_request("A part of the content must be text or an object")),
            });
            texts.collect()
        }
        Some(_) => Err(ApiError::bad_request("Input should be a valid string or list: content")),
    }
}
