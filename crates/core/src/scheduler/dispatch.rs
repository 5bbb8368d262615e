//! Choice of the next runs and their runners.

use super::{CorePhase, PendingRetry, RunPhase, RunnerPhase, SlotAttempt, TaskPhase, TaskRuns};
use crate::{
    Action, AttemptId, BatchKey, BatchPriority, BatchType, CancelReason, Core, DeadlineReason,
    RunRange, RunnerId, TaskId, Time,
};

/// Maximum number of retries, idle runners and batches that are checked for a match, so that the
/// cost of a dispatch does not depend on the number of pending runs. Skipped entries are checked
/// again later.
pub(super) const LOOK_AHEAD: usize = 8;

/// Position of a batch in the order of service.
pub(super) type BatchRank = (BatchPriority, BatchKey);

/// A slice and its runner.
pub(super) struct DispatchMatch {
    pub(super) batch: BatchKey,
    pub(super) task: TaskId,
    pub(super) runs: RunRange,
    pub(super) runner: RunnerId,
}

impl Core {
    /// Dispatches all runs that can be: batches in order, and within a batch retries before fresh
    /// runs, each first come first served.
    pub(crate) fn dispatch(&mut self) {
        if self.phase != CorePhase::Running {
            return;
        }
        self.isolate_idle();
        while !self.pool.idle.is_empty() {
            self.cancel_runs_without_budget();
            let fresh = self.first_fresh();
            let retry = self.next_suspect(fresh).or_else(|| self.next_retry(fresh));
            let found = match (retry, fresh) {
                (Some(retry), _) => Some(retry),
                (None, Some(rank)) => self.take_fresh(rank),
                (None, None) => break,
            };
            // `None`: the rest of the batch's queue had ended.
            if let Some(found) = found {
                self.start_attempt(found);
            }
        }
        self.release_isolated();
    }

    /// Returns the first batch with fresh runs and payload budget.
    pub(crate) fn first_fresh(&self) -> Option<BatchRank> {
        self.queues
            .fresh
            .iter()
            .take(LOOK_AHEAD)
            .find(|rank| self.has_payload_budget(rank.1))
            .copied()
    }

    /// Returns the maximum number of runs in one attempt.
    pub(crate) fn max_runs_per_attempt(&self) -> u32 {
        self.config.max_repeat_times_per_runner.unwrap_or(u32::MAX).max(1)
    }

    /// Counts the retries of the first batches that could be dispatched now.
    pub(crate) fn dispatchable_retries(&self) -> u64 {
        let batches = self.queues.retrying.iter().take(LOOK_AHEAD);
        let batches = batches.filter(|rank| self.has_payload_budget(rank.1));
        let retries: u64 = batches.map(|rank| self.batches[&rank.1].retries.len() as u64).sum();
        let suspects = if self.pool.isolated.is_empty() { self.suspects_waiting() } else { 0 };
        retries + suspects as u64
    }

    /// Takes the next slice of a batch with fresh runs.
    fn take_fresh(&mut self, rank: BatchRank) -> Option<DispatchMatch> {
        let runner = self.pool.idle.first()?.1;
        let most = self.max_runs_per_attempt();
        let batch = self.batches.get_mut(&rank.1)?;
        let before = batch.slices;
        let found = batch.next_fresh(most);
        self.queues.slices -= before - batch.slices;
        if !batch.has_fresh() {
            self.queues.fresh.remove(&rank);
        }
        let (task, runs) = found?;
        Some(DispatchMatch { batch: rank.1, task, runs, runner })
    }

    /// Takes a retry of a batch up to the one whose fresh runs are next.
    fn next_retry(&mut self, fresh: Option<BatchRank>) -> Option<DispatchMatch> {
        let ranks: Vec<BatchRank> = self.queues.retrying.iter().take(LOOK_AHEAD).copied().collect();
        let mut earliest: Option<Time> = None;
        for rank in ranks {
            if fresh.is_some_and(|fresh| fresh < rank) {
                break;
            }
            if !self.has_payload_budget(rank.1) {
                continue;
            }
            if let Some(found) = self.match_retry(rank.1, &mut earliest) {
                return Some(found);
            }
        }
        if let Some(at) = earliest {
            self.timers.set(
                DeadlineReason::AnyRunner,
                &mut self.queues.other_runner_until,
                Some(at),
            );
        }
        None
    }

