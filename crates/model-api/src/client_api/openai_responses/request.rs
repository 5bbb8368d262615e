//! Requests of the Responses API as chats.

use serde_json::{Map, Value, json};

use crate::client_api::chat_form::{
    ChatMessages, arguments_text, copy_common, function_tool, named_tool_choice, required_text,
    unsupported,
};
use crate::client_api::openai_chat::check_chat;
use crate::client_api::request_fields::{RequestFields, a, parse_object, refusal};
use crate::error::CallError;
use crate::model_call::ModelCall;

/// Fields that refer to responses or conversations that a server stores.
const STORED: [&str; 2] = ["conversation", "prompt"];

pub(super) fn parse(body: &[u8]) -> Result<ModelCall, CallError> {
    let body = parse_object(body)?;
    let fields = RequestFields(&body);
    for name in STORED {
        if fields.get(name).is_some() {
            let message = format!(
                "{name} is not supported: send the whole conversation as `input`, or \
                 `previous_response_id`"
            );
            return Err(refusal(message).at(name));
        }
    }
    if fields.boolean("background")? == Some(true) {
        let message = "background is not supported: set it to false";
        return Err(refusal(message).at("background"));
    }
    let mut chat = Map::new();
    copy_common(&fields, &mut chat)?;
    if let Some(max_tokens) = fields.integer("max_output_tokens", 1, i64::from(i32::MAX))? {
        chat.insert("max_tokens".to_owned(), max_tokens.into());
    }
    if let Some(format) = response_format(&fields)? {
        chat.insert("response_format".to_owned(), format);
    }
    let text_tools = tools(&fields, &mut chat)?;
    chat.insert("messages".to_owned(), messages(&fields)?);
    let mut call = check_chat(chat)?;
    call.text_tools = text_tools;
    call.previous = fields.text("previous_response_id")?.map(str::to_owned);
    Ok(call)
}

fn messages(fields: &RequestFields<'_>) -> Result<Value, CallError> {
    let mut chat = ChatMessages::default();
    if let Some(instructions) = fields.text("instructions")? {
        chat.push_system(instructions);
    }
    match fields.get("input") {
        Some(Value::String(text)) => chat.push("user", text.as_str()),
        Some(Value::Array(items)) => {
            for (number, item) in items.iter().enumerate() {
                add_item(item, &format!("input[{number}]"), &mut chat)?;
            }
        }
        Some(other) => {
            let message = format!("input must be a string or a list of items, not {}", a(other));
            return Err(refusal(message).at("input"));
        }
        None => return Err(refusal("input is missing").at("input")),
    }
    Ok(chat.into_value())
}

fn add_item(item: &Value, at: &str, chat: &mut ChatMessages) -> Result<(), CallError> {
    let kind = match item.get("type") {
        None | Some(Value::Null) => "message",
        Some(_) => required_text(item, "type", at)?,
    };
    match kind {
        "message" => add_message(item, at, chat),
        "function_call" => {
            let arguments = required_text(item, "arguments", at)?.to_owned();
            let (id, name) =
                (required_text(item, "call_id", at)?, required_text(item, "name", at)?);
            chat.assistant().push_tool_call(id, name, arguments);
            Ok(())
        }
        "custom_tool_call" => {
            let arguments = json!({ "input": required_text(item, "input", at)? });
            let (id, name) =
                (required_text(item, "call_id", at)?, required_text(item, "name", at)?);
            chat.assistant().push_tool_call(id, name, arguments_text(&arguments));
            Ok(())
        }
        "function_call_output" | "custom_tool_call_output" => add_output(item, at, chat),
        "reasoning" => {
            for part in item["content"].as_array().into_iter().flatten() {
                chat.assistant().push_reasoning(part["text"].as_str().unwrap_or_default());
            }
            Ok(())
        }
        other => Err(unsupported(
            &format!("{at}.type"),
            other,
            "message, function_call, function_call_output, custom_tool_call, \
             custom_tool_call_output, reasoning",
        )),
    }
}

fn add_message(item: &Value, at: &str, chat: &mut ChatMessages) -> Result<(), CallError> {
    let role = required_text(item, "role", at)?;
    let parts = parts(item.get("content").unwrap_or(&Value::Null), &format!("{at}.content"))?;
    match role {
        "user" => chat.push_user(parts),
        // The message before it may have begun with reasoning.
        "assistant" => chat.assistant().push_text(&plain_text(&parts)),
        "system" | "developer" => chat.push_system(&plain_text(&parts)),
        other => {
            let supported = "user, assistant, system, developer";
            return Err(unsupported(&format!("{at}.role"), other, supported));
        }
    }
    Ok(())
}

