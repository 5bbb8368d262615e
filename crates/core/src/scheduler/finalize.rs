//! Finalizing a submitted batch: wait, truncation, delivery, acknowledgement, result.

use std::sync::Arc;
use std::time::Duration;

use super::{
    BatchOwner, CorePhase, CoreTask, LeaseRecipient, RunPhase, TaskPhase, WaitGoal, WaitTimeout,
    waiter_mut,
};
use crate::metrics::Metrics;
use crate::{
    Action, BatchId, BatchKey, BatchResult, BatchState, BatchType, CancelReason, Core, CoreEvent,
    DeadlineReason, LedgerRecord, Refusal, RequestId, Response, TaskId, Time, UnresponsivePolicy,
};

/// Decision about a finalizer.
enum FinalizeCheck {
    Wait,
    /// Enough tasks have ended; the others are cancelled with this reason.
    Close(CancelReason),
    Refuse(Refusal),
}

impl Core {
    pub(crate) fn finalize(
        &mut self,
        request: RequestId,
        id: BatchId,
        expected: BatchType,
        timeout: Option<Duration>,
    ) {
        let Some(key) = self.ids.get(&id).copied() else {
            return self.refuse(request, Refusal::NotRegistered { batch: id });
        };
        let batch = &self.batches[&key];
        let BatchOwner::Coordinator(state) = batch.owner else {
            return self.refuse(request, Refusal::NotRegistered { batch: id });
        };
        let kind = batch.kind;
        if kind != expected {
            let refusal = Refusal::WrongBatchType { batch: id, kind, expected };
            return self.refuse(request, refusal);
        }
        match (state, &batch.result, &batch.abort) {
            (BatchState::Finalized, Some(result), _) => {
                let answer = Response::Finalized(Arc::clone(result));
                self.answer(request, answer);
            }
            (BatchState::Aborted, _, Some(abort)) => {
                let reason = Arc::clone(&abort.reason);
                self.refuse(request, Refusal::Aborted { batch: id, reason });
            }
            (BatchState::Running, ..)
                if self.phase == CorePhase::Stopping && self.unfinished(key) =>
            {
                self.refuse(request, Refusal::Stopped);
            }
            _ => {
                let timeout = WaitTimeout::new(self.now, timeout, self.config.default_timeout);
                self.wait(key, request, WaitGoal::Finalize, timeout);
            }
        }
    }

    /// Returns whether tasks are missing: open or cancelled.
    fn unfinished(&self, key: BatchKey) -> bool {
        let batch = &self.batches[&key];
        batch.open > 0 || (batch.ended.cancelled > 0 && !batch.accepted)
    }

    pub(crate) fn check_finalizer(&mut self, key: BatchKey, request: RequestId) {
        match self.check_finalize(key, request) {
            FinalizeCheck::Wait => {}
            FinalizeCheck::Refuse(refusal) => {
                self.remove_waiter(key, request);
                self.refuse(request, refusal);
            }
            FinalizeCheck::Close(reason) => {
                let keep = self.config.over_rollout.return_partial_tasks;
                // Checked before the truncation: a refusal changes nothing.
                if let Some(refusal) = self.too_few(key, keep) {
                    if self.may_improve(key, request) {
                        return;
                    }
                    self.remove_waiter(key, request);
                    return self.refuse(request, refusal);
                }
                self.truncate(key, reason, keep, UnresponsivePolicy::Replace);
                if let Some(batch) = self.batches.get_mut(&key) {
                    batch.accepted = true;
                }
                self.deliver(key);
            }
        }
    }

