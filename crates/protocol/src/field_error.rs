//! What is wrong with a message that could be decoded but must not travel further.

use std::borrow::Cow;

/// A field without a valid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InvalidField {
    /// Which field: `run_finished.outcome`.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: Cow<'static, str>,
}

impl InvalidField {
    pub(crate) fn new(field: &'static str, problem: impl Into<Cow<'static, str>>) -> Self {
        Self { field, problem: problem.into() }
    }

    pub(crate) fn missing(field: &'static str) -> Self {
        Self::new(field, "missing")
    }

    pub(crate) fn unknown(field: &'static str, value: i32) -> Self {
        Self::new(field, format!("unknown value {value}"))
    }
}
