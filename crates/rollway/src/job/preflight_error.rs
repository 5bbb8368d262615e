//! Error of the preflight: what is wrong, and what to do.

use std::fmt;

use rollway_tasksets::TasksetError;
use rollway_telemetry::summary::SummaryError;

use crate::workflow_runtime::WorkflowSetupError;

/// Reason why a job cannot be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreflightError {
    pub message: String,
    /// Remedy. Empty: the message has it.
    pub hint: String,
}

impl PreflightError {
    pub(crate) fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into() }
    }
}

impl fmt::Display for PreflightError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.hint.is_empty() {
            write!(f, "\nhint: {}", self.hint)?;
        }
        Ok(())
    }
}

impl From<TasksetError> for PreflightError {
    fn from(error: TasksetError) -> Self {
        Self::new(format!("{}: {}", error.location, error.what), error.hint)
    }
}

impl From<WorkflowSetupError> for PreflightError {
    fn from(error: WorkflowSetupError) -> Self {
        Self::new(error.message, error.hint)
    }
}

impl From<SummaryError> for PreflightError {
    fn from(error: SummaryError) -> Self {
        Self::new(error.what, error.hint)
    }
}
