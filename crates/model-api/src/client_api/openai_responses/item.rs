//! Output items of a response.

use serde_json::{Value, json};

use crate::client_api::chat_form::{ChatPiece, ToolCallPiece};

/// An output item.
#[derive(Debug)]
pub(super) enum OutputItem {
    Reasoning(String),
    Message(String),
    ToolCall(ItemToolCall),
}

#[derive(Debug)]
pub(super) struct ItemToolCall {
    /// Position in the message of the chat.
    pub(super) position: u64,
    id: String,
    name: String,
    arguments: String,
    /// The client declared the tool as `custom`: its argument is plain text.
    pub(super) is_text: bool,
}

impl ItemToolCall {
    /// Returns the call that a first piece belongs to, without its arguments.
    pub(super) fn new(position: u64, piece: &ToolCallPiece, text_tools: &[String]) -> Self {
        Self {
            position,
            id: piece.id().to_owned(),
            name: piece.name().to_owned(),
            arguments: String::new(),
            is_text: text_tools.iter().any(|name| name == piece.name()),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn push(&mut self, arguments: &str) {
        self.arguments.push_str(arguments);
    }

    /// Returns the arguments, or the plain text of a custom tool.
    pub(super) fn argument(&self) -> String {
        if self.is_text
            && let Ok(arguments) = serde_json::from_str::<Value>(&self.arguments)
            && let Some(text) = arguments["input"].as_str()
        {
            return text.to_owned();
        }
        self.arguments.clone()
    }
}

/// Returns the items of a full message.
pub(super) fn output_items(message: &ChatPiece, text_tools: &[String]) -> Vec<OutputItem> {
    let reasoning = message.reasoning().map(|text| OutputItem::Reasoning(text.to_owned()));
    let text = message.text().map(|text| OutputItem::Message(text.to_owned()));
    let calls = message.tool_calls().map(|(position, piece)| {
        let mut call = ItemToolCall::new(position, piece, text_tools);
        call.push(piece.arguments());
        OutputItem::ToolCall(call)
    });
    reasoning.into_iter().chain(text).chain(calls).collect()
}

impl OutputItem {
    /// Returns the id of an item, which is unique within the conversation.
    pub(super) fn id(&self, response: &str, index: usize) -> String {
        let prefix = match self {
            Self::Reasoning(_) => "rs",
            Self::Message(_) => "msg",
            Self::ToolCall(call) if call.is_text => "ctc",
            Self::ToolCall(_) => "fc",
        };
        format!("{prefix}_{response}_{index}")
    }

    pub(super) fn value(&self, response: &str, index: usize, status: &str) -> Value {
        let id = self.id(response, index);
        match self {
            Self::Reasoning(text) => {
                let content = if text.is_empty() { vec![] } else { vec![reasoning_part(text)] };
                json!({ "id": id, "type": "reasoning", "summary": [], "content": content })
            }
            Self::Message(text) => {
                let content = if text.is_empty() { vec![] } else { vec![text_part(text)] };
                json!({
                    "id": id,
                    "type": "message",
                    "role": "assistant",
                    "status": status,
                    "content": content,
                })
            }
            Self::ToolCall(call) if call.is_text => json!({
                "id": id,
                "type": "custom_tool_call",
                "status": status,
                "call_id": call.id,
                "name": call.name,
                "input": call.argument(),
            }),
            Self::ToolCall(call) => json!({
                "id": id,
                "type": "function_call",
                "status": status,
                "call_id": call.id,
                "name": call.name,
                "arguments": call.arguments,
            }),
        }
    }
}

pub(super) fn text_part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

fn reasoning_part(text: &str) -> Value {
    json!({ "type": "reasoning_text", "text": text })
}
