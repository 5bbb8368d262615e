//! One batch: its tasks, their dispatch order, and its waiters.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::{CoreTask, RunPhase, TaskPhase, TaskRuns};
use crate::{
    BatchId, BatchKey, BatchPriority, BatchResult, BatchState, BatchType, ByDropReason,
    FailureKind, LeaseId, RequestId, RunFailure, RunId, RunRange, RunTally, RunnerId, TaskId,
    TaskTally, Time, UnresponsivePolicy,
};

/// A batch, active or remembered.
#[derive(Clone, Debug)]
pub(crate) struct CoreBatch {
    pub(crate) id: BatchId,
    pub(crate) key: BatchKey,
    pub(crate) kind: BatchType,
    pub(crate) owner: BatchOwner,
    pub(crate) min_wait_num: Option<u32>,
    pub(crate) tasks: Vec<CoreTask>,
    /// Next task and run that were never dispatched.
    fresh: (u32, u32),
    /// Number of slices that were never dispatched, if no run ends before.
    pub(crate) slices: u64,
    /// Runs that may be retried now.
    pub(crate) retries: VecDeque<PendingRetry>,
    /// Suspects that may be retried now.
    pub(crate) suspects: VecDeque<PendingRetry>,
    pub(crate) open: u64,
    /// Tasks whose result was handed out and not returned.
    pub(crate) handed: u64,
    /// Ended tasks whose result is available, in the order of their end.
    pub(crate) results: Vec<TaskId>,
    pub(crate) runs: RunTally,
    pub(crate) ended: TaskTally,
    pub(crate) delivered: u64,
    pub(crate) dropped: ByDropReason,
    pub(crate) uncertain: u64,
    pub(crate) held_bytes: u64,
    /// Attempts of this batch that have not ended.
    pub(crate) attempts: u32,
    pub(crate) waiters: Vec<BatchWaiter>,
    /// Open deliveries.
    pub(crate) leases: Vec<LeaseId>,
    /// True if the sink was offered the results and has not refused them.
    pub(crate) offered: bool,
    /// True if a finalizer has accepted the batch with the present tasks.
    pub(crate) accepted: bool,
    pub(crate) failed: Option<(FailureKind, Arc<str>)>,
    /// Last failure of a run that is retried.
    pub(crate) last_retried: Option<RunFailure>,
    /// Requested or executed abort.
    pub(crate) abort: Option<AbortSpec>,
    /// Result of a closed batch.
    pub(crate) result: Option<Arc<BatchResult>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchOwner {
    /// Results are collected.
    Scheduler,
    /// The batch has a life cycle and is delivered to the sink.
    Coordinator(BatchState),
}

/// A run to retry. It is retried alone, so that a run that hangs or kills its runner affects no
/// other run again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingRetry {
    pub(crate) task: TaskId,
    pub(crate) run: RunId,
    /// End of its backoff.
    pub(crate) due: Time,
    /// The runner of the failure, avoided until the given time.
    pub(crate) avoid: (RunnerId, Time),
}

#[derive(Clone, Debug)]
pub(crate) struct BatchWaiter {
    pub(crate) request: RequestId,
    pub(crate) goal: WaitGoal,
    pub(crate) timeout: WaitTimeout,
    /// Time since which the minimum is reached.
    pub(crate) enough_since: Option<Time>,
    pub(crate) timer: Option<Time>,
}

#[derive(Clone, Debug)]
pub(crate) enum WaitGoal {
    /// Results of a scheduled batch.
    Collect { min_num: Option<u32>, clear: bool, partial: bool },
    /// The end of a submitted batch.
    Finalize,
    /// The abort, and the delivery of results that are kept.
    Abort,
}

#[derive(Clone, Debug)]
pub(crate) struct AbortSpec {
    pub(crate) reason: Arc<str>,
    pub(crate) keep: bool,
    pub(crate) unresponsive: UnresponsivePolicy,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitTimeout {
    Until(Time),
    /// Maximum time without progress, from the later of the given time and the last progress.
    Stall(Time, Duration),
}

impl WaitTimeout {
    pub(crate) fn new(now: Time, timeout: Option<Duration>, default: Duration) -> Self {
        match timeout {
            Some(timeout) => Self::Until(now.after(timeout)),
            None => Self::Stall(now, default),
        }
    }

