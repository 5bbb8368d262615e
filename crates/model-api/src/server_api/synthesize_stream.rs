//! Events of a stream, synthesized from a full response.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::chunk_parser::StripPlan;
use super::json_fields::JsonFields;
use crate::model_call::CallKind;

pub(super) fn make_events(
    plan: &StripPlan,
    mut fields: JsonFields<'_>,
    choices: Vec<JsonFields<'_>>,
) -> Result<Vec<Bytes>, String> {
    let usage = fields.json("usage").filter(|_| plan.keeps_usage).map(str::to_owned);
    fields.remove("usage");
    fields.remove("choices");
    if plan.kind == CallKind::Chat {
        fields.set("object", "\"chat.completion.chunk\"");
    }
    let head = fields.to_json();
    let event = |more: &str| Bytes::from(format!("{},{more}}}", &head[..head.len() - 1]));
    let mut events = Vec::new();
    for choice in choices {
        match plan.kind {
            CallKind::Completion => {
                events.push(event(&format!("\"choices\":[{}]", choice.to_json())))
            }
            CallKind::Chat => {
                for chunk in split_choice(&choice)? {
                    events.push(event(&format!("\"choices\":[{chunk}]")));
                }
            }
        }
    }
    if let Some(usage) = usage {
        events.push(event(&format!("\"choices\":[],\"usage\":{usage}")));
    }
    Ok(events)
}

/// Splits the choice of a chat: role, other fields, content, tool calls, end.
fn split_choice(choice: &JsonFields<'_>) -> Result<Vec<Value>, String> {
    let index = choice.get::<u64>("index")?.unwrap_or(0);
    let mut logprobs = choice.get::<Value>("logprobs")?;
    let mut message = choice.get::<Map<String, Value>>("message")?.unwrap_or_default();
    let role = message.remove("role").unwrap_or(Value::Null);
    let role = if role.is_null() { "assistant".into() } else { role };
    let content = message.remove("content").unwrap_or(Value::Null);
    let tool_calls = message.remove("tool_calls");
    let chunk = |delta, logprobs| chunk(index, delta, logprobs);
    let mut split_choice = vec![chunk(json!({ "role": role, "content": "" }), None)];
    message.retain(|_, value| !value.is_null());
    if !message.is_empty() {
        // Reasoning, and what else the server's messages have.
        split_choice.push(chunk(Value::Object(message), None));
    }
    if !content.is_null() && content != "" {
        split_choice.push(chunk(json!({ "content": content }), logprobs.take()));
    }
    if let Some(Value::Array(mut calls)) = tool_calls
        && !calls.is_empty()
    {
        for (position, call) in calls.iter_mut().enumerate() {
            if let Value::Object(call) = call {
                call.insert("index".to_owned(), position.into());
            }
        }
        split_choice.push(chunk(json!({ "tool_calls": calls }), logprobs.take()));
    }
    let mut last = chunk(json!({}), logprobs);
    for (name, value) in choice.iter() {
        if !matches!(name, "index" | "message" | "logprobs") {
            let value = serde_json::from_str(value).map_err(|error| format!("{name}: {error}"))?;
            last[name] = value;
        }
    }
    split_choice.push(last);
    Ok(split_choice)
}

fn chunk(index: u64, delta: Value, logprobs: Option<Value>) -> Value {
    json!({ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": null })
}
