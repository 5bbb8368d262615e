//! Turns: a prompt and one completion.

use rollway_experience::ModelVersions;
use rollway_model_api::{CallLabels, ModelCall, ModelResponse, ResponseChoice, ResponseEnd};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::RecordError;
use super::turn_table::sampling;

/// One choice of a response with everything that a trainer needs. Serialization is exact: arrays
/// are base64 of their little-endian bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// The response id; of later choices followed by `/` and their index.
    pub id: String,
    pub model: String,
    #[serde(with = "packed")]
    pub prompt: Vec<i32>,
    #[serde(with = "packed")]
    pub tokens: Vec<i32>,
    /// Empty: the server did not return them.
    #[serde(with = "packed")]
    pub logprobs: Vec<f32>,
    #[serde(with = "runs")]
    pub versions: ModelVersions,
    pub finish_reason: Option<String>,
    pub aborted: bool,
    pub messages: Option<Value>,
    pub tools: Option<Value>,
    pub reply: Value,
    /// Sampling parameters of the request to the server. Absent in turns of earlier releases.
    #[serde(default)]
    pub sampling: Option<Value>,
    /// Label of the client: name of the agent.
    #[serde(default)]
    pub agent: Option<String>,
    /// Label of the client: id of the response from which the call originates.
    #[serde(default)]
    pub parent: Option<String>,
}

impl Turn {
    /// Returns the turns worth recording: all choices of a complete response, those with tokens of
    /// an aborted one.
    pub fn of(call: &ModelCall, response: ModelResponse) -> Result<Vec<Self>, RecordError> {
        let is_aborted = response.end == ResponseEnd::Aborted;
        let (prompt, choices) = match returned_tokens(response.prompt, response.choices, is_aborted)
        {
            Some(returned) => returned,
            None if is_aborted => return Ok(Vec::new()),
            None => return Err(RecordError::NoTokens(response.model)),
        };
        let turn = |(index, choice): (usize, ResponseChoice)| Self {
            id: turn_id(&response.id, index),
            model: response.model.clone(),
            prompt: prompt.clone(),
            tokens: choice.tokens.unwrap_or_default(),
            logprobs: choice.logprobs.unwrap_or_default(),
            versions: choice.versions,
            finish_reason: choice.finish_reason,
            aborted: is_aborted,
            messages: call.body.get("messages").cloned(),
            tools: call.body.get("tools").cloned(),
            reply: choice.reply,
            sampling: Some(sampling(call)),
            agent: call.labels.agent.clone(),
            parent: call.labels.parent.clone(),
        };
        Ok(choices.into_iter().map(turn).collect())
    }

    pub(super) fn labels(&self) -> CallLabels {
        CallLabels { agent: self.agent.clone(), parent: self.parent.clone() }
    }

    /// Returns the log-probabilities. `None`: the server did not return them.
    pub(super) fn reported_logprobs(&self) -> Option<Vec<f32>> {
        let is_reported = self.logprobs.len() == self.tokens.len() || !self.logprobs.is_empty();
        is_reported.then(|| self.logprobs.clone())
    }
}

type IndexedChoices = Vec<(usize, ResponseChoice)>;

/// Returns the prompt's token ids, and the choices worth recording with their indices. `None`: the
/// server did not return token ids.
pub(super) fn returned_tokens(
    prompt: Option<Vec<i32>>,
    choices: Vec<ResponseChoice>,
    is_aborted: bool,
) -> Option<(Vec<i32>, IndexedChoices)> {
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
    Some((prompt, choices))
}

pub(super) fn turn_id(response: &str, index: usize) -> String {
    if index == 0 { response.to_owned() } else { format!("{response}/{index}") }
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
    use rollway_experience::{ModelVersions, VersionSpan};
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        versions: &ModelVersions,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(versions.spans().iter().map(|run| (run.version, run.tokens)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<ModelVersions, D::Error> {
        let runs = Vec::<(Option<u64>, u32)>::deserialize(deserializer)?;
        let runs = runs.into_iter().map(|(version, tokens)| VersionSpan { version, tokens });
        ModelVersions::from_spans(runs).map_err(Error::custom)
    }
}
