//! Events of a chat as events of a response.

use bytes::BytesMut;
use serde_json::{Value, json};

use super::ResponseHead;
use super::item::{ItemToolCall, OutputItem, text_part};
use crate::client_api::StreamTranslator;
use crate::client_api::chat_form::{ChatReply, ChatUsage, ToolCallPiece};
use crate::error::CallError;
use crate::model_call::ModelCall;
use crate::sse;

/// State of one stream. Items follow each other: the next one begins when the current one ends.
#[derive(Debug)]
pub(super) struct ResponseStream {
    head: ResponseHead,
    text_tools: Vec<String>,
    has_begun: bool,
    /// Number of the next event.
    sequence: u64,
    open: Option<OutputItem>,
    output: Vec<Value>,
    finish_reason: Option<String>,
    usage: Option<ChatUsage>,
}

impl StreamTranslator for ResponseStream {
    fn event(&mut self, data: &[u8], out: &mut BytesMut) {
        let Some(chunk) = ChatReply::parse(data) else { return };
        self.begin(&chunk, out);
        if chunk.usage.is_some() {
            self.usage = chunk.usage;
        }
        for choice in &chunk.choices {
            if let Some(text) = choice.message.reasoning() {
                self.reasoning(text, out);
            }
            if let Some(text) = choice.message.text() {
                self.text(text, out);
            }
            for (position, call) in choice.message.tool_calls() {
                self.tool_call(position, call, out);
            }
            if choice.finish_reason.is_some() {
                self.finish_reason.clone_from(&choice.finish_reason);
            }
        }
    }

    fn finish(&mut self, out: &mut BytesMut) {
        self.begin(&ChatReply::default(), out);
        self.close(out);
        let output = std::mem::take(&mut self.output);
        let response = self.head.finished(output, self.finish_reason.as_deref(), self.usage);
        let name = format!("response.{}", response["status"].as_str().unwrap_or_default());
        self.write(&name, json!({ "response": response }), out);
    }

    fn error(&mut self, error: &CallError, out: &mut BytesMut) {
        self.begin(&ChatReply::default(), out);
        let mut response = self.head.value("failed", std::mem::take(&mut self.output));
        response["error"] = json!({ "code": "server_error", "message": error.message });
        self.write("response.failed", json!({ "response": response }), out);
    }
}

impl ResponseStream {
    pub(super) fn new(call: &ModelCall) -> Self {
        Self {
            head: ResponseHead::new(call),
            text_tools: call.text_tools.clone(),
            has_begun: false,
            sequence: 0,
            open: None,
            output: Vec::new(),
            finish_reason: None,
            usage: None,
        }
    }

    fn begin(&mut self, chunk: &ChatReply, out: &mut BytesMut) {
        if self.has_begun {
            return;
        }
        self.has_begun = true;
        self.head.begin(chunk);
        let response = self.head.value("in_progress", Vec::new());
        self.write("response.created", json!({ "response": response }), out);
        self.write("response.in_progress", json!({ "response": response }), out);
    }

    fn reasoning(&mut self, piece: &str, out: &mut BytesMut) {
        if !matches!(self.open, Some(OutputItem::Reasoning(_))) {
            self.open(OutputItem::Reasoning(String::new()), out);
        }
        if let Some(OutputItem::Reasoning(text)) = &mut self.open {
            text.push_str(piece);
        }
        self.write_part("response.reasoning_text.delta", json!({ "delta": piece }), out);
    }

    fn text(&mut self, piece: &str, out: &mut BytesMut) {
        if !matches!(self.open, Some(OutputItem::Message(_))) {
            self.open(OutputItem::Message(String::new()), out);
            self.write_part("response.content_part.added", json!({ "part": text_part("") }), out);
        }
        if let Some(OutputItem::Message(text)) = &mut self.open {
            text.push_str(piece);
        }
        let delta = json!({ "delta": piece, "logprobs": [] });
        self.write_part("response.output_text.delta", delta, out);
    }

    fn tool_call(&mut self, position: u64, piece: &ToolCallPiece, out: &mut BytesMut) {
        let is_open = matches!(&self.open,
            Some(OutputItem::ToolCall(call)) if call.position == position);
        if !is_open {
            let call = ItemToolCall::new(position, piece, &self.text_tools);
            self.open(OutputItem::ToolCall(call), out);
        }
        let Some(OutputItem::ToolCall(call)) = &mut self.open else { return };
        call.push(piece.arguments());
        // The text of a custom tool is known when its arguments are complete.
        if !call.is_text && !piece.arguments().is_empty() {
            let delta = json!({ "delta": piece.arguments() });
            self.write_item("response.function_call_arguments.delta", delta, out);
        }
    }

    /// Begins an item.
    fn open(&mut self, item: OutputItem, out: &mut BytesMut) {
        self.close(out);
        let index = self.output.len();
        let value = item.value(&self.head.id, index, "in_progress");
        self.open = Some(item);
        let added = json!({ "output_index": index, "item": value });
        self.write("response.output_item.added", added, out);
    }

    /// Ends the current item.
    fn close(&mut self, out: &mut BytesMut) {
        let index = self.output.len();
        match &self.open {
            None => return,
            Some(OutputItem::Reasoning(text)) => {
                let done = json!({ "text": text });
                self.write_part("response.reasoning_text.done", done, out);
            }
            Some(OutputItem::Message(text)) => {
                let done = json!({ "text": text, "logprobs": [] });
                let part = json!({ "part": text_part(text) });
                self.write_part("response.output_text.done", done, out);
                self.write_part("response.content_part.done", part, out);
            }
            Some(OutputItem::ToolCall(call)) if call.is_text => {
                let input = call.argument();
                let delta = json!({ "delta": input });
                self.write_item("response.custom_tool_call_input.delta", delta, out);
                let done = json!({ "input": input });
                self.write_item("response.custom_tool_call_input.done", done, out);
            }
            Some(OutputItem::ToolCall(call)) => {
                let done = json!({ "name": call.name(), "arguments": call.argument() });
                self.write_item("response.function_call_arguments.done", done, out);
            }
        }
        let Some(item) = self.open.take() else { return };
        let value = item.value(&self.head.id, index, "completed");
        let done = json!({ "output_index": index, "item": value });
        self.output.push(value);
        self.write("response.output_item.done", done, out);
    }

    /// Writes an event about the only content part of the current item.
    fn write_part(&mut self, name: &str, mut event: Value, out: &mut BytesMut) {
        event["content_index"] = 0.into();
        self.write_item(name, event, out);
    }

    /// Writes an event about the current item.
    fn write_item(&mut self, name: &str, mut event: Value, out: &mut BytesMut) {
        let index = self.output.len();
        let id = self.open.as_ref().map(|item| item.id(&self.head.id, index));
        event["item_id"] = id.into();
        event["output_index"] = index.into();
        self.write(name, event, out);
    }

    fn write(&mut self, name: &str, mut event: Value, out: &mut BytesMut) {
        event["type"] = name.into();
        event["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        sse::write_named_event(name, event.to_string().as_bytes(), out);
    }
}
