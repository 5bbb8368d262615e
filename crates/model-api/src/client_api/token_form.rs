//! Client APIs that take and return token ids: translation to completions and back.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::request_fields::{RequestFields, a, refusal};
use crate::error::CallError;

/// Sampling parameters that completions name alike.
const SAMPLING: [&str; 22] = [
    "allowed_token_ids",
    "bad_words",
    "frequency_penalty",
    "ignore_eos",
    "include_stop_str_in_output",
    "logit_bias",
    "max_tokens",
    "min_p",
    "min_tokens",
    "n",
    "presence_penalty",
    "regex",
    "repetition_penalty",
    "seed",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stop",
    "stop_token_ids",
    "structured_outputs",
    "temperature",
    "top_k",
    "top_p",
];

/// Copies sampling parameters to a completion; `renamed` has those with another name there. Unknown
/// ones are refused, because dropping them would change the distribution.
pub(super) fn copy_sampling(
    fields: &RequestFields<'_>,
    renamed: &[(&str, &str)],
    ignored: &[&str],
    completion: &mut Map<String, Value>,
) -> Result<(), CallError> {
    let at = "sampling_params";
    let Some(sampling) = fields.typed(at, "an object", Value::as_object)? else { return Ok(()) };
    for (name, value) in sampling.iter().filter(|(_, value)| !value.is_null()) {
        let known = renamed.iter().find(|(from, _)| from == name).map(|(_, to)| *to);
        let same = SAMPLING.contains(&name.as_str());
        match known.or_else(|| same.then_some(name.as_str())) {
            Some(to) => {
                completion.insert(to.to_owned(), value.clone());
            }
            None if ignored.contains(&name.as_str()) => {}
            None => {
                let at = format!("{at}.{name}");
                return Err(refusal(format!("{at} is not supported: leave it out")).at(at));
            }
        }
    }
    Ok(())
}

/// Refuses streams, which these APIs have no use for here.
pub(super) fn refuse_stream(fields: &RequestFields<'_>) -> Result<(), CallError> {
    if fields.boolean("stream")? == Some(true) {
        let message = "stream is not supported by this endpoint: set it to false";
        return Err(refusal(message).at("stream"));
    }
    Ok(())
}

/// Refuses fields whose content the response or the recording would miss.
pub(super) fn refuse_fields(fields: &RequestFields<'_>, names: &[&str]) -> Result<(), CallError> {
    for name in names {
        if let Some(value) = fields.get(name).filter(|value| **value != Value::Bool(false)) {
            let message = format!("{name} is not supported, but is {}: leave it out", a(value));
            return Err(refusal(message).at(*name));
        }
    }
    Ok(())
}

/// A completion in the internal form, with token ids.
#[derive(Debug, Deserialize)]
pub(super) struct CompletionReply {
    pub(super) id: Option<String>,
    pub(super) model: Option<String>,
    pub(super) created: Option<Value>,
    pub(super) choices: Vec<CompletionChoice>,
    pub(super) usage: Option<Value>,
    pub(super) weight_version: Option<Value>,
}

#[derive(Debug, Deserialize)]
pub(super) struct CompletionChoice {
    #[serde(default)]
    pub(super) index: u64,
    #[serde(default)]
    pub(super) text: String,
    pub(super) token_ids: Option<Vec<i64>>,
    pub(super) prompt_token_ids: Option<Vec<i64>>,
    pub(super) finish_reason: Option<String>,
    pub(super) stop_reason: Option<Value>,
    logprobs: Option<CompletionLogprobs>,
}

#[derive(Debug, Deserialize)]
struct CompletionLogprobs {
    token_logprobs: Option<Vec<Option<f64>>>,
}

impl CompletionChoice {
    /// Returns each token with its log-probability. `None`: not requested.
    pub(super) fn token_logprobs(&self) -> Option<impl Iterator<Item = (i64, Option<f64>)> + '_> {
        let logprobs = self.logprobs.as_ref()?.token_logprobs.as_ref()?;
        Some(self.token_ids.iter().flatten().copied().zip(logprobs.iter().copied()))
    }
}
