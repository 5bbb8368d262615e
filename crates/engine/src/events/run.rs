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

/// Something that was seen, and when.
#[derive(Clone, Debug)]
pub struct RunEvent {
    /// When. All moments of one process come from one clock that does not go backwards.
    pub at: SystemTime,
    pub what: RunEventKind,
}

/// What was seen.
#[derive(Clone, Debug)]
pub enum RunEventKind {
    /// Tasks of a batch were taken in. A batch that is collected may get more of them later.
    BatchBegan {
        /// Its name.
        batch: BatchId,
        /// Which life of that name.
        key: BatchKey,
        kind: BatchType,
        /// The first of the tasks; the others follow.
        first: TaskId,
        /// The tasks: workflow, runs.
        tasks: Arc<[(Arc<str>, u32)]>,
    },
    /// A batch is in another state. One that is collected is finalized when nothing is left of it.
    BatchStateChanged {
        key: BatchKey,
        /// Where it stands.
        state: BatchState,
    },
    /// Runs of a task were given to a runner.
    AttemptSent {
        attempt: AttemptId,
        key: BatchKey,
        task: TaskId,
        runs: RunRange,
        runner: RunnerId,
        life: Incarnation,
        /// How long it may last once it has begun.
        timeout: Duration,
    },
    /// A runner said that it has begun.
    AttemptBegan { attempt: AttemptId },
    /// A run of an attempt ended, and it was believed. What becomes of the run is told next:
    /// [`RunEnded`](Self::RunEnded) or [`RunRetried`](Self::RunRetried).
    RunReported {
        attempt: AttemptId,
        run: RunId,
        /// How. Payloads are shared, not copied.
        end: RunOutcome,
    },
    /// A run failed, in whatever way, and will be tried again.
    RunRetried {
        key: BatchKey,
        task: TaskId,
        run: RunId,
        /// In what way it failed.
        kind: FailureKind,
        /// In the words of whoever noticed.
        message: Arc<str>,
    },
    /// A run ended for good: told once of every run, also of those that no runner ever had.
    RunEnded { key: BatchKey, task: TaskId, run: RunId, how: RunEnd },
    /// An attempt was told to give up.
    AttemptCancelled { attempt: AttemptId, reason: AttemptCancelReason },
    /// An attempt is over: ended, given up, or its runner is gone.
    AttemptEnded {
        attempt: AttemptId,
        /// Why its runner is gone, if it is.
        lost: Option<Arc<str>>,
    },
    /// A task ended for good.
    TaskEnded {
        key: BatchKey,
        task: TaskId,
        status: Arc<Status>,
        /// Why what its good runs yielded is dropped, if it is.
        dropped: Option<DropReason>,
    },
    /// The experiences of a run were dropped instead of delivered.
    PayloadDropped { bytes: u64, reason: DropReason },
    /// A runner is somewhere: on a machine, in a process. Told before it is given anything.
    RunnerLocated {
        runner: RunnerId,
        life: Incarnation,
        /// Where, in words.
        place: Arc<str>,
    },
    /// A runner failed to start again and again, and rests.
    RunnerBroken {
        runner: RunnerId,
        /// Why it did not start.
        message: Arc<str>,
    },
    /// A runner that did not start before is there.
    RunnerReady { runner: RunnerId },
    /// A model call of a run.
    Call(CallEvent),
}

/// A model call of a run, at one of its moments.
#[derive(Clone, Debug)]
pub struct CallEvent {
    /// The attempt that it belongs to.
    pub attempt: AttemptId,
    pub run: RunId,
    /// Its number, which no other call of this process has.
    pub call: u64,
    /// What has become of it.
    pub moment: CallEventKind,
}

/// A moment of a model call.
#[derive(Clone, Debug)]
pub enum CallEventKind {
    /// It came in.
    Began {
        /// The model that it asks for; empty: the trained one, by no name.
        model: Arc<str>,
    },
    /// It was sent to a server.
    Sent { server: Arc<str> },
    Ended {
        /// The HTTP status that the client saw.
        status: u16,
        /// Tokens of the prompt, if they are known.
        prompt_tokens: Option<u64>,
        /// Tokens of the answer, if they are known.
        answer_tokens: Option<u64>,
        /// The version of the weights, if it is known.
        version: Option<u64>,
    },
}

/// Returns the time of a clock that does not go backwards while this process lives.
pub fn now() -> SystemTime {
    static ORIGIN: OnceLock<(SystemTime, Instant)> = OnceLock::new();
    let (wall, origin) = ORIGIN.get_or_init(|| (SystemTime::now(), Instant::now()));
    *wall + origin.elapsed()
}

/// Sees what happens to runs.
pub trait RunObserver: Debug + Send + Sync + 'static {
    /// These things happened, in this order.
    fn observe(&self, seen: &[RunEvent]);

    /// Returns the header `traceparent` that a model call carries to its server, if this observer
    /// traces it.
    fn traceparent(&self, attempt: AttemptId, run: RunId, call: u64) -> Option<String> {
        let _ = (attempt, run, call);
        None
    }
}

/// All who observe. Clones are the same; without any, nothing is even collected.
#[derive(Clone, Debug, Default)]
pub struct RunObservers(pub(super) Arc<Vec<Arc<dyn RunObserver>>>);

impl RunObservers {
    /// Returns these observers.
    pub fn new(observers: Vec<Arc<dyn RunObserver>>) -> Self {
        Self(Arc::new(observers))
    }

    /// Returns these and one more.
    #[must_use]
    pub fn and(&self, observer: Arc<dyn RunObserver>) -> Self {
        Self::new(self.0.iter().cloned().chain([observer]).collect())
    }

    /// Tells whether nobody observes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns what a gateway tells of its calls; none if nobody observes.
    pub fn of_calls(&self) -> Option<Arc<dyn CallObserver>> {
        (!self.is_empty()).then(|| Arc::new(CallEventAdapter(self.clone())) as _)
    }

    /// Tells everybody.
    pub fn emit(&self, seen: &[RunEvent]) {
        if !seen.is_empty() {
            self.0.iter().for_each(|observer| observer.observe(seen));
        }
    }
}
