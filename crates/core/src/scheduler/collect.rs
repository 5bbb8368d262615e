//! Waiting for batches: who waits for what, and when the wait is over.

use crate::Core;
use crate::batch_id::BatchId;
use crate::failure::CancelReason;
use crate::ids::{BatchKey, RequestId};
use crate::scheduler::action::{Action, CollectOutcome, CollectedResults, Refusal, Response};
use crate::scheduler::batch::{BatchOwner, BatchWaiter, CoreBatch, WaitGoal, WaitTimeout};
use crate::scheduler::completion::PartialPolicy;
use crate::scheduler::core::WaiterLocation;
use crate::scheduler::input::{Request, UnresponsivePolicy};
use crate::scheduler::lease::LeaseRecipient;
use crate::scheduler::lifecycle::CorePhase;
use crate::scheduler::status::DropReason;
use crate::scheduler::task::TaskPhase;
use crate::scheduler::timers::Timers;
use crate::scheduler::view::DeadlineReason;
use crate::time::Time;

impl Core {
    pub(crate) fn collect(&mut self, request: RequestId, what: Request, actions: &mut Vec<Action>) {
        let Request::Collect {
            batch: id,
            min_num,
            timeout,
            clear_timeout_tasks: clear,
            return_partial_tasks: partial,
        } = what
        else {
            return;
        };
        let Some(key) = self.collectable(request, &id, CollectOutcome::Complete, actions) else {
            return;
        };
        if self.phase == CorePhase::Stopping && self.batches[&key].open > 0 {
            return self.refuse(request, Refusal::Stopped, actions);
        }
        let wants = WaitGoal::Collect { min_num, clear, partial };
        let patience = WaitTimeout::new(self.now, timeout, self.config.default_timeout);
        self.wait(key, request, wants, patience);
    }

    pub(crate) fn drain(&mut self, request: RequestId, id: &BatchId, actions: &mut Vec<Action>) {
        if let Some(key) = self.collectable(request, id, CollectOutcome::Polled, actions) {
            self.hand_over(key, request, CollectOutcome::Polled, actions);
        }
    }

    pub(crate) fn discard(&mut self, request: RequestId, id: &BatchId, actions: &mut Vec<Action>) {
        if let Some(key) = self.active(id) {
            if self.batches[&key].owner != BatchOwner::Scheduler {
                let refusal = Refusal::NotCollectable { batch: id.clone() };
                return self.refuse(request, refusal, actions);
            }
            self.drop_results(key, DropReason::Discarded, actions);
            self.forget_if_empty(key, actions);
            self.changed.insert(key);
        }
        self.answer(request, Response::Discarded, actions);
    }

    /// Returns the batch if results can be collected from it; otherwise answers the request.
    fn collectable(
        &mut self,
        request: RequestId,
        id: &BatchId,
        outcome: CollectOutcome,
        actions: &mut Vec<Action>,
    ) -> Option<BatchKey> {
        let key = self.active(id);
        match key.map(|key| self.batches[&key].owner) {
            Some(BatchOwner::Scheduler) => return key,
            Some(BatchOwner::Coordinator(_)) => {
                self.refuse(request, Refusal::NotCollectable { batch: id.clone() }, actions);
            }
            None => {
                let none =
                    CollectedResults { outcome, lease: None, expected: 0, results: Vec::new() };
                self.answer(request, Response::Collected(none), actions);
            }
        }
        None
    }

    pub(crate) fn wait(
        &mut self,
        key: BatchKey,
        request: RequestId,
        wants: WaitGoal,
        patience: WaitTimeout,
    ) {
        let Some(batch) = self.batches.get_mut(&key) else { return };
        batch.waiters.push(BatchWaiter {
            request,
            wants,
            patience,
            enough_since: None,
            timer: None,
        });
        self.waiters.requests.insert(request, WaiterLocation::Batch(key));
        self.changed.insert(key);
    }

    /// Takes a waiter out, with its timer.
    pub(crate) fn forget_waiter(&mut self, key: BatchKey, request: RequestId) {
        let Some(batch) = self.batches.get_mut(&key) else { return };
        let Some(at) = batch.waiters.iter().position(|waiter| waiter.request == request) else {
            return;
        };
        let mut waiter = batch.waiters.remove(at);
        self.timers.set(DeadlineReason::Waiter(request), &mut waiter.timer, None);
    }

    /// A waiter's time may be up.
    pub(crate) fn waiter_due(&mut self, request: RequestId) {
        match self.waiters.requests.get(&request) {
            Some(WaiterLocation::Batch(key)) => {
                let key = *key;
                let waiters = self.batches.get_mut(&key).map(|batch| &mut batch.waiters);
                for waiter in waiters.into_iter().flatten() {
                    if waiter.request == request {
                        waiter.timer = None;
                    }
                }
                self.changed.insert(key);
            }
            Some(WaiterLocation::All) => self.all_waiter_due(request),
            Some(WaiterLocation::Start | WaiterLocation::Stop) | None => {}
        }
    }

    /// Looks at everybody who waits for a batch, in the order in which they came.
    pub(crate) fn look(&mut self, key: BatchKey, actions: &mut Vec<Action>) {
        let Some(batch) = self.batches.get(&key) else { return };
        if batch.failed.is_some() && batch.open > 0 {
            let why = CancelReason::BatchFailed;
            self.truncate(key, why, PartialPolicy::Keep, UnresponsivePolicy::Replace, actions);
        }
        let mut at = 0;
        while let Some(batch) = self.batches.get(&key)
            && let Some(waiter) = batch.waiters.get(at)
        {
            let request = waiter.request;
            match waiter.wants {
                WaitGoal::Collect { .. } => self.look_at_collector(key, request, actions),
                WaitGoal::Finalize => self.look_at_finalizer(key, request, actions),
                WaitGoal::Abort => {}
            }
            // Whoever was answered has left, and the next one has moved up.
            let waiters = self.batches.get(&key).map(|batch| &batch.waiters);
            if waiters.and_then(|waiters| waiters.get(at)).is_some_and(|it| it.request == request) {
                at += 1;
            }
        }
        self.forget_if_empty(key, actions);
    }

