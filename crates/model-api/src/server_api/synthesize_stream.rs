//! The events of a stream, made from a whole answer.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::chunk_parser::StripPlan;
use super::json_fields::JsonFields;
use crate::model_call::CallKind;

/// Makes the events that a client who wants a stream gets of a whole answer.
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
                for piece in pieces(&choice)? {
                    events.push(event(&format!("\"choices\":[{piece}]")));
                }
            }
        }
    }
    if let Some(usage) = usage {
        events.push(event(&format!("\"choices\":[],\"usage\":{usage}")));
    }
    Ok(events)
}

/// Takes the choice of a chat apart: who speaks, what is said, which tools are called, the end.
fn pieces(choice: &JsonFields<'_>) -> Result<Vec<Value>, String> {
    let index = choice.get::<u64>("index")?.unwrap_or(0);
    let mut logprobs = choice.get::<Value>("logprobs")?;
    let mut message = choice.get::<Map<String, Value>>("message")?.unwrap_or_default();
    let role = message.remove("role").unwrap_or(Value::Null);
    let role = if role.is_null() { "assistant".into() } else { role };
    let content = message.remove("content").unwrap_or(Value::Null);
    let tool_calls = message.remove("tool_calls");
    let piece = |delta, logprobs| piece(index, delta, logprobs);
    let mut pieces = vec![piece(json!({ "role": role, "content": "" }), None)];
    message.retain(|_, value| !value.is_null());
    if !message.is_empty() {
        // Reasoning, and what else the server's messages have.
        pieces.push(piece(Value::Object(message), None));
    }
    if !content.is_null() && content != "" {
        pieces.push(piece(json!({ "content": content }), logprobs.take()));
    }
    if let Some(Value::Array(mut calls)) = tool_calls
        && !calls.is_empty()
    {
        for (position, call) in calls.iter_mut().enumerate() {
            if let Value::Object(call) = call {
                call.insert("index".to_owned(), position.into());
            }
        }
        pieces.push(piece(json!({ "tool_calls": calls }), logprobs.take()));
    }
    let mut last = piece(json!({}), logprobs);
    for (name, value) in choice.iter() {
        if !matches!(name, "index" | "message" | "logprobs") {
            let value = serde_json::from_str(value).map_err(|error| format!("{name}: {error}"))?;
            last[name] = value;
        }
    }
    pieces.push(last);
    Ok(pieces)
}

fn piece(index: u64, delta: Value, logprobs: Option<Value>) -> Value {
    json!({ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": null })
}
