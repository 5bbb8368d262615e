//! Result of a run: the outcome that a runner reports, and the end that is final.

use std::sync::Arc;

use crate::failure::{CancelReason, FailureKind, names};
use crate::ids::{AttemptId, PayloadId, RunId};
use crate::metrics::Metrics;

/// Experiences of one run: opaque bytes that the caller holds under an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    pub id: PayloadId,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RunOutput<P = Payload> {
    /// `None` in eval.
    pub payload: Option<P>,
    pub metrics: Metrics,
}

impl<P> Default for RunOutput<P> {
    fn default() -> Self {
        Self { payload: None, metrics: Metrics::default() }
    }
}

impl<P> RunOutput<P> {
    pub fn map_payload<Q>(self, payload: impl FnOnce(P) -> Q) -> RunOutput<Q> {
        RunOutput { payload: self.payload.map(payload), metrics: self.metrics }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFailure {
    /// Decides about retries.
    pub kind: FailureKind,
    /// Human-readable error message.
    pub message: Arc<str>,
}

impl RunFailure {
    pub fn new(kind: FailureKind, message: impl Into<Arc<str>>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// An error that a workflow does not handle is a failure of the workflow.
impl<E: std::error::Error> From<E> for RunFailure {
    fn from(error: E) -> Self {
        Self::new(FailureKind::Workflow, error.to_string())
    }
}

/// Outcome of one run, as reported by its runner. A failed run may be retried.
pub type RunOutcome<P = Payload> = Result<RunOutput<P>, RunFailure>;

/// Final end of a run. `O` is the kept output; `()` for observers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEnd<O = ()> {
    Succeeded(O),
    /// The run failed and is not retried.
    Failed(RunFailure),
    Cancelled(CancelReason),
}

impl<O> RunEnd<O> {
    pub const fn state(&self) -> RunState {
        match self {
            Self::Succeeded(_) => RunState::Succeeded,
            Self::Failed(_) => RunState::Failed,
            Self::Cancelled(_) => RunState::Cancelled,
        }
    }

    pub fn map<T>(self, output: impl FnOnce(O) -> T) -> RunEnd<T> {
        match self {
            Self::Succeeded(old) => RunEnd::Succeeded(output(old)),
            Self::Failed(failure) => RunEnd::Failed(failure),
            Self::Cancelled(reason) => RunEnd::Cancelled(reason),
        }
    }

    pub fn without_output(&self) -> RunEnd {
        match self {
            Self::Succeeded(_) => RunEnd::Succeeded(()),
            Self::Failed(failure) => RunEnd::Failed(failure.clone()),
            Self::Cancelled(reason) => RunEnd::Cancelled(*reason),
        }
    }
}

names!(
    /// State of a run, without data: shown, filtered and stored.
    #[derive(Default)]
    RunState, ByRunState {
        /// Waits for a runner.
        #[default]
        Pending = "pending",
        /// In an attempt on a runner.
        Running = "running",
        Succeeded = "succeeded",
        /// Failed and not retried.
        Failed = "failed",
        Cancelled = "cancelled",
    }
);

/// Report about a runner, sent by the runner itself unless stated otherwise.
#[derive(Clone, Debug, PartialEq)]
pub enum RunnerReport<P = Payload> {
    /// The runner is idle. `after`: the last attempt that it received, `None` if it has just
    /// started.
    /// May be repeated at any time.
    Ready { after: Option<AttemptId> },
    /// The runner is alive.
    Heartbeat,
    /// The start waits for an external condition: a machine with room, or a worker that connects
    /// (from the backend). No timeout runs meanwhile. `None`: the wait is over.
    StartBlocked { reason: Option<Arc<str>> },
    /// The start failed (from the backend).
    StartFailed { message: Arc<str> },
    /// The runner is lost (from the backend).
    Lost { message: Arc<str>, suspicion: Suspicion },
    /// The runner has begun an attempt.
    AttemptBegan { attempt: AttemptId },
    /// A run of an attempt ended.
    RunFinished { attempt: AttemptId, run: RunId, outcome: RunOutcome<P> },
    /// The attempt is over, also if it was cancelled, and the runner is idle.
    AttemptEnded { attempt: AttemptId },
}

/// Part of an attempt in the loss of its runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspicion {
    /// The cause is not an attempt, or is unknown.
    None,
    /// The cause is another attempt in the same process.
    Neighbour,
    /// The cause is this attempt or another one in the same process.
    Shared,
    /// The cause is this attempt: no other one was executed in the process.
    Sole,
}

impl<P> RunnerReport<P> {
    pub fn map_payload<Q>(self, payload: impl FnOnce(P) -> Q) -> RunnerReport<Q> {
        match self {
            Self::Ready { after } => RunnerReport::Ready { after },
            Self::Heartbeat => RunnerReport::Heartbeat,
            Self::StartBlocked { reason } => RunnerReport::StartBlocked { reason },
            Self::StartFailed { message } => RunnerReport::StartFailed { message },
            Self::Lost { message, suspicion } => RunnerReport::Lost { message, suspicion },
            Self::AttemptBegan { attempt } => RunnerReport::AttemptBegan { attempt },
            Self::RunFinished { attempt, run, outcome } => RunnerReport::RunFinished {
                attempt,
                run,
                outcome: outcome.map(|output| output.map_payload(payload)),
            },
            Self::AttemptEnded { attempt } => RunnerReport::AttemptEnded { attempt },
        }
    }
}
