//! What is said about workflows that cannot be run.

use std::fmt;

use crate::workflows::WorkflowArgumentError;

/// Why there are no runners, or no task for them: what, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkflowSetupError {
    /// What sort of thing is wrong.
    pub kind: WorkflowSetupErrorKind,
    /// What is wrong.
    pub what: String,
    /// What can be done about it.
    pub hint: String,
}

/// What sort of thing is wrong with workflows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkflowSetupErrorKind {
    /// Tasks name no workflow, or no reward function where the workflow needs one.
    Missing,
    /// There is no workflow or reward function of that name.
    Unknown,
    /// The arguments of a reward function make no sense.
    Arguments,
    /// There is no Python, or it cannot be started.
    NoPython,
    /// Python lacks the package, or has another version of it.
    NoPackage,
    /// A module could not be imported, or what it has there is no workflow.
    Import,
    /// The operating system refused.
    Io,
    /// There is no place for workers: no cluster, or nothing to be reached at.
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
        what: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self { kind, what: what.into(), hint: hint.into() }
    }
}

impl std::error::Error for WorkflowSetupError {}

impl From<WorkflowArgumentError> for WorkflowSetupError {
    fn from(error: WorkflowArgumentError) -> Self {
        match error {
            WorkflowArgumentError::UnknownReward { what, hint } => {
                Self::new(WorkflowSetupErrorKind::Unknown, what, hint)
            }
            WorkflowArgumentError::InvalidArguments { what, hint } => {
                Self::new(WorkflowSetupErrorKind::Arguments, what, hint)
            }
        }
    }
}

impl fmt::Display for WorkflowSetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.hint)
    }
}
