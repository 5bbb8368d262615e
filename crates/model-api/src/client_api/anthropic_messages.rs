//! The Anthropic Messages API, translated to chats.
//!
//! `request` turns blocks into messages, `stream` turns events of a chat into events of a message.

mod request;
mod stream;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use serde_json::{Value, json};

use self::stream::MessageStream;
use super::chat_form::{ChatChoice, ChatReply, ChatUsage};
use super::{ClientApi, Route, RouteMatch, StreamRenderer};
use crate::error::CallError;
use crate::model_call::ModelCall;

/// `POST /v1/messages`.
#[derive(Debug)]
pub struct AnthropicMessages;

impl ClientApi for AnthropicMessages {
    fn name(&self) -> &'static str {
        "messages"
    }

    fn routes(&self) -> &'static [Route] {
        &[Route::Call("/v1/messages"), Route::CountTokens("/v1/messages/count_tokens")]
    }

    fn key_headers(&self) -> &'static [&'static str] {
        &["x-api-key"]
    }

    fn id_prefix(&self) -> &'static str {
        "msg"
    }

    fn parse(&self, route: &RouteMatch<'_>, body: &[u8]) -> Result<ModelCall, CallError> {
        match route.route {
            Route::Call(_) => request::parse(body),
            Route::CountTokens(_) => request::parse_count(body),
        }
    }

    fn render_body(&self, _: &ModelCall, body: Bytes) -> Bytes {
        ChatReply::parse(&body).map_or(body, |reply| message(&reply).to_string().into())
    }

    fn stream_renderer(&self, _: &ModelCall) -> StreamRenderer {
        StreamRenderer::Translated(Box::new(MessageStream::default()))
    }

    fn render_error(&self, error: &CallError) -> Bytes {
        error_body(error.kind.status(), &error.message).to_string().into()
    }

    fn render_server_error(&self, status: u16, body: Bytes) -> Bytes {
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let message = body["error"]["message"].as_str().unwrap_or("the server reported an error");
        error_body(status, message).to_string().into()
    }
}

/// Returns the message of a full response.
fn message(reply: &ChatReply) -> Value {
    let mut content = Vec::new();
    let mut end = MessageEnd::default();
    if let Some(choice) = reply.choices.first() {
        if let Some(thinking) = choice.message.reasoning() {
            content.push(json!({ "type": "thinking", "thinking": thinking, "signature": "" }));
        }
        if let Some(text) = choice.message.text() {
            content.push(json!({ "type": "text", "text": text }));
        }
        for (_, call) in choice.message.tool_calls() {
            let input = serde_json::from_str(call.arguments()).unwrap_or_else(|_| json!({}));
            let (id, name) = (call.id(), call.name());
            content.push(json!({ "type": "tool_use", "id": id, "name": name, "input": input }));
            end.has_tool_calls = true;
        }
        end.take(choice);
    }
    json!({
        "id": reply.id,
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": content,
        "stop_reason": end.stop_reason(),
        "stop_sequence": end.stop_sequence,
        "usage": usage(reply.usage.unwrap_or_default()),
    })
}

/// The reason why a message ended.
#[derive(Debug, Default)]
struct MessageEnd {
    finish_reason: Option<String>,
    stop_sequence: Option<String>,
    has_tool_calls: bool,
}

impl MessageEnd {
    fn take(&mut self, choice: &ChatChoice) {
        if choice.finish_reason.is_some() {
            self.finish_reason.clone_from(&choice.finish_reason);
            self.stop_sequence =
                choice.stop_reason.as_ref().and_then(Value::as_str).map(str::to_owned);
        }
    }

    fn stop_reason(&self) -> &'static str {
        match self.finish_reason.as_deref() {
            Some("length") => "max_tokens",
            Some("content_filter") => "refusal",
            // Servers end calls of a required tool with `stop`.
            _ if self.has_tool_calls => "tool_use",
            _ if self.stop_sequence.is_some() => "stop_sequence",
            _ => "end_turn",
        }
    }
}

fn usage(usage: ChatUsage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    })
}

fn error_body(status: u16, message: &str) -> Value {
    let kind = match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        504 => "timeout_error",
        400..500 => "invalid_request_error",
        _ => "api_error",
    };
    json!({ "type": "error", "error": { "type": kind, "message": message } })
}