/// Appends the output of a tool; images become a user message, since tool messages of chats have
/// text only.
fn add_output(item: &Value, at: &str, chat: &mut ChatMessages) -> Result<(), CallError> {
    let id = required_text(item, "call_id", at)?;
    let parts = parts(item.get("output").unwrap_or(&Value::Null), &format!("{at}.output"))?;
    let (texts, images): (Vec<_>, Vec<_>) =
        parts.into_iter().partition(|part| part["text"].is_string());
    chat.push_tool_result(id, plain_text(&texts));
    chat.push_user(images);
    Ok(())
}

/// Returns a string or a list of content as parts of a chat message.
fn parts(content: &Value, at: &str) -> Result<Vec<Value>, CallError> {
    let list = match content {
        Value::String(text) => return Ok(vec![json!({ "type": "text", "text": text })]),
        Value::Array(list) => list,
        other => {
            let message = format!("{at} must be a string or a list of parts, not {}", a(other));
            return Err(refusal(message).at(at));
        }
    };
    let mut parts = Vec::new();
    for (number, part) in list.iter().enumerate() {
        let at = format!("{at}[{number}]");
        parts.push(match required_text(part, "type", &at)? {
            "input_text" | "output_text" | "text" => {
                json!({ "type": "text", "text": required_text(part, "text", &at)? })
            }
            "refusal" => json!({ "type": "text", "text": required_text(part, "refusal", &at)? }),
            "input_image" => {
                let url = required_text(part, "image_url", &at)?;
                json!({ "type": "image_url", "image_url": { "url": url } })
            }
            other => {
                let supported = "input_text, output_text, input_image";
                return Err(unsupported(&format!("{at}.type"), other, supported));
            }
        });
    }
    Ok(parts)
}

fn plain_text(parts: &[Value]) -> String {
    let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
    texts.join("\n")
}

/// Translates the tools of the client and returns the names of custom ones, whose argument is plain
/// text. Tools that OpenAI's servers execute are left out: the model must not call what nothing
/// executes.
fn tools(
    fields: &RequestFields<'_>,
    chat: &mut Map<String, Value>,
) -> Result<Vec<String>, CallError> {
    let (mut tools, mut text_tools) = (Vec::new(), Vec::new());
    for (number, tool) in fields.list("tools")?.into_iter().flatten().enumerate() {
        let at = format!("tools[{number}]");
        match tool["type"].as_str() {
            Some("function") => tools.push(function_tool(tool, &at, "parameters")?),
            Some("custom") => {
                let mut tool = tool.clone();
                tool["parameters"] = json!({
                    "type": "object",
                    "properties": { "input": { "type": "string" } },
                    "required": ["input"],
                });
                text_tools.push(required_text(&tool, "name", &at)?.to_owned());
                tools.push(function_tool(&tool, &at, "parameters")?);
            }
            _ => {}
        }
    }
    if tools.is_empty() {
        return Ok(text_tools);
    }
    chat.insert("tools".to_owned(), tools.into());
    if let Some(parallel) = fields.boolean("parallel_tool_calls")? {
        chat.insert("parallel_tool_calls".to_owned(), parallel.into());
    }
    let choice = match fields.get("tool_choice") {
        None => return Ok(text_tools),
        Some(Value::String(choice)) => choice.as_str().into(),
        Some(choice) => match required_text(choice, "type", "tool_choice")? {
            "function" | "custom" => {
                named_tool_choice(required_text(choice, "name", "tool_choice")?)
            }
            other => return Err(unsupported("tool_choice.type", other, "function, custom")),
        },
    };
    chat.insert("tool_choice".to_owned(), choice);
    Ok(text_tools)
}

/// Returns the `response_format` of a chat for `text.format`.
fn response_format(fields: &RequestFields<'_>) -> Result<Option<Value>, CallError> {
    let Some(format) = fields.get("text").and_then(|text| text.get("format")) else {
        return Ok(None);
    };
    match required_text(format, "type", "text.format")? {
        "text" => Ok(None),
        "json_object" => Ok(Some(json!({ "type": "json_object" }))),
        "json_schema" => {
            let mut schema = Map::new();
            for name in ["name", "description", "schema", "strict"] {
                if let Some(value) = format.get(name).filter(|value| !value.is_null()) {
                    schema.insert(name.to_owned(), value.clone());
                }
            }
            Ok(Some(json!({ "type": "json_schema", "json_schema": schema })))
        }
        other => Err(unsupported("text.format.type", other, "text, json_object, json_schema")),
    }
}
