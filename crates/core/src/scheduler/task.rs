//! One task of a batch: its runs, and what is kept of them.

use std::sync::Arc;

use crate::failure::{CancelReason, FailureKind};
use crate::ids::{AttemptId, LeaseId, WorkflowId};
use crate::metrics::Metrics;
use crate::run::Payload;
use crate::scheduler::status::{FailedRun, Status};

/// A task. Small while it waits: a batch may have a million of them.
#[derive(Clone, Debug)]
pub(crate) struct CoreTask {
    pub(crate) total: u32,
    pub(crate) workflow: WorkflowId,
    pub(crate) body: TaskPhase,
}

/// How far a task has come.
#[derive(Clone, Debug)]
pub(crate) enum TaskPhase {
    /// None of its runs has been dispatched.
    Fresh,
    /// Some have, and some have not ended.
    Working(Box<TaskRuns>),
    /// All have ended, and the result waits to be taken.
    Ended(Box<EndedTask>),
    /// Nothing is left: it was cut, or its result was taken.
    Gone,
}

impl CoreTask {
    /// Tells whether some run has not ended.
    pub(crate) const fn open(&self) -> bool {
        matches!(self.body, TaskPhase::Fresh | TaskPhase::Working(_))
    }
}

/// The runs of a task under way.
#[derive(Clone, Debug)]
pub(crate) struct TaskRuns {
    pub(crate) runs: Vec<TaskRun>,
    /// Runs that have not ended.
    pub(crate) unfinished: u32,
    /// Runners that were lost under suspicion of this task.
    pub(crate) kills: u32,
    /// The failed run with the lowest number.
    pub(crate) first_error: Option<FailedRun>,
    /// First run, attempt and seconds of every attempt that ended.
    pub(crate) attempts: Vec<(u32, AttemptId, f64)>,
}

impl TaskRuns {
    pub(crate) fn new(total: u32) -> Self {
        Self {
            runs: vec![TaskRun::default(); total as usize],
            unfinished: total,
            kills: 0,
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

/// One run.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskRun {
    pub(crate) state: RunPhase,
    /// Failures that are the task's own.
    pub(crate) own_failures: u32,
    /// Failures of the machinery around it.
    pub(crate) machinery_failures: u32,
    pub(crate) payload: Option<Payload>,
    pub(crate) metrics: Metrics,
}

/// Where a run is.
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
    /// Tells whether the run has not ended.
    pub(crate) const fn open(self) -> bool {
        matches!(self, Self::Pending | Self::InFlight(_))
    }
}

/// The result of a task, kept until it is taken.
#[derive(Clone, Debug)]
pub(crate) struct EndedTask {
    pub(crate) status: Arc<Status>,
    pub(crate) payloads: Vec<Payload>,
    /// The delivery it is part of at the moment.
    pub(crate) lease: Option<LeaseId>,
}
