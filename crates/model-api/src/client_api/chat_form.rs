//! The internal form of chats, for client APIs that are translated to it: construction of messages
//! and tools, and the fields of responses and events.

use serde::{Deserialize, Serialize};
use serde_json::ser::{Formatter, Serializer};
use serde_json::{Map, Value, json};

use super::request_fields::{RequestFields, a, refusal};
use crate::error::CallError;

/// Sampling fields that all APIs and servers name alike. Other fields of a translated request are
/// not forwarded, since servers refuse fields that they do not know.
const SAMPLING: [&str; 6] =
    ["temperature", "top_p", "top_k", "min_p", "seed", "chat_template_kwargs"];

/// Copies the model, the sampling fields and the stream options of a request.
pub(super) fn copy_common(
    fields: &RequestFields<'_>,
    chat: &mut Map<String, Value>,
) -> Result<(), CallError> {
    if let Some(model) = fields.text("model")? {
        chat.insert("model".to_owned(), model.into());
    }
    for name in SAMPLING {
        if let Some(value) = fields.get(name) {
            chat.insert(name.to_owned(), value.clone());
        }
    }
    if fields.boolean("stream")? == Some(true) {
        chat.insert("stream".to_owned(), true.into());
        // The last event of the translated stream has the usage.
        chat.insert("stream_options".to_owned(), json!({ "include_usage": true }));
    }
    Ok(())
}

/// Messages of a chat in the order of the conversation.
#[derive(Debug, Default)]
pub(super) struct ChatMessages {
    messages: Vec<Map<String, Value>>,
}

impl ChatMessages {
    pub(super) fn push(&mut self, role: &str, content: impl Into<Value>) {
        let mut message = Map::new();
        message.insert("role".to_owned(), role.into());
        message.insert("content".to_owned(), content.into());
        self.messages.push(message);
    }

    /// Appends instructions. Those before the conversation are one message, because many chat
    /// templates accept a system message only at the start.
    pub(super) fn push_system(&mut self, text: &str) {
        if let [first] = self.messages.as_mut_slice()
            && is_role(first, "system")
            && let Some(Value::String(content)) = first.get_mut("content")
        {
            content.push_str("\n\n");
            content.push_str(text);
        } else {
            self.push("system", text);
        }
    }

    /// Appends content parts as a user message; plain text is a string, which all servers accept.
    pub(super) fn push_user(&mut self, parts: Vec<Value>) {
        let texts: Option<Vec<&str>> = parts.iter().map(|part| part["text"].as_str()).collect();
        match texts {
            Some(texts) if texts.is_empty() => {}
            Some(texts) => self.push("user", texts.join("\n")),
            None => self.push("user", parts),
        }
    }

    pub(super) fn push_tool_result(&mut self, call_id: &str, text: String) {
        self.push("tool", text);
        if let Some(message) = self.messages.last_mut() {
            message.insert("tool_call_id".to_owned(), call_id.into());
        }
    }

    /// Returns the assistant message at the end, appended if there is none.
    pub(super) fn assistant(&mut self) -> AssistantMessage<'_> {
        if !self.messages.last().is_some_and(|last| is_role(last, "assistant")) {
            self.push("assistant", Value::Null);
        }
        let index = self.messages.len() - 1;
        AssistantMessage(&mut self.messages[index])
    }

    pub(super) fn into_value(self) -> Value {
        self.messages.into_iter().map(Value::Object).collect()
    }
}

fn is_role(message: &Map<String, Value>, role: &str) -> bool {
    message.get("role").and_then(Value::as_str) == Some(role)
}

/// An assistant message of the history, assembled from the blocks or items of another API.
#[derive(Debug)]
pub(super) struct AssistantMessage<'a>(&'a mut Map<String, Value>);

impl AssistantMessage<'_> {
    pub(super) fn push_text(&mut self, text: &str) {
        self.append("content", text);
    }

    pub(super) fn push_reasoning(&mut self, text: &str) {
        self.append("reasoning_content", text);
    }

    pub(super) fn push_tool_call(&mut self, id: &str, name: &str, arguments: String) {
        let call = json!({
            "id": id,
            "type": "function",
            "function": { "name": name, "arguments": arguments },
        });
        match self.0.get_mut("tool_calls") {
            Some(Value::Array(calls)) => calls.push(call),
            _ => {
                self.0.insert("tool_calls".to_owned(), json!([call]));
            }
        }
    }

    fn append(&mut self, name: &str, piece: &str) {
        match self.0.get_mut(name) {
            Some(Value::String(text)) => text.push_str(piece),
            _ => {
                self.0.insert(name.to_owned(), piece.into());
            }
        }
    }
}

