//! One batch: its tasks, the order in which they go out, and who waits for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::batch_id::{BatchId, BatchPriority};
use crate::failure::FailureKind;
use crate::ids::{BatchKey, LeaseId, RequestId, RunId, RunnerId, TaskId};
use crate::scheduler::action::RunRange;
use crate::scheduler::counters::RunTally;
use crate::scheduler::input::UnresponsivePolicy;
use crate::scheduler::status::{BatchResult, BatchState, BatchType, ByDropReason, TaskTally};
use crate::scheduler::task::{CoreTask, RunPhase, TaskPhase, TaskRuns};
use crate::time::Time;

/// A batch, active or remembered.
#[derive(Clone, Debug)]
pub(crate) struct CoreBatch {
    pub(crate) id: BatchId,
    pub(crate) key: BatchKey,
    pub(crate) kind: BatchType,
    pub(crate) owner: BatchOwner,
    pub(crate) min_wait_num: Option<u32>,
    pub(crate) tasks: Vec<CoreTask>,
    /// The next task and run that were never dispatched.
    fresh: (u32, u32),
    /// How many slices that makes, if no run ends before it is dispatched.
    pub(crate) slices: u64,
    /// Runs that failed and may be tried again now.
    pub(crate) retries: VecDeque<PendingRetry>,
    /// Tasks that have not ended.
    pub(crate) open: u64,
    /// Tasks whose result was handed out and not given back.
    pub(crate) handed: u64,
    /// Ended tasks whose result can be taken; in the order in which they ended.
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
    /// Deliveries that are under way.
    pub(crate) leases: Vec<LeaseId>,
    /// Whether the sink was offered the results and has not said that it did not take them.
    pub(crate) offered: bool,
    /// Whether a finalizer has found it good enough as it is.
    pub(crate) accepted: bool,
    /// The failure that failed the batch.
    pub(crate) failed: Option<(FailureKind, Arc<str>)>,
    /// That it is to be given up, or was.
    pub(crate) abort: Option<AbortSpec>,
    /// What is remembered once nothing else is left.
    pub(crate) result: Option<Arc<BatchResult>>,
}

/// Whom a batch belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchOwner {
    /// The scheduler's user: results are collected.
    Scheduler,
    /// The coordinator's user: the batch has a life cycle and a sink.
    Coordinator(BatchState),
}

/// A run that is to be tried again: by itself, so that a run that hangs or kills its runner cannot
/// take its siblings along a second time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingRetry {
    pub(crate) task: TaskId,
    pub(crate) run: RunId,
    /// The runner it failed on, to be avoided until then.
    pub(crate) avoid: (RunnerId, Time),
}

/// A request that waits for something of a batch.
#[derive(Clone, Debug)]
pub(crate) struct BatchWaiter {
    pub(crate) request: RequestId,
    pub(crate) wants: WaitGoal,
    pub(crate) patience: WaitTimeout,
    /// Since when enough has been there.
    pub(crate) enough_since: Option<Time>,
    pub(crate) timer: Option<Time>,
}

/// What a waiter waits for.
#[derive(Clone, Debug)]
pub(crate) enum WaitGoal {
    Collect {
        min_num: Option<u32>,
        clear: bool,
        partial: bool,
    },
    Finalize,
    /// That the batch is aborted, and what was to be kept has arrived.
    Abort,
}

/// How a batch is given up.
#[derive(Clone, Debug)]
pub(crate) struct AbortSpec {
    pub(crate) reason: Arc<str>,
    pub(crate) keep: bool,
    pub(crate) unresponsive: UnresponsivePolicy,
}

/// How long a waiter waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitTimeout {
    Until(Time),
    /// This long without progress, counted from the later of then and the last progress.
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
            abort: None,
            result: None,
        }
    }

    pub(crate) fn rank(&self) -> (BatchPriority, BatchKey) {
        (self.id.priority(), self.key)
    }

    /// Returns how many tasks somebody who collects now would expect.
    pub(crate) fn expected(&self) -> u64 {
        self.tasks.len() as u64 - self.handed
    }

    pub(crate) const fn state(&self) -> Option<BatchState> {
        match self.owner {
            BatchOwner::Scheduler => None,
            BatchOwner::Coordinator(state) => Some(state),
        }
    }

    /// Tells whether nothing but the result is left.
    pub(crate) const fn terminal(&self) -> bool {
        self.result.is_some()
    }

    /// Tells whether some run may never have been dispatched.
    pub(crate) const fn has_fresh(&self) -> bool {
        (self.fresh.0 as usize) < self.tasks.len()
    }

    /// Returns the runs of a task under way. None: it has not been begun, or has ended, be it that
    /// its whole batch has while a cancelled attempt was still on its way out.
    pub(crate) fn work(&self, task: TaskId) -> Option<&TaskRuns> {
        match &self.tasks.get(task.0 as usize)?.body {
            TaskPhase::Working(work) => Some(work),
            TaskPhase::Fresh | TaskPhase::Ended(_) | TaskPhase::Gone => None,
        }
    }

    /// As [`work`](Self::work), to be changed.
    pub(crate) fn work_mut(&mut self, task: TaskId) -> Option<&mut TaskRuns> {
        match &mut self.tasks.get_mut(task.0 as usize)?.body {
            TaskPhase::Working(work) => Some(work),
            TaskPhase::Fresh | TaskPhase::Ended(_) | TaskPhase::Gone => None,
        }
    }

    /// Takes out the next slice that was never dispatched, of at most `most` runs.
    pub(crate) fn next_fresh(&mut self, most: u32) -> Option<(TaskId, RunRange)> {
        loop {
            let (at, from) = self.fresh;
            let task = self.tasks.get(at as usize)?;
            // Runs may have ended before they were dispatched: their task was given up.
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

    /// Counts the slices that were never dispatched; `slices` must be so many.
    pub(crate) fn count_slices(&self, most: u32) -> u64 {
        let (at, from) = self.fresh;
        let left = self.tasks.iter().skip(at as usize).enumerate();
        left.map(|(nth, task)| slices(task.total - if nth == 0 { from } else { 0 }, most)).sum()
    }

    /// Leaves nothing to dispatch; the runs must have ended.
    pub(crate) fn clear_queue(&mut self) {
        self.retries.clear();
        self.fresh = (self.tasks.len() as u32, 0);
        self.slices = 0;
    }

    /// Tells whether a run waits to be dispatched for the first time, not to be tried again.
    pub(crate) const fn is_fresh(&self, task: u32, run: u32) -> bool {
        task > self.fresh.0 || (task == self.fresh.0 && run >= self.fresh.1)
    }
}

/// Returns how many slices of at most `most` runs these make.
pub(crate) const fn slices(runs: u32, most: u32) -> u64 {
    runs.div_ceil(most) as u64
}
