//! Errors of the engine, with stable codes and messages.

use std::fmt;

use rollway_core::{BatchState, Refusal};

/// Error of a request to the engine.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The core refused the request, which changed nothing.
    #[error("{}", RefusalMessage(.0))]
    Refused(Refusal),
    /// The engine was dropped, or its runtime was shut down.
    #[error("the engine has stopped")]
    Closed,
    /// There is no sink: a scheduler on its own, or a job that only evaluates.
    #[error("the experience pipeline is not initialized")]
    NoPipeline,
    /// The sink did not take experiences that were passed to it directly.
    #[error("the experience pipeline failed: {0}")]
    Pipeline(String),
    /// The ledger cannot be read or written, or is full.
    #[error("the ledger failed: {0}")]
    Ledger(String),
}

/// Result of a request to the engine.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Tells whether a wait timed out.
    pub const fn timed_out(&self) -> bool {
        matches!(self, Self::Refused(Refusal::TimedOut { .. } | Refusal::WaitAllTimedOut { .. }))
    }

    /// Returns a stable name for logs, metrics and other languages.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::NoPipeline => "no_pipeline",
            Self::Pipeline(_) => "pipeline_failed",
            Self::Ledger(_) => "ledger_failed",
            Self::Refused(refusal) => match refusal {
                Refusal::AlreadyActive { .. } => "already_active",
                Refusal::NotRegistered { .. } => "not_registered",
                Refusal::WrongBatchType { .. } => "wrong_batch_type",
                Refusal::NotCollectable { .. } => "not_collectable",
                Refusal::NoRuns { .. } => "no_runs",
                Refusal::Limit { .. } => "limit",
                Refusal::NotStarted => "not_started",
                Refusal::Stopped => "stopped",
                Refusal::TimedOut { .. } => "timed_out",
                Refusal::TasksCancelled { .. } => "tasks_cancelled",
                Refusal::WaitAllTimedOut { .. } => "wait_all_timed_out",
                Refusal::Aborted { .. } => "aborted",
                Refusal::BatchFailed { .. } => "batch_failed",
                Refusal::SinkFailed { .. } => "sink_failed",
                Refusal::TooFewSucceeded { .. } => "too_few_succeeded",
            },
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Message of a refusal, with the remedy.
struct RefusalMessage<'a>(&'a Refusal);

impl fmt::Display for RefusalMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Refusal::AlreadyActive { batch } => write!(f, "batch {batch} is already active"),
            Refusal::NotRegistered { batch } => write!(f, "batch {batch} is not registered"),
            Refusal::WrongBatchType { batch, kind, expected } => {
                write!(f, "batch {batch} is {kind}, expected {expected}")
            }
            Refusal::NotCollectable { batch } => {
                write!(f, "batch {batch} was submitted: finalize it instead of collecting")
            }
            Refusal::NoRuns { task } => {
                write!(f, "task {task} has repeat_times 0; at least 1 is needed")
            }
            Refusal::Limit { limit, value, max } => {
                write!(f, "{value} exceeds explorer.limits.{limit}, which is {max}")
            }
            Refusal::NotStarted => f.write_str("not started: prepare() must be called first"),
            Refusal::Stopped => f.write_str("stopped"),
            Refusal::TimedOut { batch, state, finished, needed, expected, serving } => {
                write!(f, "timeout waiting for batch {batch}: ")?;
                if *state == BatchState::Finalizing {
                    return f.write_str("its results are on their way to the sink");
                }
                write!(f, "{finished} of {expected} tasks finished, {needed} needed")?;
                match serving {
                    0 => f.write_str("; no runner is up"),
                    _ => f.write_str("; nothing is lost, it can be finalized again"),
                }
            }
            Refusal::TasksCancelled { batch, finished, needed, expected } => {
                write!(
                    f,
                    "batch {batch} was truncated: {finished} of {expected} tasks finished, "
                )?;
                write!(f, "{needed} needed; abort it to keep what it has")
            }
            Refusal::WaitAllTimedOut { pending, running } => {
                write!(
                    f,
                    "timeout waiting for all tasks: {pending} runs pending, {running} running"
                )
            }
            Refusal::Aborted { batch, reason } => write!(f, "batch {batch} was aborted: {reason}"),
            Refusal::BatchFailed { batch, kind, message } => {
                write!(f, "batch {batch} failed: {kind}: {message}")
            }
            Refusal::SinkFailed { batch, message } => {
                write!(f, "the results of batch {batch} could not be stored: {message}")?;
                f.write_str("; they are kept, and can be delivered again")
            }
            Refusal::TooFewSucceeded { batch, succeeded, needed } => {
                write!(f, "batch {batch}: {succeeded} tasks have a good run, {needed} needed")
            }
        }
    }
}
