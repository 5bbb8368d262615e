//! What keeps fields from being an experience.

use std::borrow::Cow;

use super::{Dtype, ExperienceKind};

/// A field without a valid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct FieldError {
    /// Which field: `tokens`, `multi_modal_inputs.pixel_values`.
    pub field: Cow<'static, str>,
    /// What is wrong with it.
    pub problem: FieldProblem,
}

/// What is wrong with a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FieldProblem {
    #[error("missing")]
    Missing,
    /// It has to be at least 1.
    #[error("must be greater than 0")]
    NotPositive,
    /// It is an experience of another kind.
    #[error("{} where {} is expected", .found.name(), .expected.name())]
    Kind { found: ExperienceKind, expected: ExperienceKind },
    /// There are too few tokens.
    #[error("{found} tokens, but there must be more than the {prompt} of the prompt")]
    NoResponse { found: usize, prompt: usize },
    /// It has to have another length.
    #[error("length {found} where {expected} is expected")]
    Length { found: u64, expected: u64 },
    /// A number does not fit into the type of the field.
    #[error("{value} at position {index} does not fit into 32 bits")]
    OutOfRange { index: usize, value: i64 },
    /// It has elements of another type.
    #[error("elements of type {found} where {expected} is expected")]
    Dtype { found: Dtype, expected: Dtype },
    /// A truth value is neither 0 nor 1.
    #[error("neither 0 nor 1 at position {index}")]
    NotBool { index: usize },
    /// It has another number of dimensions.
    #[error("{found} dimensions where {expected} is expected")]
    Rank { found: usize, expected: usize },
    /// The shape and the data do not fit.
    #[error("{found} bytes of data where the shape needs {}", OrTooMany(*.expected))]
    DataBytes {
        found: usize,
        /// How many there have to be; absent if that is more than can be counted.
        expected: Option<usize>,
    },
    /// An array lies outside of its part of the data section.
    #[error("array at offset {offset} ends outside of the item's {room} bytes")]
    OutOfBounds {
        /// Where it begins.
        offset: u64,
        /// How large the part is.
        room: usize,
    },
    /// An offset or a size is no multiple of 8.
    #[error("{0} is no multiple of 8")]
    Unaligned(u64),
    /// There are more than there may be.
    #[error("{found}, but at most {limit} are allowed")]
    TooMany {
        found: usize,
        /// How many there may be.
        limit: usize,
    },
    /// A text is not JSON, or nested too deeply.
    #[error("not acceptable as JSON: {0}")]
    Json(String),
    /// The JSON is something else than an object.
    #[error("not a JSON object")]
    NotObject,
    /// A name that is not known.
    #[error("unknown name `{0}`")]
    UnknownName(String),
    /// A value of an enum that is not known.
    #[error("unknown value {0}")]
    UnknownValue(i32),
    /// A number is larger than this machine or the format can count.
    #[error("number too large: {0}")]
    TooLarge(u64),
    /// A version of a model is below -1.
    #[error("version {0} is negative")]
    NegativeVersion(i64),
}

impl FieldProblem {
    /// Says in which field the problem is.
    pub fn at(self, field: impl Into<Cow<'static, str>>) -> FieldError {
        FieldError { field: field.into(), problem: self }
    }
}

struct OrTooMany(Option<usize>);

impl std::fmt::Display for OrTooMany {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(number) => number.fmt(f),
            None => f.write_str("more than can be counted"),
        }
    }
}
