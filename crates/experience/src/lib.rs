//! Experiences: the samples that a run produces for the trainer, and their encoding as bytes.
//!
//! Start with [`Experience`]. `validate` checks its fields; [`payload`] encodes and decodes them.
//! The schema of the metadata is `proto/experience.proto`, used by `payload` only.

mod array;
mod eid;
mod error;
mod json;
mod model_versions;
pub mod payload;
mod tensor;
mod to_json;
mod validate;

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

pub use self::array::{Array, Element};
pub use self::eid::{Eid, IdPart};
pub use self::error::{FieldError, FieldProblem};
pub use self::json::Json;
pub use self::model_versions::{ModelVersions, VersionSpan};
pub use self::payload::{PayloadError, deserialize, deserialize_many, serialize, serialize_many};
pub use self::tensor::{Dtype, Tensor};
pub use self::validate::is_finite_reward;

/// One sample for the trainer: [`ExperienceFields`] that are consistent, and their kind.
///
/// Fields can be changed in place; serialization validates them again. Arrays and JSON of a decoded
/// experience are slices of the payload, so one experience keeps its whole payload in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Experience {
    kind: ExperienceKind,
    fields: ExperienceFields,
}

impl Experience {
    /// Derives the kind from the fields, fills in the fields that follow from it, and validates
    /// all.
    ///
    /// With an action mask the kind is multi-turn. Otherwise, with `chosen` and `rejected`, it is
    /// DPO and all tokens are the prompt. Otherwise it is single-turn and the mask is filled in:
    /// true for the whole response, or false for all of `logprobs` if the prompt was truncated.
    pub fn new(fields: ExperienceFields) -> Result<Self, FieldError> {
        let experience = Self::lenient(fields)?;
        experience.check_lengths()?;
        Ok(experience)
    }

    /// Like [`new`](Self::new), without [`check_lengths`](Self::check_lengths).
    pub fn lenient(mut fields: ExperienceFields) -> Result<Self, FieldError> {
        let kind = validate::conclude_kind(&fields);
        validate::fill_in(kind, &mut fields);
        Self::with_kind(kind, fields)
    }

    /// Validates fields of a known kind; fills in nothing.
    pub fn with_kind(kind: ExperienceKind, fields: ExperienceFields) -> Result<Self, FieldError> {
        validate::check(kind, &fields)?;
        Ok(Self { kind, fields })
    }

    pub fn kind(&self) -> ExperienceKind {
        self.kind
    }

    pub fn into_fields(self) -> ExperienceFields {
        self.fields
    }

    /// Validates the rules of serialized experiences.
    pub fn check(&self) -> Result<(), FieldError> {
        validate::check(self.kind, &self.fields)
    }

    /// Checks that per-token arrays are as long as the response.
    pub fn check_lengths(&self) -> Result<(), FieldError> {
        validate::check_lengths(self.kind, &self.fields)
    }
}

impl Deref for Experience {
    type Target = ExperienceFields;

    fn deref(&self) -> &ExperienceFields {
        &self.fields
    }
}

impl DerefMut for Experience {
    fn deref_mut(&mut self) -> &mut ExperienceFields {
        &mut self.fields
    }
}

