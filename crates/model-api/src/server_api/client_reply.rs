//! Reply to the client, assembled from the chunks of a stream.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::json_fields::{JsonFields, JsonText, read_value};

const MAX_TOOL_CALLS: u64 = 4096;

#[derive(Debug, Default)]
pub(super) enum ClientReply {
    #[default]
    Nothing,
    Text(String),
    /// Message of a chat, in chunks.
    Message(ReplyMessage),
    /// Message of a chat, complete.
    Full(Value),
}

#[derive(Debug, Default)]
pub(super) struct ReplyMessage {
    fields: Map<String, Value>,
    tool_calls: BTreeMap<u64, Map<String, Value>>,
}

impl ClientReply {
    pub(super) fn push_text(&mut self, piece: &str) {
        match self {
            Self::Text(text) => text.push_str(piece),
            _ => *self = Self::Text(piece.to_owned()),
        }
    }

    pub(super) fn push_delta(&mut self, delta: &JsonFields<'_>) -> Result<(), String> {
        if !matches!(self, Self::Message(_)) {
            *self = Self::Message(ReplyMessage::default());
        }
        match self {
            Self::Message(message) => message.push(delta),
            _ => Ok(()),
        }
    }

    pub(super) fn into_value(self) -> Value {
        match self {
            Self::Nothing => Value::Null,
            Self::Text(text) => Value::String(text),
            Self::Message(message) => message.into_value(),
            Self::Full(message) => message,
        }
    }
}

impl ReplyMessage {
    fn push(&mut self, delta: &JsonFields<'_>) -> Result<(), String> {
        for (name, json) in delta.iter() {
            if json == "null" {
                continue;
            }
            match name {
                "tool_calls" => self.push_tool_calls(json)?,
                "content" | "reasoning_content" | "reasoning" | "refusal"
                    if json.starts_with('"') =>
                {
                    append(&mut self.fields, name, &text(name, json)?.0);
                }
                "function_call" => {
                    let mut call = match self.fields.remove(name) {
                        Some(Value::Object(call)) => call,
                        _ => Map::new(),
                    };
                    merge_function(&mut call, read(name, json)?);
                    self.fields.insert(name.to_owned(), Value::Object(call));
                }
                _ => {
                    self.fields.insert(name.to_owned(), read(name, json)?);
                }
            }
        }
        Ok(())
    }

    fn push_tool_calls(&mut self, json: &str) -> Result<(), String> {
        let pieces: Vec<Map<String, Value>> = read("tool_calls", json)?;
        for (position, piece) in pieces.into_iter().enumerate() {
            let index = match piece.get("index") {
                None | Some(Value::Null) => position as u64,
                Some(index) => index
                    .as_u64()
                    .filter(|index| *index < MAX_TOOL_CALLS)
                    .ok_or_else(|| format!("tool_calls: {index} is not an index"))?,
            };
            let call = self.tool_calls.entry(index).or_default();
            for (name, value) in piece {
                match value {
                    Value::Null => {}
                    Value::Object(piece) if name == "function" => {
                        let mut function = match call.remove(&name) {
                            Some(Value::Object(function)) => function,
                            _ => Map::new(),
                        };
                        merge_function(&mut function, piece);
                        call.insert(name, Value::Object(function));
                    }
                    // The position in the message replaces it.
                    _ if name == "index" => {}
                    value => {
                        call.insert(name, value);
                    }
                }
            }
        }
        Ok(())
    }

    fn into_value(mut self) -> Value {
        self.fields.entry("role").or_insert_with(|| "assistant".into());
        self.fields.entry("content").or_insert(Value::Null);
        if !self.tool_calls.is_empty() {
            let calls = self.tool_calls.into_values().map(Value::Object).collect();
            self.fields.insert("tool_calls".to_owned(), Value::Array(calls));
        }
        Value::Object(self.fields)
    }
}

/// Merges a chunk of a function call: arguments are appended, other fields replaced.
fn merge_function(function: &mut Map<String, Value>, piece: Map<String, Value>) {
    for (name, value) in piece {
        match value {
            Value::Null => {}
            Value::String(text) if name == "arguments" => append(function, &name, &text),
            value => {
                function.insert(name, value);
            }
        }
    }
}

fn append(fields: &mut Map<String, Value>, name: &str, piece: &str) {
    match fields.get_mut(name) {
        Some(Value::String(text)) => text.push_str(piece),
        _ => {
            fields.insert(name.to_owned(), piece.into());
        }
    }
}

fn text<'a>(name: &str, json: &'a str) -> Result<JsonText<'a>, String> {
    read(name, json)
}

fn read<'a, T: Deserialize<'a>>(name: &str, json: &'a str) -> Result<T, String> {
    read_value(json).map_err(|error| format!("{name}: {error}"))
}
