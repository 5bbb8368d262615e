//! What can be seen of every run, as it happens: one stream for the dashboard, the history, traces,
//! metrics and alarms.
//!
//! ```text
//! driver ──► Seen (batches, attempts, runs, runners) ──┐
//! gateway ─► Seen (model calls) ───────────────────────┴─► Observers: history, live state, trace,
//!                                                           metrics, alarms
//! ```
//!
//! Whoever observes is told in batches and must be quick: it puts aside what it needs and does the
//! rest in a thread of its own, with a bounded queue and a count of what did not fit.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::SystemTime;

use rollway_core::{
    AttemptId, BatchId, BatchKey, BatchKind, BatchState, Cancel, Life, RunId, RunnerId, Runs,
    Status, TaskId,
};

use crate::workers::RunEnd;

/// Something that was seen, and when.
#[derive(Clone, Debug)]
pub struct Seen {
    /// When. All moments of one process come from one clock that does not go backwards.
    pub at: SystemTime,
    /// What.
    pub what: What,
}

/// What was seen.
#[derive(Clone, Debug)]
pub enum What {
    /// A batch was taken in.
    BatchBegan {
        /// Its name.
        batch: BatchId,
        /// Which life of that name.
        key: BatchKey,
        /// What kind of batch.
        kind: BatchKind,
        /// Its tasks: workflow, runs.
        tasks: Arc<[(Arc<str>, u32)]>,
    },
    /// A batch is in another state.
    BatchIs {
        /// Which.
        key: BatchKey,
        /// Where it stands.
        state: BatchState,
    },
    /// Runs of a task were given to a runner.
    AttemptGiven {
        /// The attempt.
        attempt: AttemptId,
        /// Of which batch.
        key: BatchKey,
        /// Of which task.
        task: TaskId,
        /// Which runs.
        runs: Runs,
        /// To whom.
        runner: RunnerId,
        /// In which life of it.
        life: Life,
    },
    /// A runner said that it has begun.
    AttemptBegan {
        /// The attempt.
        attempt: AttemptId,
    },
    /// A run of an attempt ended, and it was believed.
    RunEnded {
        /// The attempt.
        attempt: AttemptId,
        /// Which run.
        run: RunId,
        /// How. Payloads are shared, not copied.
        end: RunEnd,
    },
    /// An attempt was told to give up.
    AttemptCancelled {
        /// The attempt.
        attempt: AttemptId,
        /// Why.
        reason: Cancel,
    },
    /// An attempt is over: ended, given up, or its runner is gone.
    AttemptEnded {
        /// The attempt.
        attempt: AttemptId,
        /// Why its runner is gone, if it is.
        lost: Option<Arc<str>>,
    },
    /// A task ended for good.
    TaskEnded {
        /// Of which batch.
        key: BatchKey,
        /// Which.
        task: TaskId,
        /// How.
        status: Arc<Status>,
    },
    /// A model call of a run.
    Call(Call),
}

/// A model call of a run, at one of its moments.
#[derive(Clone, Debug)]
pub struct Call {
    /// The attempt that it belongs to.
    pub attempt: AttemptId,
    /// The run.
    pub run: RunId,
    /// Its number, which no other call of this process has.
    pub call: u64,
    /// What has become of it.
    pub moment: Moment,
}

/// A moment of a model call.
#[derive(Clone, Debug)]
pub enum Moment {
    /// It came in.
    Began {
        /// The model that it asks for.
        model: Arc<str>,
    },
    /// It was sent to a server.
    Sent {
        /// Which.
        server: Arc<str>,
    },
    /// It ended.
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

/// Sees what happens to runs.
pub trait Observer: Debug + Send + Sync + 'static {
    /// These things happened, in this order.
    fn observe(&self, seen: &[Seen]);
}

/// All who observe. Clones are the same; without any, nothing is even collected.
#[derive(Clone, Debug, Default)]
pub struct Observers(Arc<Vec<Arc<dyn Observer>>>);

impl Observers {
    /// Returns these observers.
    pub fn new(observers: Vec<Arc<dyn Observer>>) -> Self {
        Self(Arc::new(observers))
    }

    /// Tells whether nobody observes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Tells everybody.
    pub fn tell(&self, seen: &[Seen]) {
        if !seen.is_empty() {
            self.0.iter().for_each(|observer| observer.observe(seen));
        }
    }
}
