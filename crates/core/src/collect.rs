//! Waiting for batches: who waits for what, and when the wait is over.

use crate::Core;
use crate::action::{Action, Answer, Collected, Outcome, Refusal};
use crate::batch::{Batch, Owner, Patience, Waiter, Wants};
use crate::batch_id::BatchId;
use crate::core::Waiting;
use crate::ending::Partial;
use crate::failure::CancelReason;
use crate::ids::{BatchKey, RequestId};
use crate::input::{Request, Unresponsive};
use crate::lease::Recipient;
use crate::status::DropReason;
use crate::stop::Phase;
use crate::task::Body;
use crate::time::Time;
use crate::timers::Timers;
use crate::view::Wake;

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
        let Some(key) = self.collectable(request, &id, Outcome::Complete, actions) else { return };
        if self.phase == Phase::Stopping && self.batches[&key].open > 0 {
            return self.refuse(request, Refusal::Stopped, actions);
        }
        let wants = Wants::Collect { min_num, clear, partial };
        let patience = Patience::new(self.now, timeout, self.config.default_timeout);
        self.wait(key, request, wants, patience);
    }

    pub(crate) fn drain(&mut self, request: RequestId, id: &BatchId, actions: &mut Vec<Action>) {
        if let Some(key) = self.collectable(request, id, Outcome::Polled, actions) {
            self.hand_over(key, request, Outcome::Polled, actions);
        }
    }

    pub(crate) fn discard(&mut self, request: RequestId, id: &BatchId, actions: &mut Vec<Action>) {
        if let Some(key) = self.active(id) {
            if self.batches[&key].owner != Owner::Scheduler {
                let refusal = Refusal::NotCollectable { batch: id.clone() };
                return self.refuse(request, refusal, actions);
            }
            self.drop_results(key, DropReason::Discarded, actions);
            self.forget_if_empty(key, actions);
            self.changed.insert(key);
        }
        self.answer(request, Answer::Discarded, actions);
    }

    /// Returns the batch if results can be collected from it; otherwise answers the request.
    fn collectable(
        &mut self,
        request: RequestId,
        id: &BatchId,
        outcome: Outcome,
        actions: &mut Vec<Action>,
    ) -> Option<BatchKey> {
        let key = self.active(id);
        match key.map(|key| self.batches[&key].owner) {
            Some(Owner::Scheduler) => return key,
            Some(Owner::Coordinator(_)) => {
                self.refuse(request, Refusal::NotCollectable { batch: id.clone() }, actions);
            }
            None => {
                let none = Collected { outcome, lease: None, expected: 0, results: Vec::new() };
                self.answer(request, Answer::Collected(none), actions);
            }
        }
        None
    }

    pub(crate) fn wait(
        &mut self,
        key: BatchKey,
        request: RequestId,
        wants: Wants,
        patience: Patience,
    ) {
        let Some(batch) = self.batches.get_mut(&key) else { return };
        batch.waiters.push(Waiter { request, wants, patience, enough_since: None, timer: None });
        self.waiters.requests.insert(request, Waiting::Batch(key));
        self.changed.insert(key);
    }

    /// Takes a waiter out, with its timer.
    pub(crate) fn forget_waiter(&mut self, key: BatchKey, request: RequestId) {
        let Some(batch) = self.batches.get_mut(&key) else { return };
        let Some(at) = batch.waiters.iter().position(|waiter| waiter.request == request) else {
            return;
        };
        let mut waiter = batch.waiters.remove(at);
        self.timers.set(Wake::Waiter(request), &mut waiter.timer, None);
    }

    /// A waiter's time may be up.
    pub(crate) fn waiter_due(&mut self, request: RequestId) {
        match self.waiters.requests.get(&request) {
            Some(Waiting::Batch(key)) => {
                let key = *key;
                let waiters = self.batches.get_mut(&key).map(|batch| &mut batch.waiters);
                for waiter in waiters.into_iter().flatten() {
                    if waiter.request == request {
                        waiter.timer = None;
                    }
                }
                self.changed.insert(key);
            }
            Some(Waiting::All) => self.all_waiter_due(request),
            Some(Waiting::Start | Waiting::Stop) | None => {}
        }
    }

    /// Looks at everybody who waits for a batch, in the order in which they came.
    pub(crate) fn look(&mut self, key: BatchKey, actions: &mut Vec<Action>) {
        let Some(batch) = self.batches.get(&key) else { return };
        if batch.failed.is_some() && batch.open > 0 {
            let why = CancelReason::BatchFailed;
            self.cut(key, why, Partial::Keep, Unresponsive::Replace, actions);
        }
        let mut at = 0;
        while let Some(batch) = self.batches.get(&key)
            && let Some(waiter) = batch.waiters.get(at)
        {
            let request = waiter.request;
            match waiter.wants {
                Wants::Collect { .. } => self.look_at_collector(key, request, actions),
                Wants::Finalize => self.look_at_finalizer(key, request, actions),
                Wants::Abort => {}
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
        let Wants::Collect { min_num, clear, partial } = waiter.wants else { return };
        let enough = min_num.is_some_and(|min| have >= u64::from(min).min(open + have));
        let deadline = waiter.patience.deadline(last_progress);
        let over = waiter.enough_for(enough, grace, now);
        let outcome = if let Some(kind) = failed {
            Outcome::BatchFailed(kind)
        } else if open == 0 {
            Outcome::Complete
        } else if over.is_some_and(|over| now >= over) {
            Outcome::Minimum
        } else if now >= deadline {
            Outcome::TimedOut
        } else {
            let at = over.map_or(deadline, |over| over.min(deadline));
            return waiter.wake_by(at, &mut self.timers);
        };
        let cut = match outcome {
            Outcome::Minimum if clear => Some(CancelReason::OverRollout),
            Outcome::TimedOut if clear => Some(CancelReason::TimedOut),
            Outcome::Complete
            | Outcome::Minimum
            | Outcome::TimedOut
            | Outcome::Aborted
            | Outcome::BatchFailed(_)
            | Outcome::Polled => None,
        };
        if let Some(why) = cut {
            let partial = if partial { Partial::Keep } else { Partial::Drop };
            self.cut(key, why, partial, Unresponsive::Replace, actions);
        }
        self.forget_waiter(key, request);
        self.hand_over(key, request, outcome, actions);
    }

    /// Hands what there is to whoever asked.
    pub(crate) fn hand_over(
        &mut self,
        key: BatchKey,
        request: RequestId,
        outcome: Outcome,
        actions: &mut Vec<Action>,
    ) {
        let expected = self.batches[&key].expected();
        let leased = self.lease_results(key, Recipient::Collector);
        let (lease, results) =
            leased.map_or((None, Vec::new()), |(lease, results)| (Some(lease), results));
        let collected = Collected { outcome, lease, expected, results };
        self.answer(request, Answer::Collected(collected), actions);
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
        if batch.owner == Owner::Scheduler {
            batch.handed += batch.results.len() as u64;
        }
        for id in std::mem::take(&mut batch.results) {
            let Some(batch) = self.batches.get_mut(&key) else { return };
            let body = &mut batch.tasks[id.0 as usize].body;
            let Body::Ended(ended) = body else { continue };
            let payloads = std::mem::take(&mut ended.payloads);
            if batch.owner == Owner::Scheduler {
                *body = Body::Gone;
            }
            for payload in payloads {
                self.drop_payload(key, payload, reason, actions);
            }
        }
    }

    /// Forgets a batch of the scheduler that has nothing left.
    pub(crate) fn forget_if_empty(&mut self, key: BatchKey, actions: &mut Vec<Action>) {
        let Some(batch) = self.batches.get(&key) else { return };
        let empty = batch.owner == Owner::Scheduler
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
        actions.push(Action::ForgetTasks { batch: key });
    }
}

impl Waiter {
    /// Sees to it that the waiter is looked at again at that time, or before. A deadline that moves
    /// with every progress is not followed step by step: it is looked at when it was first due.
    pub(crate) fn wake_by(&mut self, at: Time, timers: &mut Timers) {
        if at < Time::MAX && self.timer.is_none_or(|set| at < set) {
            timers.set(Wake::Waiter(self.request), &mut self.timer, Some(at));
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

pub(crate) fn waiter_mut(batch: &mut Batch, request: RequestId) -> Option<&mut Waiter> {
    batch.waiters.iter_mut().find(|waiter| waiter.request == request)
}
