//! Isolation of suspects: runs that may have ended the process that several runners share are
//! retried in a process of their own, so that they affect no other run again.
//!
//! A runner that starts while suspects wait is isolated: it gets a process of its own. At most half
//! of the pool is, so that suspects never take the runners of all other runs. An isolated runner
//! executes other runs too, and returns to the shared process when there is no work for it.

use super::dispatch::{BatchRank, DispatchMatch, LOOK_AHEAD};
use super::{CorePhase, PendingRetry, RunnerPhase};
use crate::{BatchKey, Core, RunId, RunRange, RunnerId, TaskId};

impl Core {
    /// Queues a retry that may be dispatched now.
    pub(crate) fn queue_retry(&mut self, key: BatchKey, retry: PendingRetry) {
        let Some(batch) = self.batches.get_mut(&key) else { return };
        let work = batch.work(retry.task);
        let is_suspect = work.is_some_and(|work| work.runs[retry.run.0 as usize].suspect);
        if is_suspect && self.config.runners_per_worker > 1 {
            batch.suspects.push_back(retry);
            self.queues.suspects.insert(batch.rank());
        } else {
            batch.retries.push_back(retry);
            self.queues.retrying.insert(batch.rank());
        }
    }

    /// Removes retries of a task, or of one of its runs, that may be dispatched now.
    pub(crate) fn unqueue_retries(&mut self, key: BatchKey, task: TaskId, run: Option<RunId>) {
        let Some(batch) = self.batches.get_mut(&key) else { return };
        let other =
            |retry: &PendingRetry| retry.task != task || run.is_some_and(|run| run != retry.run);
        batch.retries.retain(other);
        batch.suspects.retain(other);
        if batch.retries.is_empty() {
            self.queues.retrying.remove(&batch.rank());
        }
        if batch.suspects.is_empty() {
            self.queues.suspects.remove(&batch.rank());
        }
    }

    /// Counts the suspects of the first batches that wait for an isolated runner.
    pub(crate) fn suspects_waiting(&self) -> usize {
        let batches = self.queues.suspects.iter().take(LOOK_AHEAD);
        batches.map(|rank| self.batches[&rank.1].suspects.len()).sum()
    }

    /// Returns whether the next runner that starts is to be isolated.
    pub(crate) fn isolates_next(&self) -> bool {
        if self.queues.suspects.is_empty() {
            return false;
        }
        let limit = (self.pool.target_runners as usize / 2).max(1);
        let free =
            self.pool.isolated.iter().filter(|runner| self.pool[**runner].attempt().is_none());
        self.pool.isolated.len() < limit && free.count() < self.suspects_waiting()
    }

    /// Isolates idle runners for waiting suspects.
    pub(crate) fn isolate_idle(&mut self) {
        while self.isolates_next() {
            let shared = |(_, runner): &&(u64, RunnerId)| !self.pool.isolated.contains(runner);
            let Some((_, runner)) = self.pool.idle.iter().find(shared).copied() else { return };
            self.restart_runner(runner);
        }
    }

    /// Returns isolated runners to the shared process that have no work, or whose process cannot be
    /// started for lack of room.
    pub(crate) fn release_isolated(&mut self) {
        if !self.queues.suspects.is_empty() || self.phase != CorePhase::Running {
            return;
        }
        let unused = |runner: &RunnerId| {
            let slot = &self.pool[*runner];
            slot.waits || matches!(slot.phase, RunnerPhase::Idle)
        };
        let unused: Vec<RunnerId> = self.pool.isolated.iter().copied().filter(unused).collect();
        for runner in unused {
            self.restart_runner(runner);
        }
    }

    /// Takes a suspect of a batch up to the one whose fresh runs are next, and an isolated runner.
    /// If there is no room for processes of their own, suspects take any runner.
    pub(super) fn next_suspect(&mut self, fresh: Option<BatchRank>) -> Option<DispatchMatch> {
        if self.queues.suspects.is_empty() {
            return None;
        }
        let ranks = self.queues.suspects.iter().take(LOOK_AHEAD);
        let rank = *ranks
            .copied()
            .collect::<Vec<_>>()
            .iter()
            .find(|rank| self.has_payload_budget(rank.1))?;
        if fresh.is_some_and(|fresh| fresh < rank) {
            return None;
        }
        let isolated = &self.pool.isolated;
        let idle = |runner: &&RunnerId| matches!(self.pool[**runner].phase, RunnerPhase::Idle);
        let runner = match isolated.iter().find(idle) {
            Some(runner) => *runner,
            None if isolated.iter().all(|runner| self.pool[*runner].waits) => {
                self.pool.idle.first()?.1
            }
            None => return None,
        };
        let batch = self.batches.get_mut(&rank.1)?;
        let PendingRetry { task, run, .. } = batch.suspects.pop_front()?;
        if batch.suspects.is_empty() {
            self.queues.suspects.remove(&rank);
        }
        let runs = RunRange { first: run.0, count: 1 };
        Some(DispatchMatch { batch: rank.1, task, runs, runner })
    }
}
