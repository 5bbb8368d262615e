//! Requests of the Messages API as chats.

use serde_json::{Map, Value, json};

use crate::client_api::chat_form::{
    ChatMessages, arguments_text, copy_common, function_tool, named_tool_choice, required_text,
    unsupported,
};
use crate::client_api::openai_chat::check_chat;
use crate::client_api::request_fields::{RequestFields, a, parse_object, refusal};
use crate::error::CallError;
use crate::model_call::ModelCall;

/// Parses a request that counts tokens: without `max_tokens`.
pub(super) fn parse_count(body: &[u8]) -> Result<ModelCall, CallError> {
    let mut body = parse_object(body)?;
    body.insert("max_tokens".to_owned(), 1.into());
    to_chat(&body)
}

pub(super) fn parse(body: &[u8]) -> Result<ModelCall, CallError> {
    to_chat(&parse_object(body)?)
}

fn to_chat(body: &Map<String, Value>) -> Result<ModelCall, CallError> {
    let fields = RequestFields(body);
    let mut chat = Map::new();
    copy_common(&fields, &mut chat)?;
    let Some(max_tokens) = fields.integer("max_tokens", 1, i64::from(i32::MAX))? else {
        return Err(refusal("max_tokens is missing").at("max_tokens"));
    };
    chat.insert("max_tokens".to_owned(), max_tokens.into());
    if let Some(stop) = fields.list("stop_sequences")?.filter(|stop| !stop.is_empty()) {
        chat.insert("stop".to_owned(), stop.clone().into());
    }
    tools(&fields, &mut chat)?;
    chat.insert("messages".to_owned(), messages(&fields)?);
    check_chat(chat)
}

fn messages(fields: &RequestFields<'_>) -> Result<Value, CallError> {
    let mut chat = ChatMessages::default();
    if let Some(system) = fields.get("system") {
        chat.push_system(&text(system, "system")?);
    }
    let none = Vec::new();
    let messages = fields.list("messages")?.unwrap_or(&none);
    for (number, message) in messages.iter().enumerate() {
        let at = format!("messages[{number}]");
        let content = message.get("content").unwrap_or(&Value::Null);
        match required_text(message, "role", &at)? {
            "user" => user(content, &at, &mut chat)?,
            "assistant" => assistant(content, &at, &mut chat)?,
            "system" => chat.push_system(&text(content, &format!("{at}.content"))?),
            other => {
                return Err(unsupported(&format!("{at}.role"), other, "user, assistant, system"));
            }
        }
    }
    if messages.last().is_some_and(|last| last["role"] == "assistant") {
        let message = "the last message is from the assistant: prefilled responses are not \
                       supported; end with a user message";
        return Err(refusal(message).at("messages"));
    }
    Ok(chat.into_value())
}

/// Returns a string, or text blocks joined by line breaks.
fn text(content: &Value, at: &str) -> Result<String, CallError> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => {
            let mut texts = Vec::new();
            for (number, block) in blocks.iter().enumerate() {
                let at = format!("{at}[{number}]");
                match required_text(block, "type", &at)? {
                    "text" => texts.push(required_text(block, "text", &at)?),
                    other => return Err(unsupported(&format!("{at}.type"), other, "text")),
                }
            }
            Ok(texts.join("\n"))
        }
        other => Err(content_type(other, at)),
    }
}

fn content_type(content: &Value, at: &str) -> CallError {
    refusal(format!("{at} must be a string or a list of blocks, not {}", a(content))).at(at)
}

fn user(content: &Value, at: &str, chat: &mut ChatMessages) -> Result<(), CallError> {
    let at = format!("{at}.content");
    let blocks = match content {
        Value::String(text) => {
            chat.push("user", text.as_str());
            return Ok(());
        }
        Value::Array(blocks) => blocks,
        other => return Err(content_type(other, &at)),
    };
    let mut parts = Vec::new();
    for (number, block) in blocks.iter().enumerate() {
        let at = format!("{at}[{number}]");
        match required_text(block, "type", &at)? {
            "tool_result" => tool_result(block, &at, chat, &mut parts)?,
            _ => parts.push(part(block, &at)?),
        }
    }
    chat.push_user(parts);
    Ok(())
}

