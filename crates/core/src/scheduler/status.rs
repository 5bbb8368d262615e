//! What is reported about tasks and batches when they end.

use std::fmt;
use std::sync::Arc;

use crate::batch_id::BatchId;
use crate::failure::{ByCancelReason, ByFailureKind, FailureKind, names};
use crate::ids::{BatchKey, RunId, TaskId};
use crate::metrics::Metrics;
use crate::run::Payload;
use crate::scheduler::counters::RunTally;

/// Whether a batch is trained on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BatchType {
    /// Its experiences go to the sink.
    Train,
    /// Only its metrics are of interest.
    Eval,
}

impl fmt::Display for BatchType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Train => "train",
            Self::Eval => "eval",
        })
    }
}

/// Where a submitted batch stands.
///
/// ```text
///            tasks             collected            acknowledged
/// Pending ─────────► Running ─────────► Finalizing ─────────────► Finalized
///    │                  ▲ └──────────────┐   │
///    │                  └── sink failed ─│───┘
///    └───────────── abort ───────────────┴──► Aborted
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BatchState {
    /// It has no tasks.
    Pending,
    /// Its tasks are waiting, running or ended.
    Running,
    /// Its results are on their way to the sink.
    Finalizing,
    /// Its results were acknowledged.
    Finalized,
    /// It was given up.
    Aborted,
}

impl fmt::Display for BatchState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Finalizing => "finalizing",
            Self::Finalized => "finalized",
            Self::Aborted => "aborted",
        })
    }
}

names!(
    /// Why a payload was dropped instead of delivered.
    DropReason, ByDropReason {
        /// Its attempt was no longer the current one.
        Late = "late",
        /// The run had been reported already, or is not part of the attempt.
        Duplicate = "duplicate",
        /// It was larger than the payload of one run may be.
        TooLarge = "too_large",
        /// An eval batch delivers no experiences.
        Eval = "eval",
        /// Other runs of its task failed, and groups are delivered whole or not at all.
        IncompleteGroup = "incomplete_group",
        /// Its task was cut before all its runs had ended.
        PartialTask = "partial_task",
        /// Its batch was aborted.
        Aborted = "aborted",
        /// The user discarded it.
        Discarded = "discarded",
        /// The scheduler was stopped.
        Stopped = "stopped",
    }
);

/// How a task ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// Runs that succeeded.
    pub completed_runs: u32,
    /// Runs that were asked for.
    pub total_runs: u32,
    pub failed_runs: ByFailureKind,
    pub cancelled_runs: ByCancelReason,
    /// The failed run with the lowest number.
    pub first_error: Option<FailedRun>,
    /// The metrics of the successful runs, in the order of runs.
    pub run_metrics: Vec<Metrics>,
    /// The seconds that the ended attempts took, in the order of their first runs.
    pub attempt_seconds: Vec<f64>,
}

impl Status {
    /// Tells whether every run succeeded.
    pub const fn ok(&self) -> bool {
        self.completed_runs == self.total_runs
    }

    /// Says what went wrong, if anything did.
    pub fn message(&self) -> Option<String> {
        if self.ok() {
            return None;
        }
        let (completed, total) = (self.completed_runs, self.total_runs);
        let counts = format!("{completed}/{total} runs completed successfully.");
        let Some(error) = &self.first_error else {
            return Some(format!("{counts} The rest was cancelled."));
        };
        Some(format!("{counts} First error: {error}"))
    }
}

/// A run that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedRun {
    pub run: RunId,
    /// In what way.
    pub kind: FailureKind,
    /// In the words of whoever noticed.
    pub message: Arc<str>,
}

impl fmt::Display for FailedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)
    }
}

/// The result of one task: its status and the payloads of its good runs, in the order of runs.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskResult {
    pub task: TaskId,
    /// How it ended.
    pub status: Arc<Status>,
    /// What it yielded.
    pub payloads: Vec<Payload>,
}

/// Everything that is said about a batch when it is finalized or aborted.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchResult {
    /// The user's name of the batch.
    pub batch: BatchId,
    /// Which life of that name.
    pub key: BatchKey,
    /// Whether it was trained on.
    pub kind: BatchType,
    /// Finalized or aborted.
    pub state: BatchState,
    /// Why it was aborted.
    pub reason: Option<Arc<str>>,
    /// How its tasks ended. They add up to the tasks that were submitted.
    pub tasks: TaskTally,
    /// How its runs ended.
    pub runs: RunTally,
    /// Payloads that the sink acknowledged.
    pub delivered: u64,
    /// Payloads that were dropped, by reason.
    pub dropped: ByDropReason,
    /// Payloads among the dropped ones that may have reached the sink all the same: they were
    /// offered to it, and it never said whether it took them.
    pub uncertain: u64,
    /// The statuses of the finished tasks, by task id.
    pub statuses: Vec<(TaskId, Arc<Status>)>,
    /// What the sink had to say.
    pub sink_metrics: Metrics,
}

impl BatchResult {
    /// Returns how many tasks came to an end of their own or were kept as partial tasks.
    pub const fn finished(&self) -> u64 {
        self.tasks.ok + self.tasks.partial + self.tasks.failed
    }

    /// Tells whether no task is missing.
    pub const fn complete(&self) -> bool {
        self.tasks.cancelled == 0
    }
}

/// How tasks ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskTally {
    /// All runs succeeded.
    pub ok: u64,
    /// Some runs succeeded.
    pub partial: u64,
    /// No run succeeded, and the task was not cut: each failed, or was cancelled by itself.
    pub failed: u64,
    /// The task was cut, and what it had was not kept.
    pub cancelled: u64,
}

impl TaskTally {
    /// Returns how many tasks have ended.
    pub const fn total(&self) -> u64 {
        self.ok + self.partial + self.failed + self.cancelled
    }
}
