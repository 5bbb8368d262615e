//! Experiences: the samples that a run produces for the trainer, and their encoding as bytes.
//!
//! Start with [`Experience`]. `rules` validates its fields; [`payload`] encodes and decodes them.
//! The schema of the metadata is `proto/experience.proto`, used by `payload` only.

mod array;
mod dpo;
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
pub use self::dpo::split_dpo_experience_to_single_turn;
pub use self::eid::{Eid, GroupBy, IdPart, group_by};
pub use self::error::{FieldError, FieldProblem};
pub use self::json::Json;
pub use self::model_versions::{ModelVersions, VersionRun};
pub use self::payload::{PayloadError, deserialize, deserialize_many, serialize, serialize_many};
pub use self::tensor::{Dtype, Tensor};

/// One sample for the trainer: [`ExperienceFields`] that fit together, and how they are to be
/// understood.
///
/// The fields can be read and changed in place; a change that breaks a rule is noticed when the
/// experience is serialized. Arrays and JSON of a decoded experience are slices of the payload, so
/// that one experience keeps the memory of its whole payload.
#[derive(Clone, Debug, PartialEq)]
pub struct Experience {
    kind: ExperienceKind,
    fields: ExperienceFields,
}

impl Experience {
    /// Makes an experience: concludes its kind and fills in what follows from it.
    ///
    /// With an action mask it is multi-turn; otherwise with `chosen` and `rejected` it is DPO and
    /// all its tokens are the prompt; otherwise it is single-turn and the mask is filled in: true
    /// for the whole response, or false for all of `logprobs` if the prompt was truncated.
    pub fn new(fields: ExperienceFields) -> Result<Self, FieldError> {
        let experience = Self::lenient(fields)?;
        experience.check_lengths()?;
        Ok(experience)
    }

    /// Makes an experience like [`new`](Self::new), but leaves it to the caller whether the arrays
    /// that belong to the response are as long as it.
    pub fn lenient(mut fields: ExperienceFields) -> Result<Self, FieldError> {
        let kind = validate::conclude_kind(&fields);
        validate::fill_in(kind, &mut fields);
        Self::with_kind(kind, fields)
    }

    /// Makes an experience of a known kind, and fills in nothing.
    pub fn with_kind(kind: ExperienceKind, fields: ExperienceFields) -> Result<Self, FieldError> {
        validate::check(kind, &fields)?;
        Ok(Self { kind, fields })
    }

    /// Returns how the fields are to be understood.
    pub fn kind(&self) -> ExperienceKind {
        self.kind
    }

    /// Returns the fields alone.
    pub fn into_fields(self) -> ExperienceFields {
        self.fields
    }

    /// Checks what every serialized experience keeps to.
    pub fn check(&self) -> Result<(), FieldError> {
        validate::check(self.kind, &self.fields)
    }

    /// Checks that the arrays that belong to the response are as long as it.
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

/// What an experience consists of. The default has no tokens and is no experience yet.
#[derive(Clone, Debug, PartialEq)]
pub struct ExperienceFields {
    /// What it is called.
    pub eid: Eid,
    /// Prompt and response; not empty.
    pub tokens: Array<i32>,
    /// How many of the tokens are the prompt.
    pub prompt_length: usize,
    /// For every token of the response.
    pub logprobs: Option<Array<f32>>,
    /// Absent if nobody judged it.
    pub reward: Option<f64>,
    /// For every token of the response.
    pub token_level_reward: Option<Array<f32>>,
    /// For every token of the response.
    pub advantages: Option<Array<f32>>,
    /// For every token of the response.
    pub returns: Option<Array<f32>>,
    /// For every token of the response.
    pub teacher_logprobs: Option<Array<f32>>,
    /// Which tokens of the response the model produced.
    pub action_mask: Option<Array<bool>>,
    /// DPO: the tokens of the better answer.
    pub chosen: Option<Array<i32>>,
    /// DPO: the tokens of the worse answer.
    pub rejected: Option<Array<i32>>,
    /// What was cut off.
    pub truncate_status: Option<TruncateStatus>,
    /// Which versions of the model produced the response.
    pub model_versions: Option<ModelVersions>,
    /// Free form: a JSON object.
    pub info: Json,
    /// Becomes part of the run's metrics.
    pub metrics: BTreeMap<String, f64>,
    pub prompt_text: Option<String>,
    pub response_text: Option<String>,
    /// The conversation.
    pub messages: Option<Json>,
    /// The tools that the model was offered.
    pub tools: Option<Json>,
    /// DPO: the conversation with the better answer.
    pub chosen_messages: Option<Json>,
    /// DPO: the conversation with the worse answer.
    pub rejected_messages: Option<Json>,
    /// Images and the like, as the model takes them.
    pub multi_modal_inputs: BTreeMap<String, Tensor>,
    /// Which entries of `info` become fields of the training batch.
    pub custom_fields: Vec<CustomField>,
}

impl ExperienceFields {
    /// Returns how many tokens follow the prompt.
    pub fn response_length(&self) -> usize {
        self.tokens.len().saturating_sub(self.prompt_length)
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

/// How an experience is to be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExperienceKind {
    /// A prompt and a response.
    SingleTurn,
    /// The mask tells which parts of the response are the model's.
    MultiTurn,
    /// A prompt, a better and a worse answer.
    Dpo,
}

impl ExperienceKind {
    /// Returns its name: `single_turn`, `multi_turn` or `dpo`.
    pub fn name(self) -> &'static str {
        match self {
            Self::SingleTurn => "single_turn",
            Self::MultiTurn => "multi_turn",
            Self::Dpo => "dpo",
        }
    }
}

/// What was cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TruncateStatus {
    /// The prompt: there is nothing to learn from.
    PromptTruncated,
    ResponseTruncated,
}

impl TruncateStatus {
    /// Returns its name: `prompt_truncated` or `response_truncated`.
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
    /// The key in `info`.
    pub source_field: String,
    /// The name in the batch.
    pub destination_field: String,
    /// The type of its elements there.
    pub dtype: Dtype,
}