    fn check_finalize(&mut self, key: BatchKey, request: RequestId) -> FinalizeCheck {
        let grace = self.config.over_rollout.wait_after_min;
        let (now, last_progress, serving) = (self.now, self.progress.last, self.serving());
        let Some(batch) = self.batches.get_mut(&key) else { return FinalizeCheck::Wait };
        let BatchOwner::Coordinator(state) = batch.owner else { return FinalizeCheck::Wait };
        let running = state != BatchState::Finalizing;
        if let (Some((kind, message)), true) = (&batch.failed, running) {
            let (kind, message) = (*kind, Arc::clone(message));
            return FinalizeCheck::Refuse(Refusal::BatchFailed {
                batch: batch.id.clone(),
                kind,
                message,
            });
        }
        let policy = self.config.policy(batch.kind);
        let expected = batch.tasks.len() as u64;
        let finished = expected - batch.open - batch.ended.cancelled;
        let needed = batch.min_wait_num.map_or(expected, |min| u64::from(min).min(expected));
        let enough = running && batch.min_wait_num.is_some() && finished >= needed;
        let quorum = policy.quorum_percent.map(|percent| share(expected, percent));
        let quorum = running && quorum.is_some_and(|quorum| finished >= quorum);
        let id = batch.id.clone();
        if running && batch.open == 0 {
            // Cancelled by an earlier finalizer, or from outside.
            if batch.accepted || batch.ended.cancelled == 0 || enough || quorum {
                return FinalizeCheck::Close(CancelReason::OverRollout);
            }
            let refusal = Refusal::TasksCancelled { batch: id, finished, needed, expected };
            return FinalizeCheck::Refuse(refusal);
        }
        let Some(waiter) = waiter_mut(batch, request) else { return FinalizeCheck::Wait };
        let deadline = waiter.timeout.deadline(last_progress);
        let grace_end = waiter.enough_for(enough, grace, now);
        if grace_end.is_some_and(|grace_end| now >= grace_end) || (enough && now >= deadline) {
            return FinalizeCheck::Close(CancelReason::OverRollout);
        }
        if now < deadline {
            let at = grace_end.map_or(deadline, |grace_end| grace_end.min(deadline));
            waiter.wake_by(at, &mut self.timers);
            return FinalizeCheck::Wait;
        }
        if quorum {
            return FinalizeCheck::Close(CancelReason::TimedOut);
        }
        let batch = id;
        FinalizeCheck::Refuse(Refusal::TimedOut {
            batch,
            state,
            finished,
            needed,
            expected,
            serving,
        })
    }

    /// Lets a finalizer continue to wait if it has time left and open tasks could still succeed.
    fn may_improve(&mut self, key: BatchKey, request: RequestId) -> bool {
        let (now, last_progress) = (self.now, self.progress.last);
        let Some(batch) = self.batches.get_mut(&key).filter(|batch| batch.open > 0) else {
            return false;
        };
        let Some(waiter) = waiter_mut(batch, request) else { return false };
        let deadline = waiter.timeout.deadline(last_progress);
        if deadline <= now {
            return false;
        }
        waiter.wake_by(deadline, &mut self.timers);
        true
    }

    /// Returns a refusal if too few tasks would have a successful run after closing the batch now.
    fn too_few(&self, key: BatchKey, keep: bool) -> Option<Refusal> {
        let batch = &self.batches[&key];
        let policy = self.config.policy(batch.kind);
        let begun = |task: &&CoreTask| match &task.body {
            TaskPhase::Working(work) => {
                work.runs.iter().any(|run| run.state == RunPhase::Succeeded)
            }
            TaskPhase::Fresh | TaskPhase::Ended(_) | TaskPhase::Gone => false,
        };
        let mut succeeded = batch.ended.ok + batch.ended.partial;
        if keep && policy.success_min_percent > 0 {
            succeeded += batch.tasks.iter().filter(begun).count() as u64;
        }
        let needed = share(batch.tasks.len() as u64, policy.success_min_percent);
        let batch = batch.id.clone();
        (succeeded < needed).then_some(Refusal::TooFewSucceeded { batch, succeeded, needed })
    }

    /// Delivers the results of a batch without open tasks to the sink. Without payloads the batch
    /// is finalized at once.
    fn deliver(&mut self, key: BatchKey) {
        if !self.holds_payloads(key) {
            return self.finish_finalize(key, Metrics::new());
        }
        let Some((lease, results)) = self.lease_results(key, LeaseRecipient::Sink) else { return };
        self.set_state(key, BatchState::Finalizing);
        // Its waiters get the sink's answer, which has its own deadline.
        let waiters = self.batches.get_mut(&key).map(|batch| &mut batch.waiters);
        for waiter in waiters.into_iter().flatten() {
            waiter.timeout = WaitTimeout::Until(Time::MAX);
            self.timers.set(DeadlineReason::Waiter(waiter.request), &mut waiter.timer, None);
        }
        self.record(key, || LedgerRecord::DeliveryStarted { batch: key });
        self.actions.push(Action::Deliver { lease, batch: key, results });
        self.changed.insert(key);
    }

    /// Returns whether a result has a payload, including an empty one.
    pub(crate) fn holds_payloads(&self, key: BatchKey) -> bool {
        let batch = &self.batches[&key];
        batch.results.iter().any(|id| match &batch.tasks[id.0 as usize].body {
            TaskPhase::Ended(ended) => !ended.payloads.is_empty(),
            TaskPhase::Fresh | TaskPhase::Working(_) | TaskPhase::Gone => false,
        })
    }

    pub(crate) fn set_state(&mut self, key: BatchKey, state: BatchState) {
        if let Some(batch) = self.batches.get_mut(&key) {
            batch.owner = BatchOwner::Coordinator(state);
        }
        self.emit(|| CoreEvent::Batch { batch: key, state });
    }

