//! Waits for batches: collecting results and dropping them.

use super::{
    BatchOwner, BatchWaiter, CoreBatch, CorePhase, LeaseRecipient, TaskPhase, Timers, WaitGoal,
    WaitTimeout, WaiterLocation,
};
use crate::{
    Action, BatchId, BatchKey, CancelReason, CollectOutcome, CollectedResults, Core,
    DeadlineReason, DropReason, Refusal, Request, RequestId, Response, Time, UnresponsivePolicy,
};

impl Core {
    pub(crate) fn collect(&mut self, request: RequestId, what: Request) {
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
        let Some(key) = self.collectable(request, &id, CollectOutcome::Complete) else {
            return;
        };
        if self.phase == CorePhase::Stopping && self.batches[&key].open > 0 {
            return self.refuse(request, Refusal::Stopped);
        }
        let goal = WaitGoal::Collect { min_num, clear, partial };
        let timeout = WaitTimeout::new(self.now, timeout, self.config.default_timeout);
        self.wait(key, request, goal, timeout);
    }

    pub(crate) fn drain(&mut self, request: RequestId, id: &BatchId) {
        if let Some(key) = self.collectable(request, id, CollectOutcome::Polled) {
            self.hand_over(key, request, CollectOutcome::Polled);
        }
    }

    pub(crate) fn discard(&mut self, request: RequestId, id: &BatchId) {
        if let Some(key) = self.active(id) {
            if self.batches[&key].owner != BatchOwner::Scheduler {
                let refusal = Refusal::NotCollectable { batch: id.clone() };
                return self.refuse(request, refusal);
            }
            self.drop_results(key, DropReason::Discarded);
            self.remove_if_empty(key);
            self.changed.insert(key);
        }
        self.answer(request, Response::Discarded);
    }

    /// Returns the key of a batch whose results can be collected; otherwise answers the request.
    fn collectable(
        &mut self,
        request: RequestId,
        id: &BatchId,
        outcome: CollectOutcome,
    ) -> Option<BatchKey> {
        let key = self.active(id);
        match key.map(|key| self.batches[&key].owner) {
            Some(BatchOwner::Scheduler) => return key,
            Some(BatchOwner::Coordinator(_)) => {
                self.refuse(request, Refusal::NotCollectable { batch: id.clone() });
            }
            None => {
                let none =
                    CollectedResults { outcome, lease: None, expected: 0, results: Vec::new() };
                self.answer(request, Response::Collected(none));
            }
        }
        None
    }

    pub(crate) fn wait(
        &mut self,
        key: BatchKey,
        request: RequestId,
        goal: WaitGoal,
        timeout: WaitTimeout,
    ) {
        let Some(batch) = self.batches.get_mut(&key) else { return };
        batch.waiters.push(BatchWaiter { request, goal, timeout, enough_since: None, timer: None });
        self.waiters.requests.insert(request, WaiterLocation::Batch(key));
        self.changed.insert(key);
    }

    /// Removes a waiter and its timer.
    pub(crate) fn remove_waiter(&mut self, key: BatchKey, request: RequestId) {
        let Some(batch) = self.batches.get_mut(&key) else { return };
        let Some(at) = batch.waiters.iter().position(|waiter| waiter.request == request) else {
            return;
        };
        let mut waiter = batch.waiters.remove(at);
        self.timers.set(DeadlineReason::Waiter(request), &mut waiter.timer, None);
    }

    /// Handles the timer of a waiter.
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

    /// Checks all waiters of a batch, in order of arrival.
    pub(crate) fn check_batch_waiters(&mut self, key: BatchKey) {
        let Some(batch) = self.batches.get(&key) else { return };
        if batch.failed.is_some() && batch.open > 0 {
            let reason = CancelReason::BatchFailed;
            self.truncate(key, reason, true, UnresponsivePolicy::Replace);
        }
        let mut at = 0;
        while let Some(batch) = self.batches.get(&key)
            && let Some(waiter) = batch.waiters.get(at)
        {
            let request = waiter.request;
            match waiter.goal {
                WaitGoal::Collect { .. } => self.check_collector(key, request),
                WaitGoal::Finalize => self.check_finalizer(key, request),
                WaitGoal::Abort => {}
            }
            // An answered waiter has left, and the next one has its position.
            let waiters = self.batches.get(&key).map(|batch| &batch.waiters);
            if waiters.and_then(|waiters| waiters.get(at)).is_some_and(|it| it.request == request) {
                at += 1;
            }
        }
        self.remove_if_empty(key);
    }

