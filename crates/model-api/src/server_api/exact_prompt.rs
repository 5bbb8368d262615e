//! Exact prompts: a chat that continues a recorded turn is sent with the tokens of that turn.
//!
//! A chat template tokenizes the text of earlier turns anew, and may get other tokens than those
//! that were sampled. The exact prompt consists of the tokens of the recorded turn and of the
//! rendered tokens after it:
//!
//! ```text
//! recorded turn      P P P A A A E
//! rendered history   P P P a a E n            ends with the reply, without a prompt for the next
//! rendered call      P P P a a E n U U E n G
//! exact prompt       P P P A A A E n U U E n G
//! ```
//!
//! `E` is the last token of the recorded turn, which ended it. The rendered call must begin with
//! the rendered history up to `E`. Otherwise the template rewrites earlier turns, for example
//! removes their reasoning: the call is sent as a chat, with the prompt that the template wants.

use bytes::Bytes;
use serde_json::{Map, Value};

use super::{ResponseParseError, UpstreamBody};

/// Maximum number of tokens that a template appends after the end of a reply.
const MAX_TAIL: usize = 8;

/// Fields that select a form of the response; renderings have none of them.
const RESPONSE_FIELDS: [&str; 4] = ["stream", "stream_options", "logprobs", "top_logprobs"];

/// A recorded turn that a call continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedPrefix {
    /// Prompt and completion. The last token ended the turn.
    pub tokens: Vec<i32>,
    /// Number of messages of the call up to the reply of the turn, including it.
    pub messages: usize,
}

/// Sends a chat with an exact prompt. The caller sends the requests.
pub trait ExactPrompt: Send {
    fn start(&mut self) -> ExactStep;

    /// Takes the reply to the last request, and returns the next step.
    fn reply(&mut self, reply: Value) -> Result<ExactStep, ResponseParseError>;
}

#[derive(Clone, Debug, PartialEq)]
pub enum ExactStep {
    Request(UpstreamBody),
    /// The request that generates. It can be aborted like the chat.
    Generate(UpstreamBody),
    /// The response, in the form of the chat endpoint.
    Response(Bytes),
    /// The call must be sent as a chat.
    Chat(ChatReason),
}

/// Reason why a call that continues a recorded turn is sent as a chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChatReason {
    /// The template reproduces the tokens of the turn.
    Reproduced,
    /// The template rewrites earlier turns, or ends them with other tokens than the model.
    Rewritten,
    /// The call has images or other content besides text.
    NotText,
}

/// Returns the exact prompt. `None`: the template rewrites earlier turns.
pub(super) fn splice(turn: &[i32], history: &[i32], prompt: &[i32]) -> Option<Vec<i32>> {
    let end = turn.last()?;
    let tail = history.len().saturating_sub(MAX_TAIL);
    let at = tail + history.get(tail..)?.iter().rposition(|token| token == end)?;
    let is_appended = prompt.get(..=at)? == &history[..=at];
    let rest = prompt.get(at + 1..).filter(|rest| is_appended && !rest.is_empty())?;
    Some([turn, rest].concat())
}

/// Returns the body that renders the history: the call up to the reply of the recorded turn.
pub(super) fn history_body(call: &Map<String, Value>, messages: usize) -> Map<String, Value> {
    let mut body = rendering_body(call);
    if let Some(Value::Array(all)) = body.get_mut("messages") {
        all.truncate(messages);
    }
    body.insert("add_generation_prompt".to_owned(), false.into());
    body
}

/// Returns the body that renders a call.
pub(super) fn rendering_body(call: &Map<String, Value>) -> Map<String, Value> {
    let mut body = call.clone();
    for name in RESPONSE_FIELDS {
        body.remove(name);
    }
    body
}

/// Parses a list of token ids.
pub(super) fn token_ids(reply: &Value, name: &str) -> Result<Vec<i32>, ResponseParseError> {
    let ids = reply.get(name).and_then(Value::as_array);
    let id = |value: &Value| value.as_i64().and_then(|id| i32::try_from(id).ok());
    let ids: Option<Vec<i32>> = ids.and_then(|ids| ids.iter().map(id).collect());
    ids.filter(|ids| !ids.is_empty())
        .ok_or_else(|| ResponseParseError::new(format!("the server returned no {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tokens_of_the_turn_replace_their_rendering() {
        // 9 ends a turn, 7 follows it in the template.
        let (turn, history) = ([1, 20, 21, 9], [1, 30, 9, 7]);
        let spliced = splice(&turn, &history, &[1, 30, 9, 7, 5, 6]);
        assert_eq!(spliced, Some(vec![1, 20, 21, 9, 7, 5, 6]));
    }

    #[test]
    fn a_template_that_rewrites_turns_is_not_spliced() {
        let (turn, history) = ([1, 20, 21, 9], [1, 30, 9, 7]);
        assert_eq!(splice(&turn, &history, &[1, 9, 7, 5, 6]), None, "the reply was removed");
        assert_eq!(splice(&turn, &history, &[1, 30, 9]), None, "nothing follows");
        assert_eq!(splice(&turn, &[1, 30, 8, 7], &[1, 30, 8, 7, 5]), None, "another end");
        let long = [[1, 30, 9].as_slice(), &[7; 9]].concat();
        assert_eq!(splice(&turn, &long, &long), None, "the end is not at the end");
        assert_eq!(splice(&[], &history, &history), None);
    }
}