    /// Finalizes a batch whose results were acknowledged or empty.
    pub(crate) fn finish_finalize(&mut self, key: BatchKey, metrics: Metrics) {
        self.count_step(key);
        let waiters = self.take_waiters(key);
        let result = self.close(key, BatchState::Finalized, metrics);
        for (request, goal) in waiters {
            let answer = match goal {
                // Too late: the results have been delivered.
                WaitGoal::Abort => Response::Aborted(None),
                WaitGoal::Finalize | WaitGoal::Collect { .. } => {
                    Response::Finalized(Arc::clone(&result))
                }
            };
            self.answer(request, answer);
        }
    }

    /// Keeps the results after a failed delivery, so that finalizing can be repeated.
    pub(crate) fn sink_failed(&mut self, key: BatchKey, message: Arc<str>) {
        let message = self.clip(message);
        let batch = &self.batches[&key];
        let id = batch.id.clone();
        let aborted = batch.state() == Some(BatchState::Aborted);
        if !aborted {
            let none = batch.tasks.is_empty();
            self.set_state(key, if none { BatchState::Pending } else { BatchState::Running });
        }
        for (request, goal) in self.take_waiters(key) {
            if !aborted && matches!(goal, WaitGoal::Abort) {
                // It waited for the end of the delivery.
                self.wait(key, request, goal, WaitTimeout::Until(Time::MAX));
                continue;
            }
            let message = Arc::clone(&message);
            let refusal = Refusal::SinkFailed { batch: id.clone(), message };
            self.refuse(request, refusal);
        }
        if !aborted && self.batches[&key].abort.is_some() {
            self.carry_out_abort(key);
        }
    }

    /// Removes all waiters of a batch with their timers.
    pub(crate) fn take_waiters(&mut self, key: BatchKey) -> Vec<(RequestId, WaitGoal)> {
        let batch = self.batches.get_mut(&key);
        let waiters = batch.map(|batch| std::mem::take(&mut batch.waiters)).unwrap_or_default();
        let mut taken = Vec::with_capacity(waiters.len());
        for mut waiter in waiters {
            self.timers.set(DeadlineReason::Waiter(waiter.request), &mut waiter.timer, None);
            self.waiters.requests.remove(&waiter.request);
            taken.push((waiter.request, waiter.goal));
        }
        taken
    }

    /// Closes a submitted batch: only its result is kept for a while.
    pub(crate) fn close(
        &mut self,
        key: BatchKey,
        state: BatchState,
        sink_metrics: Metrics,
    ) -> Arc<BatchResult> {
        self.set_state(key, state);
        let batch = self.batches.get_mut(&key).expect("only a registered batch is closed");
        let mut statuses = Vec::new();
        for (at, task) in std::mem::take(&mut batch.tasks).into_iter().enumerate() {
            if let TaskPhase::Ended(ended) = task.body {
                statuses.push((TaskId(at as u32), ended.status));
            }
        }
        let abort = batch.abort.as_ref().filter(|_| state == BatchState::Aborted);
        let result = Arc::new(BatchResult {
            batch: batch.id.clone(),
            key,
            kind: batch.kind,
            state,
            reason: abort.map(|abort| Arc::clone(&abort.reason)),
            tasks: batch.ended,
            runs: batch.runs,
            delivered: batch.delivered,
            dropped: batch.dropped,
            uncertain: batch.uncertain,
            statuses,
            sink_metrics,
        });
        batch.result = Some(Arc::clone(&result));
        batch.results = Vec::new();
        self.queues.order.remove(&batch.rank());
        self.clear_queue(key);
        self.record(key, || LedgerRecord::Closed(Arc::clone(&result)));
        self.terminal.push_back(key);
        self.forget_oldest();
        self.actions.push(Action::DropTasks { batch: key });
        result
    }

    /// Removes the oldest results beyond the limit.
    pub(crate) fn forget_oldest(&mut self) {
        while self.terminal.len() > self.config.limits.terminal_batches as usize {
            let Some(key) = self.terminal.pop_front() else { return };
            if let Some(batch) = self.batches.remove(&key)
                && self.ids.get(&batch.id) == Some(&key)
            {
                self.ids.remove(&batch.id);
            }
        }
    }

    /// Counts a complete train batch, for the warm-up of the dynamic timeout.
    pub(crate) fn count_step(&mut self, key: BatchKey) {
        let batch = &self.batches[&key];
        let whole = batch.ended.total() > 0 && batch.ended.cancelled == 0;
        if whole && batch.kind == BatchType::Train {
            self.durations.steps = self.durations.steps.saturating_add(1);
        }
    }

    /// Returns the number of runners that are up.
    fn serving(&self) -> u32 {
        self.pool.idle.len() as u32 + self.pool.working
    }
}

/// Returns `percent` of `all`, rounded up.
fn share(all: u64, percent: u8) -> u64 {
    (all * u64::from(percent.min(100))).div_ceil(100)
}
