//! The OpenAI Responses API, translated to chats.
//!
//! `request` turns items into messages, `item` turns the parts of a message into output items,
//! `stream` turns events of a chat into events of a response. A call may continue a response of its
//! run by `previous_response_id`, which the gateway resolves from its recording.

mod item;
mod request;
mod stream;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use serde_json::{Value, json};

use self::stream::ResponseStream;
use super::chat_form::{ChatReply, ChatUsage};
use super::{ClientApi, Route, RouteMatch, StreamRenderer};
use crate::error::CallError;
use crate::model_call::ModelCall;

/// `POST /v1/responses`.
#[derive(Debug)]
pub struct OpenaiResponses;

impl ClientApi for OpenaiResponses {
    fn name(&self) -> &'static str {
        "responses"
    }

    fn routes(&self) -> &'static [Route] {
        &[Route::Call("/v1/responses")]
    }

    fn id_prefix(&self) -> &'static str {
        "resp"
    }

    fn parse(&self, _: &RouteMatch<'_>, body: &[u8]) -> Result<ModelCall, CallError> {
        request::parse(body)
    }

    fn render_body(&self, call: &ModelCall, body: Bytes) -> Bytes {
        let Some(reply) = ChatReply::parse(&body) else { return body };
        let mut head = ResponseHead::new(call);
        head.begin(&reply);
        let mut output = Vec::new();
        let mut finish_reason = None;
        if let Some(choice) = reply.choices.first() {
            let items = item::output_items(&choice.message, &call.text_tools);
            for (index, item) in items.iter().enumerate() {
                output.push(item.value(&head.id, index, "completed"));
            }
            finish_reason = choice.finish_reason.as_deref();
        }
        head.finished(output, finish_reason, reply.usage).to_string().into()
    }

    fn stream_renderer(&self, call: &ModelCall) -> StreamRenderer {
        StreamRenderer::Translated(Box::new(ResponseStream::new(call)))
    }
}

/// Fields of a response besides its output.
#[derive(Debug)]
struct ResponseHead {
    id: String,
    model: Option<String>,
    created: Value,
    parallel_tool_calls: bool,
    max_output_tokens: Value,
    temperature: Value,
    top_p: Value,
    previous: Option<String>,
}

impl ResponseHead {
    fn new(call: &ModelCall) -> Self {
        let field = |name: &str| call.body.get(name).cloned().unwrap_or_default();
        Self {
            id: String::new(),
            model: call.model().map(str::to_owned),
            created: Value::from(0),
            parallel_tool_calls: field("parallel_tool_calls") != false,
            max_output_tokens: field("max_tokens"),
            temperature: field("temperature"),
            top_p: field("top_p"),
            previous: call.previous.clone(),
        }
    }

    /// Takes the identity of the response from its first event.
    fn begin(&mut self, reply: &ChatReply) {
        self.id = reply.id.clone().unwrap_or_default();
        if reply.model.is_some() {
            self.model.clone_from(&reply.model);
        }
        if let Some(created) = reply.created.as_ref().filter(|created| created.is_number()) {
            self.created = created.clone();
        }
    }

    fn value(&self, status: &str, output: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": null,
            "incomplete_details": null,
            "instructions": null,
            "max_output_tokens": self.max_output_tokens,
            "metadata": {},
            "model": self.model,
            "output": output,
            "parallel_tool_calls": self.parallel_tool_calls,
            "previous_response_id": self.previous,
            "reasoning": { "effort": null, "summary": null },
            "store": false,
            "temperature": self.temperature,
            "text": { "format": { "type": "text" } },
            "tool_choice": "auto",
            "tools": [],
            "top_p": self.top_p,
            "truncation": "disabled",
            "usage": null,
        })
    }

    fn finished(
        &self,
        output: Vec<Value>,
        finish_reason: Option<&str>,
        usage: Option<ChatUsage>,
    ) -> Value {
        let incomplete = match finish_reason {
            Some("length") => Some("max_output_tokens"),
            Some("content_filter") => Some("content_filter"),
            _ => None,
        };
        let status = if incomplete.is_some() { "incomplete" } else { "completed" };
        let mut response = self.value(status, output);
        if let Some(reason) = incomplete {
            response["incomplete_details"] = json!({ "reason": reason });
        }
        let usage = usage.unwrap_or_default();
        // Clients read the details without a check.
        response["usage"] = json!({
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": { "cached_tokens": 0 },
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        });
        response
    }
}