    fn check_collector(&mut self, key: BatchKey, request: RequestId) {
        let grace = self.config.over_rollout.wait_after_min;
        let (now, last_progress) = (self.now, self.progress.last);
        let Some(batch) = self.batches.get_mut(&key) else { return };
        let (open, have) = (batch.open, batch.results.len() as u64);
        let failed = batch.failed.as_ref().map(|(kind, _)| *kind);
        let Some(waiter) = waiter_mut(batch, request) else { return };
        let WaitGoal::Collect { min_num, clear, partial } = waiter.goal else { return };
        let enough = min_num.is_some_and(|min| have >= u64::from(min).min(open + have));
        let deadline = waiter.timeout.deadline(last_progress);
        let grace_end = waiter.enough_for(enough, grace, now);
        let outcome = if let Some(kind) = failed {
            CollectOutcome::BatchFailed(kind)
        } else if open == 0 {
            CollectOutcome::Complete
        } else if grace_end.is_some_and(|grace_end| now >= grace_end) {
            CollectOutcome::Minimum
        } else if now >= deadline {
            CollectOutcome::TimedOut
        } else {
            let at = grace_end.map_or(deadline, |grace_end| grace_end.min(deadline));
            return waiter.wake_by(at, &mut self.timers);
        };
        let truncation = match outcome {
            CollectOutcome::Minimum if clear => Some(CancelReason::OverRollout),
            CollectOutcome::TimedOut if clear => Some(CancelReason::TimedOut),
            CollectOutcome::Complete
            | CollectOutcome::Minimum
            | CollectOutcome::TimedOut
            | CollectOutcome::Aborted
            | CollectOutcome::BatchFailed(_)
            | CollectOutcome::Polled => None,
        };
        if let Some(reason) = truncation {
            self.truncate(key, reason, partial, UnresponsivePolicy::Replace);
        }
        self.remove_waiter(key, request);
        self.hand_over(key, request, outcome);
    }

    /// Answers a request with the available results.
    pub(crate) fn hand_over(&mut self, key: BatchKey, request: RequestId, outcome: CollectOutcome) {
        let expected = self.batches[&key].expected();
        let leased = self.lease_results(key, LeaseRecipient::Collector);
        let (lease, results) =
            leased.map_or((None, Vec::new()), |(lease, results)| (Some(lease), results));
        let collected = CollectedResults { outcome, lease, expected, results };
        self.answer(request, Response::Collected(collected));
        self.changed.insert(key);
    }

    /// Drops the results that are not leased.
    pub(crate) fn drop_results(&mut self, key: BatchKey, reason: DropReason) {
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
                self.drop_payload(key, payload, reason);
            }
        }
    }

    /// Removes a scheduled batch without tasks, results, leases and waiters.
    pub(crate) fn remove_if_empty(&mut self, key: BatchKey) {
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
        self.actions.push(Action::DropTasks { batch: key });
    }
}

impl BatchWaiter {
    /// Sets the timer to `at` unless it is earlier. A deadline that moves with every progress is
    /// not followed step by step: it is checked when it was first due.
    pub(crate) fn wake_by(&mut self, at: Time, timers: &mut Timers) {
        if at < Time::MAX && self.timer.is_none_or(|set| at < set) {
            timers.set(DeadlineReason::Waiter(self.request), &mut self.timer, Some(at));
        }
    }

    /// Returns the end of the grace period after the minimum, if the minimum is reached.
    pub(crate) fn enough_for(
        &mut self,
        enough: bool,
        grace: std::time::Duration,
        now: Time,
    ) -> Option<Time> {
        if !enough {
            // Another collector may have taken the results.
            self.enough_since = None;
            return None;
        }
        Some(self.enough_since.get_or_insert(now).after(grace))
    }
}

pub(crate) fn waiter_mut(batch: &mut CoreBatch, request: RequestId) -> Option<&mut BatchWaiter> {
    batch.waiters.iter_mut().find(|waiter| waiter.request == request)
}
