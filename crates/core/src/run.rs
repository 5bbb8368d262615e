//! Result of a run: the outcome that a runner reports, and the end that is final.

use std::sync::Arc;

use crate::failure::{CancelReason, FailureKind, names};
use crate::ids::{AttemptId, PayloadId, RunId};
use crate::metrics::Metrics;

/// The experiences of one run: opaque bytes that the caller holds under an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Names it.
    pub id: PayloadId,
    /// How large it is.
    pub bytes: u64,
}

/// Output of a run that succeeded.
#[derive(Clone, Debug, PartialEq)]
pub struct RunOutput<P = Payload> {
    /// Experiences; none in eval.
    pub payload: Option<P>,
    pub metrics: Metrics,
}

impl<P> Default for RunOutput<P> {
    fn default() -> Self {
        Self { payload: None, metrics: Metrics::default() }
    }
}

impl<P> RunOutput<P> {
    /// Returns the same output with another form of the payload.
    pub fn map_payload<Q>(self, payload: impl FnOnce(P) -> Q) -> RunOutput<Q> {
        RunOutput { payload: self.payload.map(payload), metrics: self.metrics }
    }
}

/// Reason why a run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFailure {
    /// Kind of failure, which decides about retries.
    pub kind: FailureKind,
    /// Description for people.
    pub message: Arc<str>,
}

impl RunFailure {
    /// Returns a failure of a kind.
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

/// Outcome of one run, as its runner reports it. A failed run may be retried.
pub type RunOutcome<P = Payload> = Result<RunOutput<P>, RunFailure>;

/// Final end of a run. `O` is the output that is kept with it; none for observers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEnd<O = ()> {
    /// The run succeeded.
    Succeeded(O),
    /// The run failed and is not retried.
    Failed(RunFailure),
    /// The run was cancelled.
    Cancelled(CancelReason),
}

impl<O> RunEnd<O> {
    /// Returns the state of a run with this end.
    pub const fn state(&self) -> RunState {
        match self {
            Self::Succeeded(_) => RunState::Succeeded,
            Self::Failed(_) => RunState::Failed,
            Self::Cancelled(_) => RunState::Cancelled,
        }
    }

    /// Returns the same end with another output.
    pub fn map<T>(self, output: impl FnOnce(O) -> T) -> RunEnd<T> {
        match self {
            Self::Succeeded(old) => RunEnd::Succeeded(output(old)),
            Self::Failed(failure) => RunEnd::Failed(failure),
            Self::Cancelled(reason) => RunEnd::Cancelled(reason),
        }
    }

    /// Returns the same end without the output.
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
        /// The run waits for a runner.
        #[default]
        Pending = "pending",
        /// A runner executes it.
        Running = "running",
        /// The run succeeded.
        Succeeded = "succeeded",
        /// The run failed and is not retried.
        Failed = "failed",
        /// The run was cancelled.
        Cancelled = "cancelled",
    }
);

/// Report about a runner, sent by the runner itself unless stated otherwise.
#[derive(Clone, Debug, PartialEq)]
pub enum RunnerReport<P = Payload> {
    /// It is idle. May be said again at any time.
    Ready {
        /// The last attempt it was given; none: it has just started.
        after: Option<AttemptId>,
    },
    /// It is alive.
    Heartbeat,
    /// It cannot be started yet, for a reason that lies outside: no machine has room for it, or
    /// no worker has joined (from its backend). While it waits no time is counted.
    Waits {
        /// What it waits for; none: for nothing any more, and its time counts from now.
        why: Option<Arc<str>>,
    },
    /// It could not be started (from its backend).
    StartFailed {
        /// Description for people.
        message: Arc<str>,
    },
    /// It is no more (from its backend).
    Lost {
        /// Description for people.
        message: Arc<str>,
        /// Whether what it was doing may be the reason.
        suspect: bool,
    },
    /// It has begun an attempt.
    AttemptBegan { attempt: AttemptId },
    /// A run of an attempt ended.
    RunFinished { attempt: AttemptId, run: RunId, outcome: RunOutcome<P> },
    /// The attempt is over, also if it was cancelled, and the runner is idle.
    AttemptEnded { attempt: AttemptId },
}

impl<P> RunnerReport<P> {
    /// Returns the same report with another form of the payload.
    pub fn map_payload<Q>(self, payload: impl FnOnce(P) -> Q) -> RunnerReport<Q> {
        match self {
            Self::Ready { after } => RunnerReport::Ready { after },
            Self::Heartbeat => RunnerReport::Heartbeat,
            Self::Waits { why } => RunnerReport::Waits { why },
            Self::StartFailed { message } => RunnerReport::StartFailed { message },
            Self::Lost { message, suspect } => RunnerReport::Lost { message, suspect },
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