/// Returns a text or image block as a content part.
fn part(block: &Value, at: &str) -> Result<Value, CallError> {
    match required_text(block, "type", at)? {
        "text" => Ok(json!({ "type": "text", "text": required_text(block, "text", at)? })),
        "image" => {
            let at = format!("{at}.source");
            let source = block.get("source").unwrap_or(&Value::Null);
            let url = match required_text(source, "type", &at)? {
                "base64" => format!(
                    "data:{};base64,{}",
                    required_text(source, "media_type", &at)?,
                    required_text(source, "data", &at)?
                ),
                "url" => required_text(source, "url", &at)?.to_owned(),
                other => return Err(unsupported(&format!("{at}.type"), other, "base64, url")),
            };
            Ok(json!({ "type": "image_url", "image_url": { "url": url } }))
        }
        other => Err(unsupported(&format!("{at}.type"), other, "text, image, tool_result")),
    }
}

/// Appends the text of a tool result as a message; images become parts of the next user message,
/// since tool messages of chats have text only.
fn tool_result(
    block: &Value,
    at: &str,
    chat: &mut ChatMessages,
    parts: &mut Vec<Value>,
) -> Result<(), CallError> {
    let id = required_text(block, "tool_use_id", at)?;
    let at = format!("{at}.content");
    let mut texts = Vec::new();
    match block.get("content").unwrap_or(&Value::Null) {
        Value::Null => {}
        Value::String(text) => texts.push(text.clone()),
        Value::Array(blocks) => {
            for (number, block) in blocks.iter().enumerate() {
                let part = part(block, &format!("{at}[{number}]"))?;
                match part["text"].as_str() {
                    Some(text) => texts.push(text.to_owned()),
                    None => parts.push(part),
                }
            }
        }
        other => return Err(content_type(other, &at)),
    }
    chat.push_tool_result(id, texts.join("\n"));
    Ok(())
}

fn assistant(content: &Value, at: &str, chat: &mut ChatMessages) -> Result<(), CallError> {
    let at = format!("{at}.content");
    let blocks = match content {
        Value::String(text) => {
            chat.assistant().push_text(text);
            return Ok(());
        }
        Value::Array(blocks) => blocks,
        other => return Err(content_type(other, &at)),
    };
    let mut message = chat.assistant();
    for (number, block) in blocks.iter().enumerate() {
        let at = format!("{at}[{number}]");
        match required_text(block, "type", &at)? {
            "text" => message.push_text(required_text(block, "text", &at)?),
            "thinking" => message.push_reasoning(required_text(block, "thinking", &at)?),
            // Encrypted by another provider.
            "redacted_thinking" => {}
            "tool_use" => {
                let none = json!({});
                let input = block.get("input").unwrap_or(&none);
                let (id, name) =
                    (required_text(block, "id", &at)?, required_text(block, "name", &at)?);
                message.push_tool_call(id, name, arguments_text(input));
            }
            other => {
                let supported = "text, thinking, tool_use";
                return Err(unsupported(&format!("{at}.type"), other, supported));
            }
        }
    }
    Ok(())
}

/// Translates the tools of the client. Tools that Anthropic's servers execute are left out: the
/// model must not call what nothing executes.
fn tools(fields: &RequestFields<'_>, chat: &mut Map<String, Value>) -> Result<(), CallError> {
    let mut tools = Vec::new();
    for (number, tool) in fields.list("tools")?.into_iter().flatten().enumerate() {
        if matches!(tool["type"].as_str(), None | Some("custom")) {
            tools.push(function_tool(tool, &format!("tools[{number}]"), "input_schema")?);
        }
    }
    if tools.is_empty() {
        return Ok(());
    }
    chat.insert("tools".to_owned(), tools.into());
    let Some(choice) = fields.get("tool_choice") else { return Ok(()) };
    let at = "tool_choice";
    let choice_value = match required_text(choice, "type", at)? {
        "auto" => "auto".into(),
        "any" => "required".into(),
        "none" => "none".into(),
        "tool" => named_tool_choice(required_text(choice, "name", at)?),
        other => return Err(unsupported("tool_choice.type", other, "auto, any, none, tool")),
    };
    chat.insert(at.to_owned(), choice_value);
    if choice["disable_parallel_tool_use"] == true {
        chat.insert("parallel_tool_calls".to_owned(), false.into());
    }
    Ok(())
}