    pub(crate) fn deadline(self, last_progress: Time) -> Time {
        match self {
            Self::Until(at) => at,
            Self::Stall(since, stall) => since.max(last_progress).after(stall),
        }
    }
}

impl CoreBatch {
    pub(crate) fn new(id: BatchId, key: BatchKey, kind: BatchType, owner: BatchOwner) -> Self {
        Self {
            id,
            key,
            kind,
            owner,
            min_wait_num: None,
            tasks: Vec::new(),
            fresh: (0, 0),
            slices: 0,
            retries: VecDeque::new(),
            suspects: VecDeque::new(),
            open: 0,
            handed: 0,
            results: Vec::new(),
            runs: RunTally::default(),
            ended: TaskTally::default(),
            delivered: 0,
            dropped: ByDropReason::default(),
            uncertain: 0,
            held_bytes: 0,
            attempts: 0,
            waiters: Vec::new(),
            leases: Vec::new(),
            offered: false,
            accepted: false,
            failed: None,
            last_retried: None,
            abort: None,
            result: None,
        }
    }

    pub(crate) fn rank(&self) -> (BatchPriority, BatchKey) {
        (self.id.priority(), self.key)
    }

    /// Returns the number of tasks that a collector expects now.
    pub(crate) fn expected(&self) -> u64 {
        self.tasks.len() as u64 - self.handed
    }

    pub(crate) const fn state(&self) -> Option<BatchState> {
        match self.owner {
            BatchOwner::Scheduler => None,
            BatchOwner::Coordinator(state) => Some(state),
        }
    }

    /// Returns whether the batch is closed and only its result is kept.
    pub(crate) const fn terminal(&self) -> bool {
        self.result.is_some()
    }

    /// Returns whether the dispatch queue may contain runs that were never dispatched.
    pub(crate) const fn has_fresh(&self) -> bool {
        (self.fresh.0 as usize) < self.tasks.len()
    }

    /// Returns the runs of an active task. `None`: it has not begun, or has ended, possibly with
    /// its whole batch while a cancelled attempt was still open.
    pub(crate) fn work(&self, task: TaskId) -> Option<&TaskRuns> {
        match &self.tasks.get(task.0 as usize)?.body {
            TaskPhase::Working(work) => Some(work),
            TaskPhase::Fresh | TaskPhase::Ended(_) | TaskPhase::Gone => None,
        }
    }

    pub(crate) fn work_mut(&mut self, task: TaskId) -> Option<&mut TaskRuns> {
        match &mut self.tasks.get_mut(task.0 as usize)?.body {
            TaskPhase::Working(work) => Some(work),
            TaskPhase::Fresh | TaskPhase::Ended(_) | TaskPhase::Gone => None,
        }
    }

    /// Takes the next slice of at most `most` runs that was never dispatched.
    pub(crate) fn next_fresh(&mut self, most: u32) -> Option<(TaskId, RunRange)> {
        loop {
            let (at, from) = self.fresh;
            let task = self.tasks.get(at as usize)?;
            // Runs may end before their dispatch, with their task.
            let pending = |run: &u32| match &task.body {
                TaskPhase::Fresh => true,
                TaskPhase::Working(work) => work.runs[*run as usize].state == RunPhase::Pending,
                TaskPhase::Ended(_) | TaskPhase::Gone => false,
            };
            let Some(first) = (from..task.total).find(pending) else {
                self.slices -= slices(task.total - from, most);
                self.fresh = (at + 1, 0);
                continue;
            };
            let end = first.saturating_add(most).min(task.total);
            let count = (first..end).take_while(pending).count() as u32;
            let next = first + count;
            self.slices -= slices(task.total - from, most) - slices(task.total - next, most);
            self.fresh = if next < task.total { (at, next) } else { (at + 1, 0) };
            return Some((TaskId(at), RunRange { first, count }));
        }
    }

    /// Counts the slices that were never dispatched; must equal `slices`.
    pub(crate) fn count_slices(&self, most: u32) -> u64 {
        let (at, from) = self.fresh;
        let left = self.tasks.iter().skip(at as usize).enumerate();
        left.map(|(nth, task)| slices(task.total - if nth == 0 { from } else { 0 }, most)).sum()
    }

    /// Empties the dispatch queue; the runs must have ended.
    pub(crate) fn clear_queue(&mut self) {
        self.retries.clear();
        self.suspects.clear();
        self.fresh = (self.tasks.len() as u32, 0);
        self.slices = 0;
    }

    /// Returns whether a run waits for its first dispatch.
    pub(crate) const fn is_fresh(&self, task: u32, run: u32) -> bool {
        task > self.fresh.0 || (task == self.fresh.0 && run >= self.fresh.1)
    }
}

/// Returns the number of slices of at most `most` runs.
pub(crate) const fn slices(runs: u32, most: u32) -> u64 {
    runs.div_ceil(most) as u64
}