    fn look_at_collector(&mut self, key: BatchKey, request: RequestId, actions: &mut Vec<Action>) {
        let grace = self.config.over_rollout.wait_after_min;
        let (now, last_progress) = (self.now, self.progress.last);
        let Some(batch) = self.batches.get_mut(&key) else { return };
        let (open, have) = (batch.open, batch.results.len() as u64);
        let failed = batch.failed.as_ref().map(|(kind, _)| *kind);
        let Some(waiter) = waiter_mut(batch, request) else { return };
        let WaitGoal::Collect { min_num, clear, partial } = waiter.wants else { return };
        let enough = min_num.is_some_and(|min| have >= u64::from(min).min(open + have));
        let deadline = waiter.patience.deadline(last_progress);
        let over = waiter.enough_for(enough, grace, now);
        let outcome = if let Some(kind) = failed {
            CollectOutcome::BatchFailed(kind)
        } else if open == 0 {
            CollectOutcome::Complete
        } else if over.is_some_and(|over| now >= over) {
            CollectOutcome::Minimum
        } else if now >= deadline {
            CollectOutcome::TimedOut
        } else {
            let at = over.map_or(deadline, |over| over.min(deadline));
            return waiter.wake_by(at, &mut self.timers);
        };
        let cut = match outcome {
            CollectOutcome::Minimum if clear => Some(CancelReason::OverRollout),
            CollectOutcome::TimedOut if clear => Some(CancelReason::TimedOut),
            CollectOutcome::Complete
            | CollectOutcome::Minimum
            | CollectOutcome::TimedOut
            | CollectOutcome::Aborted
            | CollectOutcome::BatchFailed(_)
            | CollectOutcome::Polled => None,
        };
        if let Some(why) = cut {
            let partial = if partial { PartialPolicy::Keep } else { PartialPolicy::Drop };
            self.truncate(key, why, partial, UnresponsivePolicy::Replace, actions);
        }
        self.forget_waiter(key, request);
        self.hand_over(key, request, outcome, actions);
    }

    /// Hands what there is to whoever asked.
    pub(crate) fn hand_over(
        &mut self,
        key: BatchKey,
        request: RequestId,
        outcome: CollectOutcome,
        actions: &mut Vec<Action>,
    ) {
        let expected = self.batches[&key].expected();
        let leased = self.lease_results(key, LeaseRecipient::Collector);
        let (lease, results) =
            leased.map_or((None, Vec::new()), |(lease, results)| (Some(lease), results));
        let collected = CollectedResults { outcome, lease, expected, results };
        self.answer(request, Response::Collected(collected), actions);
        self.changed.insert(key);
    }

    /// Drops the results that nobody has been handed.
    pub(crate) fn drop_results(
        &mut self,
        key: BatchKey,
        reason: DropReason,
        actions: &mut Vec<Action>,
    ) {
        let Some(batch) = self.batches.get_mut(&key) else { return };
        if batch.owner == BatchOwner::Scheduler {
            batch.handed += batch.results.len() as u64;
        }
        for id in std::mem::take(&mut batch.results) {
            let Some(batch) = self.batches.get_mut(&key) else { return };
            let body = &mut batch.tasks[id.0 as usize].body;
            let TaskPhase::Ended(ended) = body else { continue };
            let payloads = std::mem::take(&mut ended.payloads);
            if batch.owner == BatchOwner::Scheduler {
                *body = TaskPhase::Gone;
            }
            for payload in payloads {
                self.drop_payload(key, payload, reason, actions);
            }
        }
    }

    /// Forgets a batch of the scheduler that has nothing left.
    pub(crate) fn forget_if_empty(&mut self, key: BatchKey, actions: &mut Vec<Action>) {
        let Some(batch) = self.batches.get(&key) else { return };
        let empty = batch.owner == BatchOwner::Scheduler
            && batch.open == 0
            && batch.results.is_empty()
            && batch.leases.is_empty()
            && batch.waiters.is_empty();
        if !empty {
            return;
        }
        self.count_step(key);
        self.queues.order.remove(&self.batches[&key].rank());
        if let Some(batch) = self.batches.remove(&key)
            && self.ids.get(&batch.id) == Some(&key)
        {
            self.ids.remove(&batch.id);
        }
        actions.push(Action::DropTasks { batch: key });
    }
}

impl BatchWaiter {
    /// Sees to it that the waiter is looked at again at that time, or before. A deadline that moves
    /// with every progress is not followed step by step: it is looked at when it was first due.
    pub(crate) fn wake_by(&mut self, at: Time, timers: &mut Timers) {
        if at < Time::MAX && self.timer.is_none_or(|set| at < set) {
            timers.set(DeadlineReason::Waiter(self.request), &mut self.timer, Some(at));
        }
    }

    /// Returns when the grace time after the minimum is over, if the minimum is there.
    pub(crate) fn enough_for(
        &mut self,
        enough: bool,
        grace: std::time::Duration,
        now: Time,
    ) -> Option<Time> {
        if !enough {
            // Somebody else may have taken what was there.
            self.enough_since = None;
            return None;
        }
        Some(self.enough_since.get_or_insert(now).after(grace))
    }
}

pub(crate) fn waiter_mut(batch: &mut CoreBatch, request: RequestId) -> Option<&mut BatchWaiter> {
    batch.waiters.iter_mut().find(|waiter| waiter.request == request)
}
