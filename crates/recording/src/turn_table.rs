//! Turns of a run, stored compactly.

use std::borrow::Cow;
use std::collections::HashMap;

use rollway_model_api::{CallLabels, ModelCall, ResponseChoice, request_policy};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::RecordError;
use super::merge_plan::MARKS_BYTES;
use super::tokens::{Sequence, TokenBlocks};
use super::trie::{ROOT, Trie, TrieNode};

/// Estimated memory of a turn besides its content.
const TURN_BYTES: usize = size_of::<Option<StoredTurn>>() + MARKS_BYTES + 64;

/// Fields besides messages and tools that the chat template depends on.
const TEMPLATE_FIELDS: [&str; 7] = [
    "add_generation_prompt",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "reasoning_effort",
];

/// Fields that shape the distribution from which tokens are sampled, and the seed.
pub(super) const SAMPLING_FIELDS: [&str; 12] = [
    "allowed_token_ids",
    "bad_words",
    "frequency_penalty",
    "logit_bias",
    "min_p",
    "min_tokens",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "temperature",
    "top_k",
    "top_p",
];

/// Name of the mark of turns whose tokens were not sampled freely, in their sampling parameters.
const CONSTRAINED_BY: &str = "constrained_by";

/// Turns by number, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct TurnTable {
    pub(super) tokens: TokenBlocks,
    pub(super) texts: Trie<str>,
    turns: Vec<Option<StoredTurn>>,
    /// Numbers of turns by the last message before their reply.
    turns_after: HashMap<TrieNode, Vec<usize>>,
    bytes: usize,
}

/// Messages, tools and template of a call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TurnContent {
    pub(super) messages: Option<TrieNode>,
    pub(super) tools: Option<TrieNode>,
    /// Other fields that the chat template depends on.
    pub(super) template: Option<TrieNode>,
    /// True if the completion ends at stop strings or tokens of the client.
    pub(super) has_stop: bool,
    /// Sampling parameters of the request to the server.
    pub(super) sampling: Option<TrieNode>,
    /// Labels of the client.
    pub(super) agent: Option<TrieNode>,
    pub(super) parent: Option<TrieNode>,
}

#[derive(Debug)]
pub(super) struct TurnOrigin<'a> {
    pub(super) id: String,
    pub(super) model: &'a str,
    pub(super) aborted: bool,
}

#[derive(Debug)]
pub(super) struct StoredTurn {
    pub(super) id: String,
    pub(super) model: String,
    /// Prompt and completion.
    pub(super) sequence: Sequence,
    /// Number of prompt tokens.
    pub(super) prompt: usize,
    pub(super) logprobs: Option<Box<[f32]>>,
    pub(super) versions: rollway_experience::ModelVersions,
    pub(super) finish_reason: Option<String>,
    pub(super) aborted: bool,
    pub(super) content: TurnContent,
    /// Message or text as JSON.
    pub(super) reply: Box<str>,
}

impl StoredTurn {
    /// Number of completion tokens.
    pub(super) fn response(&self) -> usize {
        self.sequence.len() - self.prompt
    }
}

impl TurnTable {
    pub(super) fn add_content(
        &mut self,
        messages: Option<&Value>,
        tools: Option<&Value>,
    ) -> Result<TurnContent, RecordError> {
        let messages = match messages {
            None | Some(Value::Null) => None,
            Some(Value::Array(messages)) => Some(
                messages
                    .iter()
                    .fold(ROOT, |node, message| self.texts.step(node, &json_text(message))),
            ),
            Some(_) => return Err(RecordError::Misread("the messages are not a list".to_owned())),
        };
        let tools = tools.filter(|tools| !tools.is_null());
        let tools = tools.map(|tools| self.texts.step(ROOT, &json_text(tools)));
        Ok(TurnContent { messages, tools, ..TurnContent::default() })
    }

    /// Adds everything of a call that its prompt and the end of its completion depend on.
    pub(super) fn add_call(&mut self, call: &ModelCall) -> Result<TurnContent, RecordError> {
        let mut content = self.add_content(call.body.get("messages"), call.body.get("tools"))?;
        let fields = TEMPLATE_FIELDS.iter().filter(|name| call.has(name));
        let fields: Vec<_> = fields.filter_map(|name| call.body.get_key_value(*name)).collect();
        if !fields.is_empty() {
            content.template = Some(self.texts.step(ROOT, &format!("{fields:?}")));
        }
        content.has_stop = call.has("stop") || call.has("stop_token_ids");
        self.add_labels(&mut content, &call.labels);
        Ok(content)
    }

