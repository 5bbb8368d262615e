//! Verifies that the log-probabilities of a response omit no token.

use serde_json::{Map, Value};

use crate::server_api::ResponseParseError;

#[derive(Debug)]
pub(super) struct TokenCheck {
    /// All tokens of the first choice, from newer servers.
    tokens: Option<Vec<i64>>,
    /// True if a stop string ended the first choice.
    stopped_by_word: bool,
    /// Number of tokens of the first choice.
    count: Option<u64>,
}

impl TokenCheck {
    pub(super) fn new(body: &Map<String, Value>, choices: usize) -> Self {
        let details = body.get("__verbose");
        let tokens = details.and_then(|details| details.get("tokens")).and_then(Value::as_array);
        let stop = details.and_then(|details| details.get("stop_type")).and_then(Value::as_str);
        let count = body.get("usage").and_then(|usage| usage.get("completion_tokens"));
        let count = count.and_then(Value::as_u64);
        Self {
            tokens: tokens.and_then(|tokens| tokens.iter().map(Value::as_i64).collect()),
            stopped_by_word: stop == Some("word"),
            // Some servers count all choices together.
            count: count.filter(|_| choices == 1),
        }
    }

    pub(super) fn check(
        &self,
        position: usize,
        returned: &[i32],
        entries: &[Value],
        reply: &Value,
    ) -> Result<(), ResponseParseError> {
        match (&self.tokens, self.count) {
            (Some(tokens), _) if position == 0 => self.against_tokens(returned, tokens),
            (None, Some(count)) if position == 0 => against_count(returned, count),
            _ => against_bytes(position, entries, reply),
        }
    }

    /// A token that ends inside a character is omitted everywhere, so that no other entry can be
    /// mistaken for it: entries that are a prefix of the tokens are these tokens. Entries of a stop
    /// string are removed on purpose.
    fn against_tokens(&self, returned: &[i32], tokens: &[i64]) -> Result<(), ResponseParseError> {
        let is_prefix = returned.len() <= tokens.len()
            && returned.iter().zip(tokens).all(|(returned, token)| i64::from(*returned) == *token);
        if is_prefix && (returned.len() == tokens.len() || self.stopped_by_word) {
            return Ok(());
        }
        Err(omitted_tokens(returned.len(), tokens.len() as u64))
    }
}

fn against_count(returned: &[i32], count: u64) -> Result<(), ResponseParseError> {
    if returned.len() as u64 == count { Ok(()) } else { Err(omitted_tokens(returned.len(), count)) }
}

/// Without a count: bytes of an omitted token are part of a later entry or of the text. If all are
/// ASCII, no token ended inside a character.
fn against_bytes(
    position: usize,
    entries: &[Value],
    reply: &Value,
) -> Result<(), ResponseParseError> {
    let is_ascii = |entry: &Value| {
        let bytes = entry.get("bytes").and_then(Value::as_array);
        bytes.is_some_and(|bytes| {
            bytes.iter().all(|byte| byte.as_u64().is_some_and(|byte| byte < 0x80))
        })
    };
    if reply.to_string().is_ascii() && entries.iter().all(is_ascii) {
        return Ok(());
    }
    Err(ResponseParseError::new(format!(
        "llama-server does not return all tokens of choice {position}, which is not ASCII: request \
         one choice at a time"
    )))
}

fn omitted_tokens(returned: usize, all: u64) -> ResponseParseError {
    ResponseParseError::new(format!(
        "llama-server returned {returned} of {all} tokens with their log-probabilities: it omits \
         tokens that end inside a character"
    ))
}
