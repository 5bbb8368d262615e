//! Events of a chat as events of a message.

use bytes::BytesMut;
use serde_json::{Value, json};

use super::{MessageEnd, error_body, usage};
use crate::client_api::StreamTranslator;
use crate::client_api::chat_form::{ChatReply, ChatUsage, ToolCallPiece};
use crate::error::CallError;
use crate::sse;

/// State of one stream. Blocks follow each other: the next one begins when the current one ends.
#[derive(Debug, Default)]
pub(super) struct MessageStream {
    has_begun: bool,
    open: Option<OpenBlock>,
    /// Index of the next block.
    next_block: u64,
    end: MessageEnd,
    usage: ChatUsage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenBlock {
    Thinking,
    Text,
    /// Position of the tool call in the message.
    ToolUse(u64),
}

impl StreamTranslator for MessageStream {
    fn event(&mut self, data: &[u8], out: &mut BytesMut) {
        let Some(chunk) = ChatReply::parse(data) else { return };
        self.begin(&chunk, out);
        if let Some(usage) = chunk.usage {
            self.usage = usage;
        }
        for choice in &chunk.choices {
            if let Some(thinking) = choice.message.reasoning() {
                let start = json!({ "type": "thinking", "thinking": "", "signature": "" });
                self.open(OpenBlock::Thinking, &start, out);
                self.delta(&json!({ "type": "thinking_delta", "thinking": thinking }), out);
            }
            if let Some(text) = choice.message.text() {
                self.open(OpenBlock::Text, &json!({ "type": "text", "text": "" }), out);
                self.delta(&json!({ "type": "text_delta", "text": text }), out);
            }
            for (position, call) in choice.message.tool_calls() {
                self.tool_call(position, call, out);
            }
            self.end.take(choice);
        }
    }

    fn finish(&mut self, out: &mut BytesMut) {
        self.begin(&ChatReply::default(), out);
        self.close(out);
        let delta = json!({
            "type": "message_delta",
            "delta": {
                "stop_reason": self.end.stop_reason(),
                "stop_sequence": self.end.stop_sequence,
            },
            "usage": usage(self.usage),
        });
        write(&delta, out);
        write(&json!({ "type": "message_stop" }), out);
    }

    fn error(&mut self, error: &CallError, out: &mut BytesMut) {
        write(&error_body(error.kind.status(), &error.message), out);
    }
}

impl MessageStream {
    fn begin(&mut self, chunk: &ChatReply, out: &mut BytesMut) {
        if self.has_begun {
            return;
        }
        self.has_begun = true;
        let message = json!({
            "id": chunk.id,
            "type": "message",
            "role": "assistant",
            "model": chunk.model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            // Servers report the usage at the end.
            "usage": usage(ChatUsage::default()),
        });
        write(&json!({ "type": "message_start", "message": message }), out);
    }

    fn tool_call(&mut self, position: u64, call: &ToolCallPiece, out: &mut BytesMut) {
        let (id, name) = (call.id(), call.name());
        let start = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
        self.open(OpenBlock::ToolUse(position), &start, out);
        self.end.has_tool_calls = true;
        let arguments = call.arguments();
        if !arguments.is_empty() {
            self.delta(&json!({ "type": "input_json_delta", "partial_json": arguments }), out);
        }
    }

    /// Makes a block the current one.
    fn open(&mut self, block: OpenBlock, start: &Value, out: &mut BytesMut) {
        if self.open == Some(block) {
            return;
        }
        self.close(out);
        self.open = Some(block);
        let index = self.next_block;
        self.next_block += 1;
        let event = json!({
            "type": "content_block_start", "index": index, "content_block": start,
        });
        write(&event, out);
    }

    fn delta(&self, delta: &Value, out: &mut BytesMut) {
        let index = self.next_block.saturating_sub(1);
        write(&json!({ "type": "content_block_delta", "index": index, "delta": delta }), out);
    }

    fn close(&mut self, out: &mut BytesMut) {
        if self.open.take().is_some() {
            let index = self.next_block.saturating_sub(1);
            write(&json!({ "type": "content_block_stop", "index": index }), out);
        }
    }
}

/// Appends an event, whose name is its type.
fn write(event: &Value, out: &mut BytesMut) {
    let name = event["type"].as_str().unwrap_or_default();
    sse::write_named_event(name, event.to_string().as_bytes(), out);
}
