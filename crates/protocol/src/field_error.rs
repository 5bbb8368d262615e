//! Errors of messages that were decoded and are not valid.

use std::borrow::Cow;

/// A field without a valid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InvalidField {
    /// Path of the field: `run_finished.outcome`.
    pub field: &'static str,
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
