//! Validation errors of fields.

use std::borrow::Cow;

use super::Dtype;

/// A field without a valid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct FieldError {
    /// Path of the field: `tokens`, `multi_modal_inputs.pixel_values`.
    pub field: Cow<'static, str>,
    pub problem: FieldProblem,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FieldProblem {
    #[error("missing")]
    Missing,
    #[error("must be greater than 0")]
    NotPositive,
    #[error("{found} tokens, but there must be more than the {prompt} of the prompt")]
    NoResponse { found: usize, prompt: usize },
    #[error("length {found} where {expected} is expected")]
    Length { found: u64, expected: u64 },
    #[error("{value} at position {index} does not fit into 32 bits")]
    OutOfRange { index: usize, value: i64 },
    #[error("elements of type {found} where {expected} is expected")]
    Dtype { found: Dtype, expected: Dtype },
    #[error("neither 0 nor 1 at position {index}")]
    NotBool { index: usize },
    #[error("{found} dimensions where {expected} is expected")]
    Rank { found: usize, expected: usize },
    /// `None`: the shape needs more bytes than `usize` can count.
    #[error(
        "{found} bytes of data where the shape needs {}",
        .expected.map_or_else(|| "more than can be counted".to_owned(), |it| it.to_string())
    )]
    DataBytes { found: usize, expected: Option<usize> },
    #[error("array at offset {offset} ends outside of the item's {room} bytes")]
    OutOfBounds { offset: u64, room: usize },
    #[error("{0} is no multiple of 8")]
    Unaligned(u64),
    #[error("{found}, but at most {limit} are allowed")]
    TooMany { found: usize, limit: usize },
    /// Not JSON, or nested too deeply.
    #[error("not acceptable as JSON: {0}")]
    Json(String),
    #[error("not a JSON object")]
    NotObject,
    #[error("unknown name `{0}`")]
    UnknownName(String),
    /// An enum value of the schema.
    #[error("unknown value {0}")]
    UnknownValue(i32),
    #[error("number too large: {0}")]
    TooLarge(u64),
    /// A model version below -1.
    #[error("version {0} is negative")]
    NegativeVersion(i64),
}

impl FieldProblem {
    /// Adds the path of the field.
    pub fn at(self, field: impl Into<Cow<'static, str>>) -> FieldError {
        FieldError { field: field.into(), problem: self }
    }
}
