//! Status and results of ended tasks and batches.

use std::fmt;
use std::sync::Arc;

use crate::failure::names;
use crate::metrics::Metrics;
use crate::{
    BatchId, BatchKey, ByCancelReason, ByFailureKind, FailureKind, Payload, RunId, RunTally, TaskId,
};

names!(
    BatchType {
        /// Its experiences go to the sink.
        Train = "train",
        /// Only its metrics are used.
        Eval = "eval",
    }
);

names!(
    /// State of a submitted batch.
    ///
    /// ```text
    ///            tasks             collected            acknowledged
    /// Pending ─────────► Running ─────────► Finalizing ─────────────► Finalized
    ///    │                  ▲ └──────────────┐   │
    ///    │                  └── sink failed ─│───┘
    ///    └───────────── abort ───────────────┴──► Aborted
    /// ```
    BatchState {
        /// It has no tasks.
        Pending = "pending",
        /// Its tasks are waiting, running or ended.
        Running = "running",
        /// Its results are being delivered to the sink.
        Finalizing = "finalizing",
        /// Its results were acknowledged.
        Finalized = "finalized",
        Aborted = "aborted",
    }
);

names!(
    /// Reason why a payload was dropped instead of delivered.
    DropReason, ByDropReason {
        /// Its attempt was no longer the current one.
        Late = "late",
        /// Its run had been reported already, or is not part of the attempt.
        Duplicate = "duplicate",
        /// It exceeded the limit per run.
        TooLarge = "too_large",
        /// An eval batch delivers no experiences.
        Eval = "eval",
        /// Other runs of its task failed, and only whole groups are delivered.
        IncompleteGroup = "incomplete_group",
        PartialTask = "partial_task",
        Aborted = "aborted",
        Discarded = "discarded",
        Stopped = "stopped",
    }
);

/// Status of an ended task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    pub completed_runs: u32,
    pub total_runs: u32,
    pub failed_runs: ByFailureKind,
    pub cancelled_runs: ByCancelReason,
    /// Failed run with the lowest number.
    pub first_error: Option<FailedRun>,
    /// Metrics of the successful runs, in the order of runs.
    pub run_metrics: Vec<Metrics>,
    /// Seconds of the ended attempts, in the order of their first runs.
    pub attempt_seconds: Vec<f64>,
}

impl Status {
    pub const fn ok(&self) -> bool {
        self.completed_runs == self.total_runs
    }

    /// Returns a description of failures and cancellations. `None`: every run succeeded.
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedRun {
    pub run: RunId,
    pub kind: FailureKind,
    pub message: Arc<str>,
}

impl fmt::Display for FailedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)
    }
}

/// Result of one task: its status and the payloads of its successful runs, in the order of runs.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskResult {
    pub task: TaskId,
    pub status: Arc<Status>,
    pub payloads: Vec<Payload>,
}

/// Result of a finalized or aborted batch.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchResult {
    pub batch: BatchId,
    pub key: BatchKey,
    pub kind: BatchType,
    /// Finalized or aborted.
    pub state: BatchState,
    pub reason: Option<Arc<str>>,
    /// Sum of the tasks that were submitted.
    pub tasks: TaskTally,
    pub runs: RunTally,
    /// Payloads that the sink acknowledged.
    pub delivered: u64,
    pub dropped: ByDropReason,
    /// Dropped payloads that the sink may have stored: they were delivered to it without an answer.
    pub uncertain: u64,
    /// Statuses of the finished tasks, by task id.
    pub statuses: Vec<(TaskId, Arc<Status>)>,
    pub sink_metrics: Metrics,
}

impl BatchResult {
    /// Returns the number of tasks that ended by themselves or were kept as partial tasks.
    pub const fn finished(&self) -> u64 {
        self.tasks.ok + self.tasks.partial + self.tasks.failed
    }

    /// Returns whether no task is missing.
    pub const fn complete(&self) -> bool {
        self.tasks.cancelled == 0
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskTally {
    /// All runs succeeded.
    pub ok: u64,
    /// Some runs succeeded.
    pub partial: u64,
    /// No run succeeded, and the task was not truncated: each run failed or was cancelled alone.
    pub failed: u64,
    /// The task was truncated, and its results were not kept.
    pub cancelled: u64,
}

impl TaskTally {
    pub const fn total(&self) -> u64 {
        self.ok + self.partial + self.failed + self.cancelled
    }
}
