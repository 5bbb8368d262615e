//! The recorded turn that a call continues.

use rollway_model_api::server_api::RecordedPrefix;
use serde_json::{Value, json};

use super::turn_table::{StoredTurn, TurnContent, TurnTable, value};

/// Finish reasons of turns that the model itself ended.
const MODEL_ENDED: [&str; 3] = ["stop", "tool_calls", "function_call"];

/// Returns the last turn whose messages and reply a call repeats. Its reply is equal if text and
/// tool calls are: clients drop reasoning and change ids.
pub(super) fn recorded_prefix(store: &TurnTable, content: TurnContent) -> Option<RecordedPrefix> {
    let path = store.texts.path(content.messages?);
    for index in (1..path.len().saturating_sub(1)).rev() {
        let turns = store.turns_after(path[index - 1]);
        if turns.is_empty() || !store.is_assistant(path[index]) {
            continue;
        }
        let sent = value(store.texts.piece(path[index]).unwrap_or_default());
        let turns = turns.iter().rev().filter_map(|&number| store.get(number));
        let mut turns = turns.filter(|turn| {
            let is_same_template =
                turn.content.tools == content.tools && turn.content.template == content.template;
            is_same_template && is_ended(turn) && is_same_reply(&value(&turn.reply), &sent)
        });
        if let Some(turn) = turns.next() {
            let tokens = store.tokens.read(&turn.sequence);
            return Some(RecordedPrefix { tokens, messages: index + 1 });
        }
    }
    None
}

/// Returns whether the last token is the one by which the model ended the turn.
fn is_ended(turn: &StoredTurn) -> bool {
    let reason = turn.finish_reason.as_deref();
    let is_model_ended = reason.is_some_and(|reason| MODEL_ENDED.contains(&reason));
    is_model_ended && !turn.aborted && !turn.content.has_stop && turn.response() > 0
}

fn is_same_reply(reply: &Value, sent: &Value) -> bool {
    let (one, other) = (calls(reply), calls(sent));
    text(reply) == text(sent)
        && one.len() == other.len()
        && one.iter().zip(other).all(|(one, other)| is_same_call(one, other))
}

/// Returns the text of a message: a string, or text parts.
fn text(message: &Value) -> Option<String> {
    match &message["content"] {
        Value::Null => Some(String::new()),
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => parts.iter().map(|part| part["text"].as_str()).collect(),
        _ => None,
    }
}

fn calls(message: &Value) -> &[Value] {
    message["tool_calls"].as_array().map_or(&[], Vec::as_slice)
}

fn is_same_call(one: &Value, other: &Value) -> bool {
    let (one, other) = (&one["function"], &other["function"]);
    one["name"] == other["name"] && one["arguments"] == other["arguments"]
}

/// Returns a reply as a message of a history: without fields that only responses have.
pub(super) fn history_message(reply: &Value) -> Value {
    let mut message = json!({ "role": "assistant", "content": reply["content"] });
    for name in ["tool_calls", "reasoning", "reasoning_content"] {
        let value = &reply[name];
        if value.as_array().is_some_and(|calls| !calls.is_empty()) || value.is_string() {
            message[name] = value.clone();
        }
    }
    message
}
