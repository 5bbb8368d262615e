//! What keeps a job from being started: what it is, and what to do about it.

use std::fmt;

use rollway_tasksets::TasksetError;
use rollway_telemetry::summary::SummaryError;

use crate::workflow_runtime::WorkflowSetupError;

/// Something that has to be put right before the job can be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreflightError {
    /// What is the matter.
    pub what: String,
    /// What to do about it.
    pub hint: String,
}

impl PreflightError {
    pub(crate) fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { what: what.into(), hint: hint.into() }
    }
}

impl fmt::Display for PreflightError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if !self.hint.is_empty() {
            write!(f, "\nhint: {}", self.hint)?;
        }
        Ok(())
    }
}

impl From<TasksetError> for PreflightError {
    fn from(error: TasksetError) -> Self {
        Self::new(format!("{}: {}", error.place, error.what), error.hint)
    }
}

impl From<WorkflowSetupError> for PreflightError {
    fn from(error: WorkflowSetupError) -> Self {
        Self::new(error.what, error.hint)
    }
}

impl From<SummaryError> for PreflightError {
    fn from(error: SummaryError) -> Self {
        Self::new(error.what, error.hint)
    }
}
