//! Error of workflows that cannot be run.

use std::fmt;

use crate::workflows::WorkflowArgumentError;

/// Reason why runners or their tasks cannot be set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkflowSetupError {
    pub kind: WorkflowSetupErrorKind,
    pub message: String,
    pub hint: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkflowSetupErrorKind {
    /// Tasks name no workflow, or not the reward function that it needs.
    Missing,
    /// Unknown name of a workflow or reward function.
    Unknown,
    /// Invalid arguments of a reward function.
    Arguments,
    /// Python is missing or cannot be started.
    NoPython,
    /// The Python package is missing or has another version.
    NoPackage,
    /// A module cannot be imported, or the name in it is not a workflow.
    Import,
    Io,
    /// The cluster, or an address for its workers, is missing.
    Cluster,
}

impl WorkflowSetupErrorKind {
    /// Returns a stable name for logs and other languages.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Missing => "workflow_missing",
            Self::Unknown => "workflow_unknown",
            Self::Arguments => "workflow_arguments",
            Self::NoPython => "no_python",
            Self::NoPackage => "no_package",
            Self::Import => "workflow_import",
            Self::Io => "workflow_io",
            Self::Cluster => "cluster",
        }
    }
}

impl WorkflowSetupError {
    pub(crate) fn new(
        kind: WorkflowSetupErrorKind,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self { kind, message: message.into(), hint: hint.into() }
    }
}

impl std::error::Error for WorkflowSetupError {}

impl From<WorkflowArgumentError> for WorkflowSetupError {
    fn from(error: WorkflowArgumentError) -> Self {
        match error {
            WorkflowArgumentError::UnknownReward { message, hint } => {
                Self::new(WorkflowSetupErrorKind::Unknown, message, hint)
            }
            WorkflowArgumentError::InvalidArguments { message, hint } => {
                Self::new(WorkflowSetupErrorKind::Arguments, message, hint)
            }
        }
    }
}

impl fmt::Display for WorkflowSetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.message, self.hint)
    }
}
