//! Experiences of a run: lengths for the list, content for the page.

use bytes::Bytes;
use rollway_experience::deserialize_many;
use serde_json::{Value, json};

use super::interner::{contains, contains_bytes};
use crate::view::{ExperienceDetail, MessageText};

/// Maximum number of shown experiences of a run.
const MAX_EXPERIENCES: usize = 64;

/// Maximum number of shown tokens of an experience.
const MAX_TOKENS: usize = 32 * 1024;

/// Maximum bytes of a shown text or JSON value.
const MAX_TEXT_BYTES: usize = 256 * 1024;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Lengths {
    pub(super) tokens: Option<u64>,
    pub(super) turns: Option<u64>,
    pub(super) version: Option<u64>,
    pub(super) reward: Option<f64>,
}

/// Measures the experiences of a run; all unknown if the payload is invalid.
pub(super) fn lengths(payload: &Bytes) -> Lengths {
    let Ok(experiences) = deserialize_many(payload.clone()) else { return Lengths::default() };
    let rewards: Vec<f64> = experiences.iter().filter_map(|one| one.reward).collect();
    let versions = experiences.iter().filter_map(|one| one.model_versions.as_ref());
    Lengths {
        tokens: Some(experiences.iter().map(|one| one.response_length() as u64).sum()),
        turns: Some(experiences.iter().map(turns).sum()),
        version: versions.flat_map(|versions| versions.spans()).filter_map(|run| run.version).max(),
        reward: (!rewards.is_empty()).then(|| rewards.iter().sum::<f64>() / rewards.len() as f64),
    }
}

/// Counts the sections that the model generated.
fn turns(experience: &rollway_experience::Experience) -> u64 {
    let Some(mask) = &experience.action_mask else { return 1 };
    let mut was = false;
    mask.iter().filter(|is| std::mem::replace(&mut was, *is) != *is && *is).count() as u64
}

/// Decodes the experiences of a run for display, with a message if some are omitted.
///
/// # Errors
/// Message for the page.
pub(super) fn shown(payload: Bytes) -> Result<(Vec<ExperienceDetail>, Option<String>), String> {
    let experiences = deserialize_many(payload)
        .map_err(|error| format!("its payload cannot be decoded: {error}"))?;
    let more = experiences.len().saturating_sub(MAX_EXPERIENCES);
    let message = (more > 0).then(|| format!("{more} more experiences are not shown"));
    Ok((experiences.iter().take(MAX_EXPERIENCES).map(show).collect(), message))
}

fn show(one: &rollway_experience::Experience) -> ExperienceDetail {
    let mut is_cut = one.tokens.len() > MAX_TOKENS;
    let response = MAX_TOKENS.saturating_sub(one.prompt_length);
    let mut text = |text: &Option<String>| {
        let text = text.as_deref()?;
        is_cut |= text.len() > MAX_TEXT_BYTES;
        Some(text[..text.floor_char_boundary(MAX_TEXT_BYTES)].to_owned())
    };
    let (prompt_text, response_text) = (text(&one.prompt_text), text(&one.response_text));
    let mut value = |json: Option<&rollway_experience::Json>| match json {
        Some(json) if json.bytes().len() > MAX_TEXT_BYTES => {
            is_cut = true;
            Value::Null
        }
        Some(json) => json.value(),
        None => Value::Null,
    };
    let (messages, info) = (value(one.messages.as_ref()), value(Some(&one.info)));
    let logprobs = one.logprobs.as_ref().map(|logprobs| {
        logprobs.iter().take(response).map(|number| rounded(f64::from(number))).collect()
    });
    let mask = one.action_mask.as_ref();
    ExperienceDetail {
        eid: json!(one.eid.to_string()),
        reward: one.reward,
        messages,
        prompt_text,
        response_text,
        tokens: one.tokens.iter().take(MAX_TOKENS).map(i64::from).collect(),
        texts: None,
        logprobs,
        mask: mask.map(|mask| mask.iter().take(response).collect()).unwrap_or_default(),
        prompt_length: one.prompt_length as u64,
        versions: one
            .model_versions
            .as_ref()
            .map(|versions| versions.iter().take(response).collect()),
        metrics: json!(one.metrics),
        info,
        truncated: is_cut,
    }
}

/// Place of a text in the messages of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextMatch {
    /// In the messages before the first one of the model, which all runs of the task have.
    Prompt,
    Later,
}