    /// Cancels the waiting runs of the first batch if the payload budget does not allow them:
    /// waiting would not free any.
    fn cancel_runs_without_budget(&mut self) {
        let Some((_, key)) = self.queues.order.first().copied() else { return };
        if self.batches[&key].runs.pending > 0 && !self.has_payload_budget(key) {
            self.cancel_unsent(key, CancelReason::NoRoom);
        }
    }

    /// Takes a retry and an idle runner other than that of the failure.
    fn match_retry(&mut self, key: BatchKey, earliest: &mut Option<Time>) -> Option<DispatchMatch> {
        let (now, alive) = (self.now, self.pool.alive);
        let batch = self.batches.get_mut(&key)?;
        let mut found = None;
        for (at, retry) in batch.retries.iter().enumerate().take(LOOK_AHEAD) {
            let mut idle = self.pool.idle.iter().take(LOOK_AHEAD).map(|(_, runner)| *runner);
            let (avoid, until) = retry.avoid;
            let another = idle.find(|runner| *runner != avoid);
            let alone = alive <= u32::from(self.pool.runners[avoid.0 as usize].is_alive());
            if let Some(runner) = another {
                found = Some((at, runner));
                break;
            }
            if alone || until <= now {
                found = Some((at, avoid));
                break;
            }
            *earliest = Some(earliest.map_or(until, |earliest| earliest.min(until)));
        }
        let (at, runner) = found?;
        let PendingRetry { task, run, .. } = batch.retries.remove(at)?;
        let runs = RunRange { first: run.0, count: 1 };
        if batch.retries.is_empty() {
            self.queues.retrying.remove(&batch.rank());
        }
        Some(DispatchMatch { batch: key, task, runs, runner })
    }

    /// Returns whether a batch may add payloads: batches behind the first while half of the budget
    /// is free, the first also while it holds less than half itself. So payloads of other batches
    /// never block the first one, which is finalized first.
    pub(super) fn has_payload_budget(&self, key: BatchKey) -> bool {
        let batch = &self.batches[&key];
        let (budget, held) = (self.config.limits.payload_bytes, self.counters.payload_bytes_held);
        match batch.kind {
            BatchType::Eval => true,
            BatchType::Train
                if self.queues.order.first().is_some_and(|(_, first)| *first == key) =>
            {
                held < budget || batch.held_bytes < budget / 2
            }
            BatchType::Train => held < budget / 2,
        }
    }

    fn start_attempt(&mut self, found: DispatchMatch) {
        let DispatchMatch { batch: key, task: id, runs, runner } = found;
        let attempt = AttemptId(self.serials.attempt);
        let Some(batch) = self.batches.get_mut(&key) else { return };
        let task = &mut batch.tasks[id.0 as usize];
        if matches!(task.body, TaskPhase::Fresh) {
            task.body = TaskPhase::Working(Box::new(TaskRuns::new(task.total)));
        }
        let TaskPhase::Working(work) = &mut task.body else { return };
        for run in runs.iter() {
            work.runs[run.0 as usize].state = RunPhase::InFlight(attempt);
        }
        let suspected_losses = work.suspected_losses;
        let cap = self.config.max_timeout;
        let timeout = match batch.kind {
            BatchType::Train => {
                self.durations.timeout(task.workflow, runs.count, &self.config.dynamic_timeout, cap)
            }
            BatchType::Eval => cap,
        };
        let count = u64::from(runs.count);
        for tally in self.counters.tallies(batch) {
            tally.pending -= count;
            tally.running += count;
        }
        batch.attempts += 1;
        self.serials.attempt += 1;
        self.counters.attempts_started += 1;
        let incarnation = self.pool[runner].incarnation;
        self.actions.push(Action::StartAttempt {
            runner,
            incarnation,
            attempt,
            batch: key,
            task: id,
            runs,
            timeout,
            suspected_losses,
        });
        let attempt = SlotAttempt {
            id: attempt,
            batch: key,
            task: id,
            left: runs.count,
            runs,
            succeeded: 0,
            sent: self.now,
            began: None,
            timeout,
        };
        self.set_phase(runner, RunnerPhase::Busy(attempt));
    }
}