    pub(super) fn add_labels(&mut self, content: &mut TurnContent, labels: &CallLabels) {
        let mut add = |label: &Option<String>| Some(self.texts.step(ROOT, label.as_deref()?));
        (content.agent, content.parent) = (add(&labels.agent), add(&labels.parent));
    }

    pub(super) fn add_sampling(&mut self, sampling: &Value) -> TrieNode {
        self.texts.step(ROOT, &sampling.to_string())
    }

    /// Returns a text that was added.
    pub(super) fn text(&self, node: Option<TrieNode>) -> Option<&str> {
        self.texts.piece(node?)
    }

    /// Returns the numbers of the turns whose last message this is.
    pub(super) fn turns_after(&self, messages: TrieNode) -> &[usize] {
        self.turns_after.get(&messages).map_or(&[], Vec::as_slice)
    }

    /// Returns the last turn with tokens before turn `number` whose last message this is.
    pub(super) fn last_turn_after(&self, messages: TrieNode, number: usize) -> Option<usize> {
        let earlier = self.turns_after(messages).iter().rev().filter(|turn| **turn < number);
        let has_tokens = |turn: &usize| self.get(*turn).is_some_and(|turn| turn.response() > 0);
        earlier.copied().find(has_tokens)
    }

    pub(super) fn push(
        &mut self,
        origin: TurnOrigin<'_>,
        content: TurnContent,
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
            content,
            reply: json_text(&choice.reply).into(),
        };
        self.bytes += bytes(&stored) + TURN_BYTES;
        let number = self.turns.len();
        if let Some(messages) = content.messages {
            self.turns_after.entry(messages).or_default().push(number);
        }
        self.turns.push(Some(stored));
        Ok(number)
    }

    /// Removes a turn. Its number is not reused.
    pub(super) fn remove(&mut self, number: usize) {
        if let Some(removed) = self.turns.get_mut(number).and_then(Option::take) {
            self.bytes -= bytes(&removed);
        }
    }

    pub(super) fn get(&self, number: usize) -> Option<&StoredTurn> {
        self.turns.get(number)?.as_ref()
    }

    /// Returns the turn of a response id.
    pub(super) fn find(&self, id: &str) -> Option<&StoredTurn> {
        self.turns.iter().flatten().find(|turn| turn.id == id)
    }

    pub(super) fn len(&self) -> usize {
        self.turns.len()
    }

    /// Memory. Beginnings shared with removed turns stay counted, since they stay in memory.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.tokens.bytes() + self.texts.bytes()
    }

    pub(super) fn is_assistant(&self, node: TrieNode) -> bool {
        #[derive(Deserialize)]
        struct StoredMessage<'a> {
            #[serde(borrow)]
            role: Option<Cow<'a, str>>,
        }
        let message = self.texts.piece(node).and_then(|text| serde_json::from_str(text).ok());
        message.is_some_and(|StoredMessage { role }| role.is_some_and(|role| role == "assistant"))
    }
}

/// Returns the sampling parameters of a call.
pub(super) fn sampling(call: &ModelCall) -> Value {
    let given = SAMPLING_FIELDS.into_iter().filter(|name| call.has(name));
    let fields = given.filter_map(|name| Some((name.to_owned(), call.body.get(name)?.clone())));
    let mut fields: Map<String, Value> = fields.collect();
    let constraints = request_policy::constraints(&call.body);
    if !constraints.is_empty() {
        fields.insert(CONSTRAINED_BY.to_owned(), constraints.into());
    }
    Value::Object(fields)
}

/// Serializes a value. Several times faster than its `Display`.
fn json_text(value: &Value) -> String {
    // The keys of a value are strings and writing to memory cannot fail.
    serde_json::to_string(value).unwrap_or_default()
}

pub(super) fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

/// Checks that the parts of a turn are consistent.
fn check(
    prompt: &[i32],
    tokens: &[i32],
    logprobs: Option<&[f32]>,
    versions: u64,
) -> Result<(), RecordError> {
    let misread = |problem: String| Err(RecordError::Misread(problem));
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

/// Memory of a turn besides shared parts.
fn bytes(turn: &StoredTurn) -> usize {
    turn.id.len()
        + turn.model.len()
        + turn.sequence.bytes()
        + turn.logprobs.as_deref().map_or(0, size_of_val)
        + size_of_val(turn.versions.spans())
        + turn.finish_reason.as_ref().map_or(0, String::len)
        + turn.reply.len()
}