/// Searches for a text in lower case.
pub(super) fn find_text(payload: Bytes, text: &str) -> Option<TextMatch> {
    // JSON escapes other characters.
    let is_plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~') && !b"\"\\".contains(&byte));
    if is_plain && !contains_bytes(&payload, text) {
        return None;
    }
    let experiences = deserialize_many(payload).ok()?;
    let mut found = None;
    for (number, one) in experiences.iter().enumerate() {
        let messages = one.messages.as_ref().map(|json| json.value());
        let Some(messages) = messages.as_ref().and_then(Value::as_array) else {
            let is_in = |text_of: &Option<String>| {
                text_of.as_deref().is_some_and(|shown| contains(shown, text))
            };
            if number == 0 && is_in(&one.prompt_text) {
                return Some(TextMatch::Prompt);
            }
            if is_in(&one.prompt_text) || is_in(&one.response_text) {
                found = Some(TextMatch::Later);
            }
            continue;
        };
        let mut is_prompt = true;
        for message in messages.iter().map(message) {
            is_prompt &= message.role != "assistant";
            if contains(&message.text, text) {
                if is_prompt {
                    return Some(TextMatch::Prompt);
                }
                found = Some(TextMatch::Later);
            }
        }
    }
    found
}

/// Maximum bytes of a conversation.
const MAX_CONVERSATION_BYTES: usize = 24 * 1024;

/// Returns the longest conversation of a run as text, and whether parts are omitted. Experiences
/// without messages have a prompt and a response.
pub(super) fn conversation(payload: Bytes) -> (Vec<MessageText>, bool) {
    let experiences = deserialize_many(payload).unwrap_or_default();
    let of = |one: &rollway_experience::Experience| {
        let messages = one.messages.as_ref().filter(|json| json.bytes().len() <= MAX_TEXT_BYTES);
        let listed = messages.and_then(|json| json.value().as_array().cloned());
        match listed.filter(|messages| !messages.is_empty()) {
            Some(messages) => messages.iter().map(message).collect(),
            None => [("prompt", &one.prompt_text), ("response", &one.response_text)]
                .into_iter()
                .filter_map(|(role, text)| Some((role.to_owned(), text.clone()?)))
                .map(|(role, text)| MessageText { role, text })
                .collect::<Vec<_>>(),
        }
    };
    let Some(mut messages) = experiences.iter().map(of).max_by_key(Vec::len) else {
        return (Vec::new(), false);
    };
    let mut left = MAX_CONVERSATION_BYTES;
    let mut is_cut = false;
    messages.retain_mut(|message| {
        is_cut |= message.text.len() > left;
        message.text.truncate(message.text.floor_char_boundary(left));
        let is_kept = left > 0;
        left -= message.text.len();
        is_kept
    });
    (messages, is_cut)
}

/// Returns role and text of a message; tool calls are `name(arguments)`.
fn message(value: &Value) -> MessageText {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let mut parts: Vec<String> = match &value["content"] {
        Value::String(text) => vec![text.clone()],
        Value::Array(parts) => parts.iter().filter_map(|part| text(&part["text"])).collect(),
        _ => Vec::new(),
    };
    for call in value["tool_calls"].as_array().into_iter().flatten() {
        let function = &call["function"];
        let name = text(&function["name"]).unwrap_or_else(|| "tool".to_owned());
        let arguments = text(&function["arguments"]).unwrap_or_default();
        parts.push(format!("{name}({arguments})"));
    }
    let role = text(&value["role"]).unwrap_or_default();
    MessageText { role, text: parts.join("\n") }
}

/// Rounds to five digits, which shortens the JSON.
fn rounded(number: f64) -> f64 {
    (number * 1e5).round() / 1e5
}

#[cfg(test)]
pub(super) mod tests {
    use rollway_experience::{Array, Experience, ExperienceFields, Json, serialize};

    use super::*;

    /// Returns the payload of a run with a question and an answer.
    pub(in crate::history) fn payload(question: &str, answer: &str) -> Bytes {
        let messages = json!([
            { "role": "user", "content": question },
            { "role": "assistant", "content": answer },
        ]);
        let fields = ExperienceFields {
            tokens: Array::from(vec![1, 2]),
            prompt_length: 1,
            messages: Some(Json::from_value(&messages).unwrap()),
            ..ExperienceFields::default()
        };
        serialize(&Experience::new(fields).unwrap()).unwrap()
    }

    #[test]
    fn texts_are_found_in_prompts_and_answers_only() {
        let found = |text| find_text(payload("What is \"17+25\"?\nSay 長さ", "It is 42"), text);
        assert_eq!(found("what is"), Some(TextMatch::Prompt));
        assert_eq!(found("\"17+25\"?\nsay"), Some(TextMatch::Prompt), "escaped in JSON");
        assert_eq!(found("長さ"), Some(TextMatch::Prompt));
        assert_eq!(found("it is 42"), Some(TextMatch::Later));
        assert_eq!(found("43"), None);
        assert_eq!(found("assistant"), None, "a part of the JSON, but of no message");
    }
}
