//! How a submitted batch is closed: waited for, cut, delivered, acknowledged, remembered.

use std::sync::Arc;
use std::time::Duration;

use crate::Core;
use crate::batch_id::BatchId;
use crate::failure::CancelReason;
use crate::ids::{BatchKey, RequestId, TaskId};
use crate::metrics::Metrics;
use crate::scheduler::action::{Action, Refusal, Response};
use crate::scheduler::batch::{BatchOwner, WaitGoal, WaitTimeout};
use crate::scheduler::collect::waiter_mut;
use crate::scheduler::completion::PartialPolicy;
use crate::scheduler::event::CoreEvent;
use crate::scheduler::input::UnresponsivePolicy;
use crate::scheduler::lease::LeaseRecipient;
use crate::scheduler::ledger_record::LedgerRecord;
use crate::scheduler::lifecycle::CorePhase;
use crate::scheduler::status::{BatchResult, BatchState, BatchType};
use crate::scheduler::task::{CoreTask, RunPhase, TaskPhase};
use crate::scheduler::view::DeadlineReason;
use crate::time::Time;

/// What a finalizer finds.
enum FinalizeCheck {
    Wait,
    /// Enough has ended; what has not is cut for this reason.
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
        actions: &mut Vec<Action>,
    ) {
        let Some(key) = self.ids.get(&id).copied() else {
            return self.refuse(request, Refusal::NotRegistered { batch: id }, actions);
        };
        let batch = &self.batches[&key];
        let BatchOwner::Coordinator(state) = batch.owner else {
            return self.refuse(request, Refusal::NotRegistered { batch: id }, actions);
        };
        let kind = batch.kind;
        if kind != expected {
            let refusal = Refusal::WrongBatchType { batch: id, kind, expected };
            return self.refuse(request, refusal, actions);
        }
        match (state, &batch.result, &batch.abort) {
            (BatchState::Finalized, Some(result), _) => {
                let answer = Response::Finalized(Arc::clone(result));
                self.answer(request, answer, actions);
            }
            (BatchState::Aborted, _, Some(abort)) => {
                let reason = Arc::clone(&abort.reason);
                self.refuse(request, Refusal::Aborted { batch: id, reason }, actions);
            }
            (BatchState::Running, ..)
                if self.phase == CorePhase::Stopping && self.unfinished(key) =>
            {
                self.refuse(request, Refusal::Stopped, actions);
            }
            _ => {
                let patience = WaitTimeout::new(self.now, timeout, self.config.default_timeout);
                self.wait(key, request, WaitGoal::Finalize, patience);
            }
        }
    }

    /// Tells whether tasks are missing, now or because they were cancelled.
    fn unfinished(&self, key: BatchKey) -> bool {
        let batch = &self.batches[&key];
        batch.open > 0 || (batch.ended.cancelled > 0 && !batch.accepted)
    }

    pub(crate) fn look_at_finalizer(
        &mut self,
        key: BatchKey,
        request: RequestId,
        actions: &mut Vec<Action>,
    ) {
        match self.verdict(key, request) {
            FinalizeCheck::Wait => {}
            FinalizeCheck::Refuse(refusal) => {
                self.forget_waiter(key, request);
                self.refuse(request, refusal, actions);
            }
            FinalizeCheck::Close(why) => {
                let keep = self.config.over_rollout.return_partial_tasks;
                let partial = if keep { PartialPolicy::Keep } else { PartialPolicy::Drop };
                // Before anything is cut: a refusal changes nothing.
                if let Some(refusal) = self.too_few(key, partial) {
                    if self.may_hope(key, request) {
                        return;
                    }
                    self.forget_waiter(key, request);
                    return self.refuse(request, refusal, actions);
                }
                self.truncate(key, why, partial, UnresponsivePolicy::Replace, actions);
                if let Some(batch) = self.batches.get_mut(&key) {
                    batch.accepted = true;
                }
                self.deliver(key, actions);
            }
        }
    }

    fn verdict(&mut self, key: BatchKey, request: RequestId) -> FinalizeCheck {
        let grace = self.config.over_rollout.wait_after_min;
        let (now, last_progress, serving) = (self.now, self.progress.last, self.serving());
        let (train, eval) = (self.config.train, self.config.eval);
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
        let policy = match batch.kind {
            BatchType::Train => train,
            BatchType::Eval => eval,
        };
        let expected = batch.tasks.len() as u64;
        let finished = expected - batch.open - batch.ended.cancelled;
        let needed = batch.min_wait_num.map_or(expected, |min| u64::from(min).min(expected));
        let enough = running && batch.min_wait_num.is_some() && finished >= needed;
        let quorum = policy.quorum_percent.map(|percent| share(expected, percent));
        let quorum = running && quorum.is_some_and(|quorum| finished >= quorum);
        let id = batch.id.clone();
        if running && batch.open == 0 {
            // What was cancelled was cancelled by a finalizer before, or by somebody else.
            if batch.accepted || batch.ended.cancelled == 0 || enough || quorum {
                return FinalizeCheck::Close(CancelReason::OverRollout);
            }
            let refusal = Refusal::TasksCancelled { batch: id, finished, needed, expected };
            return FinalizeCheck::Refuse(refusal);
        }
        let Some(waiter) = waiter_mut(batch, request) else { return FinalizeCheck::Wait };
        let deadline = waiter.patience.deadline(last_progress);
        let over = waiter.enough_for(enough, grace, now);
        if over.is_some_and(|over| now >= over) || (enough && now >= deadline) {
            return FinalizeCheck::Close(CancelReason::OverRollout);
        }
        if now < deadline {
            let at = over.map_or(deadline, |over| over.min(deadline));
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

    /// Lets a finalizer wait on if it has time and tasks under way could still go well.
    fn may_hope(&mut self, key: BatchKey, request: RequestId) -> bool {
        let (now, last_progress) = (self.now, self.progress.last);
        let Some(batch) = self.batches.get_mut(&key).filter(|batch| batch.open > 0) else {
            return false;
        };
        let Some(waiter) = waiter_mut(batch, request) else { return false };
        let deadline = waiter.patience.deadline(last_progress);
        if deadline <= now {
            return false;
        }
        waiter.wake_by(deadline, &mut self.timers);
        true
    }

    /// Looks at how many tasks would have a good run if the batch were closed now.
    fn too_few(&self, key: BatchKey, partial: PartialPolicy) -> Option<Refusal> {
        let batch = &self.batches[&key];
        let policy = match batch.kind {
            BatchType::Train => self.config.train,
            BatchType::Eval => self.config.eval,
        };
        let begun = |task: &&CoreTask| match &task.body {
            TaskPhase::Working(work) => {
                work.runs.iter().any(|run| run.state == RunPhase::Succeeded)
            }
            TaskPhase::Fresh | TaskPhase::Ended(_) | TaskPhase::Gone => false,
        };
        let mut succeeded = batch.ended.ok + batch.ended.partial;
        if partial == PartialPolicy::Keep && policy.success_min_percent > 0 {
            succeeded += batch.tasks.iter().filter(begun).count() as u64;
        }
        let needed = share(batch.tasks.len() as u64, policy.success_min_percent);
        let batch = batch.id.clone();
        (succeeded < needed).then_some(Refusal::TooFewSucceeded { batch, succeeded, needed })
    }

    /// Hands the results of a batch all of whose tasks have ended to the sink. Where there is
    /// nothing to hand over, the batch is finalized at once.
    fn deliver(&mut self, key: BatchKey, actions: &mut Vec<Action>) {
        if !self.holds_payloads(key) {
            return self.finish_finalize(key, Metrics::new(), actions);
        }
        let Some((lease, results)) = self.lease_results(key, LeaseRecipient::Sink) else { return };
        self.set_state(key, BatchState::Finalizing);
        // Whoever has waited for this gets the sink's answer, which has a deadline of its own.
        let waiters = self.batches.get_mut(&key).map(|batch| &mut batch.waiters);
        for waiter in waiters.into_iter().flatten() {
            waiter.patience = WaitTimeout::Until(Time::MAX);
            self.timers.set(DeadlineReason::Waiter(waiter.request), &mut waiter.timer, None);
        }
        self.record(key, actions, || LedgerRecord::DeliveryStarted { batch: key });
        actions.push(Action::Deliver { lease, batch: key, results });
        self.changed.insert(key);
    }

    /// Tells whether a result has a payload, be it an empty one.
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
        self.note(|| CoreEvent::Batch { batch: key, state });
    }

    /// The sink has the results, or there were none: the batch is finalized.
    pub(crate) fn finish_finalize(
        &mut self,
        key: BatchKey,
        metrics: Metrics,
        actions: &mut Vec<Action>,
    ) {
        self.count_step(key);
        let waiters = self.take_waiters(key);
        let result = self.close(key, BatchState::Finalized, metrics, actions);
        for (request, wants) in waiters {
            let answer = match wants {
                // It came too late: what it would have given up has been delivered.
                WaitGoal::Abort => Response::Aborted(None),
                WaitGoal::Finalize | WaitGoal::Collect { .. } => {
                    Response::Finalized(Arc::clone(&result))
                }
            };
            self.answer(request, answer, actions);
        }
    }

    /// The sink did not take the results: they stay, and finalizing can be repeated.
    pub(crate) fn sink_failed(
        &mut self,
        key: BatchKey,
        message: Arc<str>,
        actions: &mut Vec<Action>,
    ) {
        let message = self.clip(message);
        let batch = &self.batches[&key];
        let id = batch.id.clone();
        let aborted = batch.state() == Some(BatchState::Aborted);
        if !aborted {
            let none = batch.tasks.is_empty();
            self.set_state(key, if none { BatchState::Pending } else { BatchState::Running });
        }
        for (request, wants) in self.take_waiters(key) {
            if !aborted && matches!(wants, WaitGoal::Abort) {
                // It waited for the delivery to come to an end, one way or the other.
                self.wait(key, request, wants, WaitTimeout::Until(Time::MAX));
                continue;
            }
            let message = Arc::clone(&message);
            let refusal = Refusal::SinkFailed { batch: id.clone(), message };
            self.refuse(request, refusal, actions);
        }
        if !aborted && self.batches[&key].abort.is_some() {
            self.carry_out_abort(key, actions);
        }
    }

    /// Takes all waiters of a batch out, with their timers.
    pub(crate) fn take_waiters(&mut self, key: BatchKey) -> Vec<(RequestId, WaitGoal)> {
        let batch = self.batches.get_mut(&key);
        let waiters = batch.map(|batch| std::mem::take(&mut batch.waiters)).unwrap_or_default();
        let mut taken = Vec::with_capacity(waiters.len());
        for mut waiter in waiters {
            self.timers.set(DeadlineReason::Waiter(waiter.request), &mut waiter.timer, None);
            self.waiters.requests.remove(&waiter.request);
            taken.push((waiter.request, waiter.wants));
        }
        taken
    }

    /// Leaves nothing of a submitted batch but its result, which is remembered for a while.
    pub(crate) fn close(
        &mut self,
        key: BatchKey,
        state: BatchState,
        sink_metrics: Metrics,
        actions: &mut Vec<Action>,
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
        self.record(key, actions, || LedgerRecord::Closed(Arc::clone(&result)));
        self.terminal.push_back(key);
        self.forget_oldest();
        actions.push(Action::DropTasks { batch: key });
        result
    }

    /// Forgets the oldest results while there are more than are to be remembered.
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

    /// Counts a train batch that was seen whole, for the warm-up of the dynamic timeout.
    pub(crate) fn count_step(&mut self, key: BatchKey) {
        let batch = &self.batches[&key];
        let whole = batch.ended.total() > 0 && batch.ended.cancelled == 0;
        if whole && batch.kind == BatchType::Train {
            self.durations.steps = self.durations.steps.saturating_add(1);
        }
    }

    /// Returns how many runners are up.
    fn serving(&self) -> u32 {
        self.pool.idle.len() as u32 + self.pool.working
    }
}

/// Returns the smallest number that is at least this share of all.
fn share(all: u64, percent: u8) -> u64 {
    (all * u64::from(percent.min(100))).div_ceil(100)
}
