//! Whether the log-probabilities of an answer leave out no token.

use serde_json::{Map, Value};

use crate::server_api::ResponseParseError;

/// What an answer says about its tokens besides their log-probabilities.
#[derive(Debug)]
pub(super) struct TokenCheck {
    /// All tokens of the first choice, in newer servers.
    tokens: Option<Vec<i64>>,
    /// Whether the first choice ended with one of the strings that the client named.
    stopped_by_word: bool,
    /// How many tokens the first choice has. Servers do not state more than that.
    count: Option<u64>,
}

impl TokenCheck {
    /// Takes what an answer of so many choices says.
    pub(super) fn new(body: &Map<String, Value>, choices: usize) -> Self {
        let details = body.get("__verbose");
        let tokens = details.and_then(|details| details.get("tokens")).and_then(Value::as_array);
        let stop = details.and_then(|details| details.get("stop_type")).and_then(Value::as_str);
        let count = body.get("usage").and_then(|usage| usage.get("completion_tokens"));
        let count = count.and_then(Value::as_u64);
        Self {
            tokens: tokens.and_then(|tokens| tokens.iter().map(Value::as_i64).collect()),
            stopped_by_word: stop == Some("word"),
            // A server that counts all choices together states nothing about the first.
            count: count.filter(|_| choices == 1),
        }
    }

    /// Checks the choice at a position.
    pub(super) fn check(
        &self,
        position: usize,
        told: &[i32],
        entries: &[Value],
        reply: &Value,
    ) -> Result<(), ResponseParseError> {
        match (&self.tokens, self.count) {
            (Some(tokens), _) if position == 0 => self.against_tokens(told, tokens),
            (None, Some(count)) if position == 0 => against_count(told, count),
            _ => against_bytes(position, entries, reply),
        }
    }

    /// A token is left out when it ends inside a character, and then it is left out wherever it
    /// stands: the next entry can never be mistaken for it. So entries that begin like the tokens
    /// are those tokens. Entries of the string that ended the answer are cut off on purpose.
    fn against_tokens(&self, told: &[i32], tokens: &[i64]) -> Result<(), ResponseParseError> {
        let is_beginning = told.len() <= tokens.len()
            && told.iter().zip(tokens).all(|(told, token)| i64::from(*told) == *token);
        if is_beginning && (told.len() == tokens.len() || self.stopped_by_word) {
            return Ok(());
        }
        Err(left_out(told.len(), tokens.len() as u64))
    }
}

fn against_count(told: &[i32], count: u64) -> Result<(), ResponseParseError> {
    if told.len() as u64 == count { Ok(()) } else { Err(left_out(told.len(), count)) }
}

/// Without a count: bytes of a token that is left out are told with a later entry, or stand at the
/// end of the text. Where all of them are ASCII, no token ended inside a character.
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
    Err(ResponseParseError(format!(
        "llama-server does not tell all tokens of choice {position}, which has characters beyond \
         ASCII: ask for one choice at a time"
    )))
}

fn left_out(told: usize, all: u64) -> ResponseParseError {
    ResponseParseError(format!(
        "llama-server told {told} of {all} tokens with their log-probabilities: it leaves out \
         tokens that end inside a character"
    ))
}
