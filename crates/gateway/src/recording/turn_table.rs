//! The turns of a run, in little room.

use rollway_model_api::ResponseChoice;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::merge_plan::MARKS_BYTES;
use super::tokens::{Sequence, TokenBlocks};
use super::trie::{ROOT, Trie, TrieNode};
use super::{RecordError, Turn};

/// What a turn takes beside its content.
const TURN_BYTES: usize = size_of::<Option<StoredTurn>>() + MARKS_BYTES;

/// Turns by their numbers, which are given in the order in which the turns come in.
#[derive(Debug, Default)]
pub(super) struct TurnTable {
    pub(super) tokens: TokenBlocks,
    pub(super) texts: Trie<str>,
    turns: Vec<Option<StoredTurn>>,
    bytes: usize,
}

/// What a call said beside its prompt's tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TurnContent {
    /// Where its messages lead to.
    pub(super) messages: Option<TrieNode>,
    /// Its tools, as one text.
    pub(super) tools: Option<TrieNode>,
}

/// Which answer a turn is of.
#[derive(Debug)]
pub(super) struct TurnOrigin<'a> {
    /// What the client knows the turn by.
    pub(super) id: String,
    /// The name of the model.
    pub(super) model: &'a str,
    /// Whether the client left before the end.
    pub(super) aborted: bool,
}

/// A turn that is kept.
#[derive(Debug)]
pub(super) struct StoredTurn {
    pub(super) id: String,
    pub(super) model: String,
    /// Prompt and response.
    pub(super) sequence: Sequence,
    /// How many tokens are the prompt.
    pub(super) prompt: usize,
    pub(super) logprobs: Option<Box<[f32]>>,
    pub(super) versions: rollway_experience::ModelVersions,
    pub(super) finish_reason: Option<String>,
    pub(super) aborted: bool,
    pub(super) said: TurnContent,
    /// A message or a text, as JSON.
    pub(super) reply: Box<str>,
}

impl StoredTurn {
    /// How many tokens the model said.
    pub(super) fn response(&self) -> usize {
        self.sequence.len() - self.prompt
    }
}

impl TurnTable {
    /// Keeps what a call said.
    pub(super) fn add_content(
        &mut self,
        messages: Option<&Value>,
        tools: Option<&Value>,
    ) -> Result<TurnContent, RecordError> {
        let messages = match messages {
            None | Some(Value::Null) => None,
            Some(Value::Array(messages)) => Some(messages.iter().fold(ROOT, |node, message| {
                let text = message.to_string();
                self.texts.step(node, &text)
            })),
            Some(_) => return Err(RecordError::Misread("the messages are no list".to_owned())),
        };
        let tools = tools.filter(|tools| !tools.is_null());
        let tools = tools.map(|tools| self.texts.step(ROOT, &tools.to_string()));
        Ok(TurnContent { messages, tools })
    }

    /// Keeps a turn and returns its number.
    pub(super) fn push(
        &mut self,
        origin: TurnOrigin<'_>,
        said: TurnContent,
        prompt: &[i32],
        choice: ResponseChoice,
    ) -> Result<usize, RecordError> {
        let tokens = choice.tokens.unwrap_or_default();
        check(prompt, &tokens, choice.logprobs.as_deref(), choice.versions.tokens())?;
        let sequence = self.tokens.keep(&[prompt, &tokens].concat());
        let stored = StoredTurn {
            id: origin.id,
            model: origin.model.to_owned(),
            sequence,
            prompt: prompt.len(),
            logprobs: choice.logprobs.map(Into::into),
            versions: choice.versions,
            finish_reason: choice.finish_reason,
            aborted: origin.aborted,
            said,
            reply: choice.reply.to_string().into(),
        };
        self.bytes += bytes(&stored) + TURN_BYTES;
        self.turns.push(Some(stored));
        Ok(self.turns.len() - 1)
    }

    /// Takes a turn away. Its number is not used again.
    pub(super) fn remove(&mut self, number: usize) {
        if let Some(removed) = self.turns.get_mut(number).and_then(Option::take) {
            self.bytes -= bytes(&removed);
        }
    }

    /// Returns a turn, unless it was taken away.
    pub(super) fn get(&self, number: usize) -> Option<&StoredTurn> {
        self.turns.get(number)?.as_ref()
    }

    /// How many numbers were given.
    pub(super) fn len(&self) -> usize {
        self.turns.len()
    }

    /// How many bytes are taken. Beginnings that a removed turn has shared stay counted: they are
    /// still there.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.tokens.bytes() + self.texts.bytes()
    }

    /// Returns a turn with everything it has in common with others.
    pub(super) fn turn(&self, number: usize) -> Option<Turn> {
        let stored = self.get(number)?;
        let mut prompt = self.tokens.read(&stored.sequence);
        let tokens = prompt.split_off(stored.prompt);
        let tools = stored.said.tools.and_then(|node| self.texts.piece(node)).map(value);
        Some(Turn {
            id: stored.id.clone(),
            model: stored.model.clone(),
            prompt,
            tokens,
            logprobs: stored.logprobs.as_deref().unwrap_or_default().to_vec(),
            versions: stored.versions.clone(),
            finish_reason: stored.finish_reason.clone(),
            aborted: stored.aborted,
            messages: stored.said.messages.map(|node| {
                let path = self.texts.path(node);
                path.into_iter().filter_map(|node| self.texts.piece(node)).map(value).collect()
            }),
            tools,
            reply: value(&stored.reply),
        })
    }

    /// Whether a text is a message of the model.
    pub(super) fn is_assistant(&self, node: TrieNode) -> bool {
        #[derive(Deserialize)]
        struct StoredMessage<'a> {
            #[serde(borrow)]
            role: Option<&'a RawValue>,
        }
        let message = self.texts.piece(node).and_then(|text| serde_json::from_str(text).ok());
        message.is_some_and(|StoredMessage { role }| {
            role.is_some_and(|role| role.get() == "\"assistant\"")
        })
    }
}

/// Reads a text that was written from a value.
pub(super) fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

/// Checks that what is told of a turn fits together.
fn check(
    prompt: &[i32],
    tokens: &[i32],
    logprobs: Option<&[f32]>,
    versions: u64,
) -> Result<(), RecordError> {
    let misread = |what: String| Err(RecordError::Misread(what));
    if prompt.is_empty() {
        return misread("its prompt has no tokens".to_owned());
    }
    let found = tokens.len();
    if let Some(logprobs) = logprobs
        && logprobs.len() != found
    {
        return misread(format!("{found} tokens have {} log-probabilities", logprobs.len()));
    }
    if versions != found as u64 {
        return misread(format!("{found} tokens have model versions for {versions}"));
    }
    Ok(())
}

/// How many bytes a turn takes beside what it may share.
fn bytes(turn: &StoredTurn) -> usize {
    turn.id.len()
        + turn.model.len()
        + turn.sequence.bytes()
        + turn.logprobs.as_deref().map_or(0, size_of_val)
        + size_of_val(turn.versions.runs())
        + turn.finish_reason.as_ref().map_or(0, String::len)
        + turn.reply.len()
}
