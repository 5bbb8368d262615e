//! Arguments of recorded tool calls, in the text that the model generated.
//!
//! Clients parse the arguments and write them anew in the history of the next call. Other spaces or
//! another order of keys would be other tokens: the conversation would drift from what was sampled.

use std::collections::HashMap;

use serde_json::Value;

/// Texts by the id of the tool call.
#[derive(Debug, Default)]
pub(super) struct ToolArguments {
    texts: HashMap<Box<str>, Box<str>>,
    bytes: usize,
}

impl ToolArguments {
    /// Remembers the tool calls of a message.
    pub(super) fn record_calls(&mut self, message: &Value) {
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let (id, text) = (call["id"].as_str(), call["function"]["arguments"].as_str());
            if let (Some(id), Some(text)) = (id, text)
                && self.texts.insert(id.into(), text.into()).is_none()
            {
                self.bytes += id.len() + text.len() + 2 * size_of::<Box<str>>();
            }
        }
    }

    /// Restores the texts of arguments that have equal values.
    pub(super) fn restore(&self, messages: &mut Value) {
        if self.texts.is_empty() {
            return;
        }
        for message in messages.as_array_mut().into_iter().flatten() {
            let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
            for call in calls.into_iter().flatten() {
                let Some(text) = call["id"].as_str().and_then(|id| self.texts.get(id)) else {
                    continue;
                };
                let Some(Value::String(sent)) = call.pointer_mut("/function/arguments") else {
                    continue;
                };
                if **sent != **text && is_equal(sent, text) {
                    *sent = text.to_string();
                }
            }
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

fn is_equal(one: &str, other: &str) -> bool {
    let value = |text| serde_json::from_str::<Value>(text).ok();
    value(one).is_some_and(|one| Some(one) == value(other))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(id: &str, arguments: &str) -> Value {
        let function = json!({ "name": "f", "arguments": arguments });
        json!({ "role": "assistant", "tool_calls": [{ "id": id, "function": function }] })
    }

    #[test]
    fn equal_arguments_get_the_text_that_was_generated() {
        let mut known = ToolArguments::default();
        known.record_calls(&message("a", "{\"z\":1, \"b\":[1,2]}"));
        let restored = |id: &str, sent: &str| {
            let mut messages = json!([{ "role": "user" }, message(id, sent)]);
            known.restore(&mut messages);
            messages[1]["tool_calls"][0]["function"]["arguments"].as_str().unwrap().to_owned()
        };
        assert_eq!(restored("a", "{\"b\": [1, 2], \"z\": 1}"), "{\"z\":1, \"b\":[1,2]}");
        assert_eq!(restored("a", "{\"b\": [1, 2], \"z\": 2}"), "{\"b\": [1, 2], \"z\": 2}");
        assert_eq!(restored("b", "{\"b\": [1, 2], \"z\": 1}"), "{\"b\": [1, 2], \"z\": 1}");
        assert_eq!(restored("a", "not JSON"), "not JSON");
        assert!(known.bytes() > 0);
    }
}
