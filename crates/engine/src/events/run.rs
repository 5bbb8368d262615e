//! Run events: one stream for the dashboard, the history, traces, metrics and alarms.
//!
//! ```text
//! driver ──► RunEvent (batches, attempts, runs, runners) ──┬─► RunObservers: history, live state,
//! gateway ─► RunEvent (model calls) ───────────────────────┘   traces, metrics, alarms
//! ```
//!
//! An observer receives events in batches, on the driver's thread: it copies what it needs and does
//! the rest in a thread of its own, with a bounded queue and a count of dropped events.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use rollway_core::{
    AttemptCancelReason, AttemptId, BatchId, BatchKey, BatchState, BatchType, DropReason,
    FailureKind, Incarnation, RunEnd, RunId, RunRange, RunnerId, Status, TaskId,
};
use rollway_gateway::gateway::CallObserver;

use super::call::CallEventAdapter;
use crate::run::RunOutcome;

#[derive(Clone, Debug)]
pub struct RunEvent {
    /// From a clock of this process that never goes backwards.
    pub at: SystemTime,
    pub what: RunEventKind,
}

#[derive(Clone, Debug)]
pub enum RunEventKind {
    /// Tasks were accepted. Batches of the scheduler may get more tasks later.
    BatchBegan {
        batch: BatchId,
        key: BatchKey,
        kind: BatchType,
        /// Id of the first task; the others follow.
        first: TaskId,
        /// Workflow and number of runs of each task.
        tasks: Arc<[(Arc<str>, u32)]>,
    },
    /// A batch of the scheduler is finalized when nothing is left of it.
    BatchStateChanged {
        key: BatchKey,
        state: BatchState,
    },
    AttemptSent {
        attempt: AttemptId,
        key: BatchKey,
        task: TaskId,
        runs: RunRange,
        runner: RunnerId,
        incarnation: Incarnation,
        /// Limit from the beginning of the attempt.
        timeout: Duration,
    },
    AttemptBegan {
        attempt: AttemptId,
    },
    /// An accepted report of a run. [`RunEnded`](Self::RunEnded) or
    /// [`RunRetried`](Self::RunRetried) follows.
    RunReported {
        attempt: AttemptId,
        run: RunId,
        /// Payloads are shared, not copied.
        end: RunOutcome,
    },
    /// A run failed and will be retried.
    RunRetried {
        key: BatchKey,
        task: TaskId,
        run: RunId,
        kind: FailureKind,
        message: Arc<str>,
    },
    /// Emitted exactly once for every run, also for runs that never started.
    RunEnded {
        key: BatchKey,
        task: TaskId,
        run: RunId,
        how: RunEnd,
    },
    /// A cancel was sent to the runner.
    AttemptCancelled {
        attempt: AttemptId,
        reason: AttemptCancelReason,
    },
    /// An attempt ended, was cancelled, or lost its runner.
    AttemptEnded {
        attempt: AttemptId,
        /// Message of the loss of its runner.
        lost: Option<Arc<str>>,
    },
    TaskEnded {
        key: BatchKey,
        task: TaskId,
        status: Arc<Status>,
        /// Reason for dropping the payloads of its successful runs.
        dropped: Option<DropReason>,
    },
    /// The payload of a run was dropped instead of delivered.
    PayloadDropped {
        bytes: u64,
        reason: DropReason,
    },
    /// Location of a runner; emitted before its first attempt.
    RunnerLocated {
        runner: RunnerId,
        incarnation: Incarnation,
        /// Host and process id.
        location: Arc<str>,
    },
    /// A runner failed to start repeatedly; the next start is delayed.
    RunnerBroken {
        runner: RunnerId,
        message: Arc<str>,
    },
    /// A broken runner has started.
    RunnerReady {
        runner: RunnerId,
    },
    Call(CallEvent),
}

/// State change of a model call.
#[derive(Clone, Debug)]
pub struct CallEvent {
    pub attempt: AttemptId,
    pub run: RunId,
    /// Unique number of the call within this process.
    pub call: u64,
    pub kind: CallEventKind,
}

#[derive(Clone, Debug)]
pub enum CallEventKind {
    Began {
        /// Requested model. Empty: the trained model.
        model: Arc<str>,
    },
    Sent {
        server: Arc<str>,
    },
    Ended {
        /// HTTP status of the response to the client.
        status: u16,
        prompt_tokens: Option<u64>,
        answer_tokens: Option<u64>,
        /// Model version.
        version: Option<u64>,
    },
}

/// Returns the time of a clock that never goes backwards in this process.
pub fn now() -> SystemTime {
    static ORIGIN: OnceLock<(SystemTime, Instant)> = OnceLock::new();
    let (wall, origin) = ORIGIN.get_or_init(|| (SystemTime::now(), Instant::now()));
    *wall + origin.elapsed()
}

/// Receives run events.
pub trait RunObserver: Debug + Send + Sync + 'static {
    /// Receives events in order.
    fn observe(&self, seen: &[RunEvent]);

    /// Returns the `traceparent` header of a model call, if this observer traces it.
    fn traceparent(&self, attempt: AttemptId, run: RunId, call: u64) -> Option<String> {
        let _ = (attempt, run, call);
        None
    }
}

/// Observers of runs. Cheap to clone. Without observers, no events are collected.
#[derive(Clone, Debug, Default)]
pub struct RunObservers(pub(super) Arc<Vec<Arc<dyn RunObserver>>>);

impl RunObservers {
    pub fn new(observers: Vec<Arc<dyn RunObserver>>) -> Self {
        Self(Arc::new(observers))
    }

    /// Returns these observers and one more.
    #[must_use]
    pub fn and(&self, observer: Arc<dyn RunObserver>) -> Self {
        Self::new(self.0.iter().cloned().chain([observer]).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns an observer of model calls. `None`: there are no observers.
    pub fn of_calls(&self) -> Option<Arc<dyn CallObserver>> {
        (!self.is_empty()).then(|| Arc::new(CallEventAdapter(self.clone())) as _)
    }

    pub fn emit(&self, seen: &[RunEvent]) {
        if !seen.is_empty() {
            self.0.iter().for_each(|observer| observer.observe(seen));
        }
    }
}
