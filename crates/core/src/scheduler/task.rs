//! One task of a batch: its runs and their results.

use std::sync::Arc;

use crate::metrics::Metrics;
use crate::{
    AttemptId, CancelReason, FailedRun, FailureKind, LeaseId, Payload, Status, WorkflowId,
};

/// A task. Small before its dispatch: a batch may have a million of them.
#[derive(Clone, Debug)]
pub(crate) struct CoreTask {
    pub(crate) total: u32,
    pub(crate) workflow: WorkflowId,
    pub(crate) body: TaskPhase,
}

#[derive(Clone, Debug)]
pub(crate) enum TaskPhase {
    /// None of its runs has been dispatched.
    Fresh,
    /// Some runs were dispatched, and some have not ended.
    Working(Box<TaskRuns>),
    /// All runs have ended, and the result is available.
    Ended(Box<EndedTask>),
    /// The task was truncated, or its result was taken.
    Gone,
}

impl CoreTask {
    /// Returns whether some run has not ended.
    pub(crate) const fn open(&self) -> bool {
        matches!(self.body, TaskPhase::Fresh | TaskPhase::Working(_))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct TaskRuns {
    pub(crate) runs: Vec<TaskRun>,
    /// Runs that have not ended.
    pub(crate) unfinished: u32,
    /// Runners that were lost under suspicion of this task.
    pub(crate) suspected_losses: u32,
    /// Failed run with the lowest number.
    pub(crate) first_error: Option<FailedRun>,
    /// First run, attempt and seconds of every ended attempt.
    pub(crate) attempts: Vec<(u32, AttemptId, f64)>,
}

impl TaskRuns {
    pub(crate) fn new(total: u32) -> Self {
        Self {
            runs: vec![TaskRun::default(); total as usize],
            unfinished: total,
            suspected_losses: 0,
            first_error: None,
            attempts: Vec::new(),
        }
    }

    /// Turns the ended runs into a status and payloads, both in the order of runs.
    pub(crate) fn into_ended(mut self, total: u32) -> EndedTask {
        let mut status = Status { total_runs: total, ..Status::default() };
        let mut payloads = Vec::new();
        for run in self.runs {
            match run.state {
                RunPhase::Succeeded => {
                    status.completed_runs += 1;
                    status.run_metrics.push(run.metrics);
                    payloads.extend(run.payload);
                }
                RunPhase::Failed(kind) => status.failed_runs[kind] += 1,
                RunPhase::Cancelled(reason) => status.cancelled_runs[reason] += 1,
                RunPhase::Pending | RunPhase::InFlight(_) => {}
            }
        }
        self.attempts.sort_by_key(|(first, attempt, _)| (*first, *attempt));
        status.attempt_seconds = self.attempts.into_iter().map(|(.., seconds)| seconds).collect();
        status.first_error = self.first_error;
        EndedTask { status: Arc::new(status), payloads, lease: None }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct TaskRun {
    pub(crate) state: RunPhase,
    pub(crate) own_failures: u32,
    pub(crate) infrastructure_failures: u32,
    /// True if it may have ended the process of its last attempt.
    pub(crate) suspect: bool,
    pub(crate) payload: Option<Payload>,
    pub(crate) metrics: Metrics,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RunPhase {
    #[default]
    Pending,
    InFlight(AttemptId),
    Succeeded,
    Failed(FailureKind),
    Cancelled(CancelReason),
}

impl RunPhase {
    /// Returns whether the run has not ended.
    pub(crate) const fn open(self) -> bool {
        matches!(self, Self::Pending | Self::InFlight(_))
    }
}

/// Result of a task, kept until it is collected or delivered.
#[derive(Clone, Debug)]
pub(crate) struct EndedTask {
    pub(crate) status: Arc<Status>,
    pub(crate) payloads: Vec<Payload>,
    /// The delivery that contains it now.
    pub(crate) lease: Option<LeaseId>,
}
