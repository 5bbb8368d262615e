//! Turns of the model in conversations with tools: the chosen tool and its arguments, or a
//! prescribed turn.

use serde_json::{Map, Value, json};

use super::api_error::ApiError;
use super::generation_state::GenerationState;
use super::request::{MockRequest, wants_tool};
use super::script::{ScriptedTurn, ToolCall, mix};
use super::text::{ASSISTANT, FIRST_WORD};

/// Sets the tool call or the prescribed text of a request that offers tools.
pub(super) fn assign(
    state: &GenerationState,
    fields: &Map<String, Value>,
    offered: &[Value],
    request: &mut MockRequest,
) -> Result<(), ApiError> {
    let prompt = &request.prompts[0];
    let (tool, is_named) = chosen(state, fields, offered, prompt)?;
    match scripted_turn(state, offered, prompt)? {
        Some(ScriptedTurn::Text(text)) => {
            request.text = Some(state.template.tokenizer.encode(text));
        }
        Some(ScriptedTurn::ToolCall { name, arguments }) => {
            request.call = Some(ToolCall::new(state.template.tokenizer, name, arguments));
        }
        None => {
            request.call = tool.map(|tool| call(state, tool, prompt));
            request.is_named = is_named;
        }
    }
    Ok(())
}

/// Returns the prescribed turn of a conversation: the one whose number is that of the model's turns
/// in the prompt. Conversations without tools have none, such as those for titles.
fn scripted_turn<'a>(
    state: &'a GenerationState,
    offered: &[Value],
    prompt: &[i32],
) -> Result<Option<&'a ScriptedTurn>, ApiError> {
    // The last marker opens the turn to be generated.
    let earlier = prompt.iter().filter(|id| **id == ASSISTANT).count().saturating_sub(1);
    let Some(turn) = state.options.turns.get(earlier).filter(|_| !offered.is_empty()) else {
        return Ok(None);
    };
    if let ScriptedTurn::ToolCall { name, .. } = turn
        && !offered.iter().any(|tool| name_of(tool) == Some(name))
    {
        let names: Vec<&str> = offered.iter().filter_map(name_of).collect();
        let message = format!(
            "prescribed turn {earlier} calls the tool {name}, which is not offered; offered are {}",
            names.join(", ")
        );
        return Err(ApiError::bad_request(message).at("tools"));
    }
    Ok(Some(turn))
}

/// Returns the tool to call, if any, and whether the request names it.
fn chosen<'a>(
    state: &GenerationState,
    fields: &Map<String, Value>,
    offered: &'a [Value],
    prompt: &[i32],
) -> Result<(Option<&'a Value>, bool), ApiError> {
    if let Some(bad) = offered.iter().find(|tool| name_of(tool).is_none()) {
        let message = format!("a tool has no function.name: {bad}");
        return Err(ApiError::bad_request(message).at("tools"));
    }
    match fields.get("tool_choice") {
        Some(Value::String(choice)) if choice == "none" => Ok((None, false)),
        Some(Value::String(choice)) if choice == "required" => match offered.first() {
            Some(tool) => Ok((Some(tool), false)),
            None => {
                let message = "When using `tool_choice`, `tools` must be set.";
                Err(ApiError::bad_request(message).at("tool_choice"))
            }
        },
        None | Some(Value::Null | Value::String(_)) => {
            Ok((offered.first().filter(|_| wants_tool(state, prompt)), false))
        }
        Some(named) => {
            let name = named.pointer("/function/name").and_then(Value::as_str);
            let found = offered.iter().find(|tool| name_of(tool) == name);
            let message = "The tool specified in `tool_choice` does not match any of the specified \
                           `tools`";
            found
                .map(|tool| (Some(tool), true))
                .ok_or_else(|| ApiError::bad_request(message).at("tool_choice"))
        }
    }
}

/// Returns a call with arguments that satisfy simple schemas.
fn call(state: &GenerationState, tool: &Value, prompt: &[i32]) -> ToolCall {
    let hash = prompt.iter().fold(state.options.seed, |hash, id| mix(hash, id.abs_diff(0).into()));
    let schema = tool.pointer("/function/parameters").unwrap_or(&Value::Null);
    let arguments = value(state, schema, hash, 0);
    let arguments = if arguments.is_object() { arguments } else { json!({}) };
    let name = name_of(tool).unwrap_or_default();
    ToolCall::new(state.template.tokenizer, name, &arguments.to_string())
}

fn name_of(tool: &Value) -> Option<&str> {
    tool.pointer("/function/name").and_then(Value::as_str)
}

const MAX_DEPTH: u32 = 8;

/// Returns a value that satisfies a schema.
fn value(state: &GenerationState, schema: &Value, hash: u64, depth: u32) -> Value {
    if let Some(one) = schema.get("enum").and_then(Value::as_array).and_then(|all| all.first()) {
        return one.clone();
    }
    match schema.get("type").and_then(Value::as_str) {
        _ if depth > MAX_DEPTH => Value::Null,
        Some("string") => {
            let tokenizer = state.template.tokenizer;
            let word = u32::try_from(hash % u64::from(tokenizer.word_count())).unwrap_or(0);
            let word = tokenizer.decode(&[FIRST_WORD.saturating_add_unsigned(word)]);
            word.trim_start().into()
        }
        Some("integer" | "number") => (hash % 100).into(),
        Some("boolean") => hash.is_multiple_of(2).into(),
        Some("array") => {
            let items = schema.get("items").unwrap_or(&Value::Null);
            vec![value(state, items, mix(hash, 1), depth + 1)].into()
        }
        Some("object") => {
            let properties = schema.get("properties").and_then(Value::as_object);
            let fields = properties.into_iter().flatten().enumerate();
            let field = |(number, (name, schema)): (usize, (&String, &Value))| {
                (name.clone(), value(state, schema, mix(hash, number as u64), depth + 1))
            };
            Value::Object(fields.map(field).collect())
        }
        _ => Value::Null,
    }
}
