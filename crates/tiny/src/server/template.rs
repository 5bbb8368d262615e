//! How a conversation becomes a prompt: a mark, then every message's text as it is, and after each
//! of the model's own the mark that ends it.
//!
//! So the only message of a conversation is the prompt, and a conversation that repeats an answer
//! and goes on begins with the tokens of that answer and of its prompt.

use rollway_tiny_model::Vocabulary;
use serde_json::Value;

use super::api_error::TinyApiError;

/// Renders a conversation, ready for the model's turn.
pub(super) fn render(
    vocabulary: &Vocabulary,
    messages: &[Value],
) -> Result<Vec<u32>, TinyApiError> {
    let mut prompt = vec![Vocabulary::BEGIN];
    let mut is_models_turn = false;
    for (number, message) in messages.iter().enumerate() {
        let place = || format!("messages.{number}");
        is_models_turn = match message.get("role").and_then(Value::as_str) {
            Some("system" | "developer" | "user" | "tool") => true,
            Some("assistant") => false,
            Some(other) => {
                let message = format!("there is no role {other}: use user and assistant");
                return Err(TinyApiError::bad(message).at(place()));
            }
            None => return Err(TinyApiError::bad("Field required: role").at(place())),
        };
        let text = text_of(message.get("content")).map_err(|refusal| refusal.at(place()))?;
        prompt.extend(encode(vocabulary, &text).map_err(|refusal| refusal.at(place()))?);
        if !is_models_turn {
            prompt.push(Vocabulary::END);
        }
    }
    if !is_models_turn {
        let message = "the last message is the model's own: there is nothing to answer";
        return Err(TinyApiError::bad(message).at("messages"));
    }
    Ok(prompt)
}

/// Makes tokens of a text.
pub(super) fn encode(vocabulary: &Vocabulary, text: &str) -> Result<Vec<u32>, TinyApiError> {
    vocabulary.encode(text).map_err(|error| TinyApiError::bad(error.to_string()))
}

/// The text of a message: a string, parts with text, or nothing.
fn text_of(content: Option<&Value>) -> Result<String, TinyApiError> {
    let wrong = || TinyApiError::bad("the content is a text, or a list of texts");
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
    fn a_conversation_that_goes_on_begins_with_what_was_said() {
        let vocabulary = Vocabulary::new("0123456789+=");
        let first = json!({ "role": "user", "content": "1+2=" });
        let prompt = render(&vocabulary, std::slice::from_ref(&first)).unwrap();
        assert_eq!(vocabulary.decode(&prompt), "1+2=");
        let answer = json!({ "role": "assistant", "content": "3" });
        let second = json!({ "role": "user", "content": [{ "type": "text", "text": "+4=" }] });
        let later = render(&vocabulary, &[first.clone(), answer.clone(), second]).unwrap();
        let said = [vocabulary.encode("3").unwrap(), vec![Vocabulary::END]].concat();
        assert!(later.starts_with(&[prompt, said].concat()));
        assert!(render(&vocabulary, &[first, answer]).is_err());
    }
}