/// Returns a function tool.
pub(super) fn function_tool(tool: &Value, at: &str, schema: &str) -> Result<Value, CallError> {
    let mut function = Map::new();
    function.insert("name".to_owned(), required_text(tool, "name", at)?.into());
    if let Some(description) = tool.get("description").filter(|value| !value.is_null()) {
        function.insert("description".to_owned(), description.clone());
    }
    let empty = || json!({ "type": "object", "properties": {} });
    let parameters = tool.get(schema).filter(|value| !value.is_null());
    function.insert("parameters".to_owned(), parameters.cloned().unwrap_or_else(empty));
    Ok(json!({ "type": "function", "function": function }))
}

pub(super) fn named_tool_choice(name: &str) -> Value {
    json!({ "type": "function", "function": { "name": name } })
}

/// Returns a field that must be a string.
pub(super) fn required_text<'a>(
    value: &'a Value,
    name: &str,
    at: &str,
) -> Result<&'a str, CallError> {
    let at = format!("{at}.{name}");
    match value.get(name) {
        Some(Value::String(text)) => Ok(text),
        None | Some(Value::Null) => Err(refusal(format!("{at} is missing")).at(at)),
        Some(other) => Err(refusal(format!("{at} must be a string, not {}", a(other))).at(at)),
    }
}

/// Returns an error for a block, item or role that has no counterpart.
pub(super) fn unsupported(at: &str, value: &str, supported: &str) -> CallError {
    refusal(format!("{at} is {value:?}, which is not supported; supported: {supported}")).at(at)
}

/// Writes arguments of a tool call as models and chat templates do: with a space after `,` and `:`.
/// Another spelling would change the tokens of the history.
pub(super) fn arguments_text(arguments: &Value) -> String {
    let mut out = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut out, SpacedFormatter);
    match arguments.serialize(&mut serializer) {
        Ok(()) => String::from_utf8(out).unwrap_or_default(),
        Err(_) => arguments.to_string(),
    }
}

struct SpacedFormatter;

impl Formatter for SpacedFormatter {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
    ) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

/// A chat completion, or one event of it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ChatReply {
    pub(super) id: Option<String>,
    pub(super) model: Option<String>,
    pub(super) created: Option<Value>,
    pub(super) choices: Vec<ChatChoice>,
    pub(super) usage: Option<ChatUsage>,
}

impl ChatReply {
    pub(super) fn parse(data: &[u8]) -> Option<Self> {
        serde_json::from_slice(data).ok()
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ChatChoice {
    /// `message` of a full response, `delta` of an event.
    #[serde(alias = "delta")]
    pub(super) message: ChatPiece,
    pub(super) finish_reason: Option<String>,
    /// The stop sequence, as vLLM names it.
    pub(super) stop_reason: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ChatPiece {
    content: Option<String>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    tool_calls: Option<Vec<ToolCallPiece>>,
}

impl ChatPiece {
    /// Non-empty text.
    pub(super) fn text(&self) -> Option<&str> {
        self.content.as_deref().filter(|text| !text.is_empty())
    }

    /// Non-empty reasoning, under either of its names.
    pub(super) fn reasoning(&self) -> Option<&str> {
        let reasoning = self.reasoning_content.as_deref().or(self.reasoning.as_deref());
        reasoning.filter(|text| !text.is_empty())
    }

    /// Tool calls with their positions in the message.
    pub(super) fn tool_calls(&self) -> impl Iterator<Item = (u64, &ToolCallPiece)> {
        let calls = self.tool_calls.iter().flatten();
        calls.enumerate().map(|(position, call)| (call.index.unwrap_or(position as u64), call))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ToolCallPiece {
    index: Option<u64>,
    id: Option<String>,
    function: FunctionPiece,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FunctionPiece {
    name: Option<String>,
    arguments: Option<String>,
}

impl ToolCallPiece {
    pub(super) fn id(&self) -> &str {
        self.id.as_deref().unwrap_or_default()
    }

    pub(super) fn name(&self) -> &str {
        self.function.name.as_deref().unwrap_or_default()
    }

    pub(super) fn arguments(&self) -> &str {
        self.function.arguments.as_deref().unwrap_or_default()
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ChatUsage {
    pub(super) prompt_tokens: u64,
    pub(super) completion_tokens: u64,
}
