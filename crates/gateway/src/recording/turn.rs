//! One turn: a prompt, and what the model said to it.

use rollway_experience::ModelVersions;
use rollway_model_api::{ModelCall, ModelResponse, ResponseEnd};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::RecordError;

/// One choice of one answer, with everything that a trainer needs of it.
///
/// It can be written and read again with serde, to the last bit: arrays become base64 of their
/// little-endian bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// What the client knows it by: the answer's id, and for choices after the first `/` and the
    /// index of the choice.
    pub id: String,
    /// The name of the model.
    pub model: String,
    /// The ids of the prompt's tokens.
    #[serde(with = "packed")]
    pub prompt: Vec<i32>,
    /// The ids of the tokens that the model said.
    #[serde(with = "packed")]
    pub tokens: Vec<i32>,
    /// The log-probability of each of them; empty if the server does not tell.
    #[serde(with = "packed")]
    pub logprobs: Vec<f32>,
    /// Which version of the model said which of them.
    #[serde(with = "runs")]
    pub versions: ModelVersions,
    /// Why the model stopped, as the server says.
    pub finish_reason: Option<String>,
    /// Whether the client left before the end.
    pub aborted: bool,
    /// The messages of the prompt, if it was a chat.
    pub messages: Option<Value>,
    /// The tools that the model was offered.
    pub tools: Option<Value>,
    /// What the model said: a message, or a text.
    pub reply: Value,
}

impl Turn {
    /// Returns the turns of an answer that are worth keeping: all choices of a complete one, and of
    /// an aborted one those with tokens.
    pub fn of(call: &ModelCall, answer: ModelResponse) -> Result<Vec<Self>, RecordError> {
        let is_aborted = answer.end == ResponseEnd::Aborted;
        let ReturnedTokens { prompt, choices } =
            match returned_tokens(answer.prompt, answer.choices, is_aborted) {
                Some(told) => told,
                None if is_aborted => return Ok(Vec::new()),
                None => return Err(RecordError::NoTokens(answer.model)),
            };
        let turn = |(index, choice): (usize, rollway_model_api::ResponseChoice)| Self {
            id: turn_id(&answer.id, index),
            model: answer.model.clone(),
            prompt: prompt.clone(),
            tokens: choice.tokens.unwrap_or_default(),
            logprobs: choice.logprobs.unwrap_or_default(),
            versions: choice.versions,
            finish_reason: choice.finish_reason,
            aborted: is_aborted,
            messages: call.body.get("messages").cloned(),
            tools: call.body.get("tools").cloned(),
            reply: choice.reply,
        };
        Ok(choices.into_iter().map(turn).collect())
    }

    /// The log-probabilities, if the server tells them.
    pub(super) fn told_logprobs(&self) -> Option<&[f32]> {
        (self.logprobs.len() == self.tokens.len() || !self.logprobs.is_empty())
            .then_some(&self.logprobs[..])
    }
}

/// What a server has told of an answer.
pub(super) struct ReturnedTokens {
    /// The ids of the prompt's tokens.
    pub(super) prompt: Vec<i32>,
    /// The choices that are worth keeping, with their indices.
    pub(super) choices: Vec<(usize, rollway_model_api::ResponseChoice)>,
}

/// Returns what is worth keeping of an answer; none if the tokens were not told.
pub(super) fn returned_tokens(
    prompt: Option<Vec<i32>>,
    choices: Vec<rollway_model_api::ResponseChoice>,
    is_aborted: bool,
) -> Option<ReturnedTokens> {
    let prompt = prompt?;
    let mut choices: Vec<_> = choices.into_iter().enumerate().collect();
    if is_aborted {
        choices.retain(|(_, choice)| choice.tokens.as_ref().is_some_and(|some| !some.is_empty()));
        if choices.is_empty() {
            return None;
        }
    } else if choices.iter().any(|(_, choice)| choice.tokens.is_none()) {
        return None;
    }
    Some(ReturnedTokens { prompt, choices })
}

/// What the client knows a choice by.
pub(super) fn turn_id(answer: &str, index: usize) -> String {
    if index == 0 { answer.to_owned() } else { format!("{answer}/{index}") }
}

/// Arrays as base64 of their bytes.
mod packed {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use rollway_experience::{Array, Element};
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<T: Element, S: Serializer>(
        elements: &[T],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let array: Array<T> = elements.iter().copied().collect();
        serializer.serialize_str(&STANDARD.encode(array.bytes()))
    }

    pub(super) fn deserialize<'de, T: Element, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        let bytes = STANDARD.decode(text.as_bytes()).map_err(Error::custom)?;
        let array = Array::<T>::from_bytes(bytes.into()).map_err(Error::custom)?;
        Ok(array.to_vec())
    }
}

/// Versions as pairs of a version and a number of tokens.
mod runs {
    use rollway_experience::{ModelVersions, VersionRun};
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        versions: &ModelVersions,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(versions.runs().iter().map(|run| (run.version, run.tokens)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<ModelVersions, D::Error> {
        let runs = Vec::<(Option<u64>, u32)>::deserialize(deserializer)?;
        let runs = runs.into_iter().map(|(version, tokens)| VersionRun { version, tokens });
        ModelVersions::from_runs(runs).map_err(Error::custom)
    }
}