/// Fields of an experience. The default has no tokens and is not valid yet.
#[derive(Clone, Debug, PartialEq)]
pub struct ExperienceFields {
    pub eid: Eid,
    /// Prompt and response; not empty.
    pub tokens: Array<i32>,
    pub prompt_length: usize,
    /// One value per token of the response, as in the other optional `f32` arrays.
    pub logprobs: Option<Array<f32>>,
    pub reward: Option<f64>,
    pub token_level_reward: Option<Array<f32>>,
    pub advantages: Option<Array<f32>>,
    pub returns: Option<Array<f32>>,
    pub teacher_logprobs: Option<Array<f32>>,
    /// Marks the tokens of the response that the model produced.
    pub action_mask: Option<Array<bool>>,
    /// DPO: the tokens of the better answer.
    pub chosen: Option<Array<i32>>,
    /// DPO: the tokens of the worse answer.
    pub rejected: Option<Array<i32>>,
    pub truncate_status: Option<TruncateStatus>,
    pub model_versions: Option<ModelVersions>,
    /// A JSON object of any content.
    pub info: Json,
    /// Merged into the metrics of the run.
    pub metrics: BTreeMap<String, f64>,
    pub prompt_text: Option<String>,
    pub response_text: Option<String>,
    pub messages: Option<Json>,
    /// Tools offered to the model.
    pub tools: Option<Json>,
    /// DPO: the conversation with the better answer.
    pub chosen_messages: Option<Json>,
    /// DPO: the conversation with the worse answer.
    pub rejected_messages: Option<Json>,
    /// Model inputs beside tokens, such as images.
    pub multi_modal_inputs: BTreeMap<String, Tensor>,
    /// Entries of `info` that become fields of the training batch.
    pub custom_fields: Vec<CustomField>,
}

impl ExperienceFields {
    /// Number of tokens after the prompt.
    pub fn response_length(&self) -> usize {
        self.tokens.len().saturating_sub(self.prompt_length)
    }

    /// Returns the first reward of a token that is not finite, with its place in the response.
    pub fn invalid_token_reward(&self) -> Option<(usize, f32)> {
        let mut rewards = self.token_level_reward.iter().flat_map(Array::iter).enumerate();
        rewards.find(|(_, reward)| !reward.is_finite())
    }

    /// Tells whether a trainer finds nothing to learn from: no reward, no advantage, no better
    /// answer and no teacher.
    pub fn is_unrewarded(&self) -> bool {
        self.reward.is_none()
            && self.token_level_reward.is_none()
            && self.advantages.is_none()
            && self.chosen.is_none()
            && self.teacher_logprobs.is_none()
    }
}

impl Default for ExperienceFields {
    fn default() -> Self {
        Self {
            eid: Eid::default(),
            tokens: Array::default(),
            prompt_length: 1,
            logprobs: None,
            reward: None,
            token_level_reward: None,
            advantages: None,
            returns: None,
            teacher_logprobs: None,
            action_mask: None,
            chosen: None,
            rejected: None,
            truncate_status: None,
            model_versions: None,
            info: Json::object(),
            metrics: BTreeMap::new(),
            prompt_text: None,
            response_text: None,
            messages: None,
            tools: None,
            chosen_messages: None,
            rejected_messages: None,
            multi_modal_inputs: BTreeMap::new(),
            custom_fields: Vec::new(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExperienceKind {
    SingleTurn,
    /// The action mask marks the parts of the response that the model produced.
    MultiTurn,
    /// A prompt, a better and a worse answer.
    Dpo,
}

impl ExperienceKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::SingleTurn => "single_turn",
            Self::MultiTurn => "multi_turn",
            Self::Dpo => "dpo",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TruncateStatus {
    /// Contributes nothing to training.
    PromptTruncated,
    ResponseTruncated,
}

impl TruncateStatus {
    pub fn name(self) -> &'static str {
        match self {
            Self::PromptTruncated => "prompt_truncated",
            Self::ResponseTruncated => "response_truncated",
        }
    }
}

impl std::str::FromStr for TruncateStatus {
    type Err = FieldError;

    fn from_str(name: &str) -> Result<Self, FieldError> {
        match name {
            "prompt_truncated" => Ok(Self::PromptTruncated),
            "response_truncated" => Ok(Self::ResponseTruncated),
            _ => Err(FieldProblem::UnknownName(name.to_owned()).at("truncate_status")),
        }
    }
}

/// An entry of `info` that becomes a field of the training batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomField {
    pub source_field: String,
    pub destination_field: String,
    pub dtype: Dtype,
}
