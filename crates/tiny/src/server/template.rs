//! Chat template: the start token, then the text of every message; messages of the assistant are
//! followed by the end token.
//!
//! A conversation that repeats a completion and continues thus begins with the tokens of the
//! earlier prompt and completion.

use rollway_tiny_model::Vocabulary;
use serde_json::Value;

use super::api_error::TinyApiError;

/// Renders a conversation as a prompt.
pub(super) fn render(
    vocabulary: &Vocabulary,
    messages: &[Value],
) -> Result<Vec<u32>, TinyApiError> {
    let mut prompt = vec![Vocabulary::BEGIN];
    let mut needs_completion = false;
    for (number, message) in messages.iter().enumerate() {
        let path = || format!("messages.{number}");
        needs_completion = match message.get("role").and_then(Value::as_str) {
            Some("system" | "developer" | "user" | "tool") => true,
            Some("assistant") => false,
            Some(other) => {
                let message = format!("unknown role {other}: use user or assistant");
                return Err(TinyApiError::bad(message).at(path()));
            }
            None => return Err(TinyApiError::bad("Field required: role").at(path())),
        };
        let text = text_of(message.get("content")).map_err(|refusal| refusal.at(path()))?;
        prompt.extend(encode(vocabulary, &text).map_err(|refusal| refusal.at(path()))?);
        if !needs_completion {
            prompt.push(Vocabulary::END);
        }
    }
    if !needs_completion {
        let message = "the last message is from the assistant: there is nothing to complete";
        return Err(TinyApiError::bad(message).at("messages"));
    }
    Ok(prompt)
}

pub(super) fn encode(vocabulary: &Vocabulary, text: &str) -> Result<Vec<u32>, TinyApiError> {
    vocabulary.encode(text).map_err(|error| TinyApiError::bad(error.to_string()))
}

/// Text of a message: a string, text parts, or nothing.
fn text_of(content: Option<&Value>) -> Result<String, TinyApiError> {
    let wrong = || TinyApiError::bad("content must be a text or a list of texts");
    let part = |part: &Value| match part {
        Value::String(text) => Ok(text.clone()),
        part => part.get("text").and_then(Value::as_str).map(str::to_owned).ok_or_else(wrong),
    };
    match content {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::Array(parts)) => parts.iter().map(part).collect(),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn continued_conversations_begin_with_the_earlier_tokens() {
        let vocabulary = Vocabulary::new("0123456789+=");
        let first = json!({ "role": "user", "content": "1+2=" });
        let prompt = render(&vocabulary, std::slice::from_ref(&first)).unwrap();
        assert_eq!(vocabulary.decode(&prompt), "1+2=");
        let answer = json!({ "role": "assistant", "content": "3" });
        let second = json!({ "role": "user", "content": [{ "type": "text", "text": "+4=" }] });
        let later = render(&vocabulary, &[first.clone(), answer.clone(), second]).unwrap();
        let completion = [vocabulary.encode("3").unwrap(), vec![Vocabulary::END]].concat();
        assert!(later.starts_with(&[prompt, completion].concat()));
        assert!(render(&vocabulary, &[first, answer]).is_err());
    }
}
