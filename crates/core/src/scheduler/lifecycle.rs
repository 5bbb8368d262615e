//! Starting and stopping as a whole.

use std::time::Duration;

use crate::Core;
use crate::batch_id::BatchId;
use crate::failure::CancelReason;
use crate::ids::{BatchKey, RequestId, RunnerId};
use crate::metrics::Metrics;
use crate::scheduler::action::{Action, Refusal, Response, StopReport};
use crate::scheduler::batch::{AbortSpec, BatchOwner};
use crate::scheduler::completion::PartialPolicy;
use crate::scheduler::core::WaiterLocation;
use crate::scheduler::input::UnresponsivePolicy;
use crate::scheduler::lease::LeaseRecipient;
use crate::scheduler::runner_slot::RunnerSlot;
use crate::scheduler::status::{BatchState, DropReason};
use crate::scheduler::view::DeadlineReason;
use crate::time::Time;

/// What the core as a whole is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CorePhase {
    /// Never started: takes tasks of the scheduler, dispatches nothing.
    New,
    Running,
    /// Takes nothing new and waits for what is under way.
    Stopping,
    /// Results of the scheduler can still be collected.
    Stopped,
}

/// A stop under way.
#[derive(Clone, Debug)]
pub(crate) struct StopProgress {
    pub(crate) waiters: Vec<RequestId>,
    pub(crate) timer: Option<Time>,
    report: StopReport,
}

impl Core {
    pub(crate) fn start(&mut self, request: RequestId, actions: &mut Vec<Action>) {
        match self.phase {
            CorePhase::Stopping => return self.refuse(request, Refusal::Stopped, actions),
            CorePhase::Running => {}
            CorePhase::New | CorePhase::Stopped => {
                self.phase = CorePhase::Running;
                self.fit_pool(actions);
            }
        }
        self.pool.settled = 0;
        self.waiters.start.push(request);
        self.waiters.requests.insert(request, WaiterLocation::Start);
    }

    /// Answers whoever waits for the start once every runner is ready, has failed to start, or
    /// waits for something outside. If none is ready and some wait, there is nothing to begin with.
    pub(crate) fn look_at_start(&mut self, actions: &mut Vec<Action>) {
        if self.waiters.start.is_empty() {
            return;
        }
        let waits = |slot: &RunnerSlot| slot.counted() && !slot.settled;
        // Looked at from where it stopped the last time: not all of them with every input.
        while let Some(slot) = self.pool.runners.get(self.pool.settled) {
            if waits(slot) {
                return;
            }
            self.pool.settled += 1;
        }
        let (ready, wanted) =
            ((self.pool.idle.len() as u32) + self.pool.working, self.pool.target_runners);
        let waits_outside = |slot: &RunnerSlot| slot.counted() && slot.waits;
        if ready == 0 && self.pool.runners.iter().any(waits_outside) {
            return;
        }
        for request in std::mem::take(&mut self.waiters.start) {
            self.answer(request, Response::Started { ready, wanted }, actions);
        }
    }

    pub(crate) fn stop(
        &mut self,
        request: RequestId,
        timeout: Duration,
        actions: &mut Vec<Action>,
    ) {
        match self.phase {
            CorePhase::Stopped => {
                let report = StopReport::default();
                return self.answer(request, Response::Stopped(report), actions);
            }
            CorePhase::New | CorePhase::Running => self.begin_stop(actions),
            CorePhase::Stopping => {}
        }
        self.waiters.requests.insert(request, WaiterLocation::Stop);
        let at = self.now.after(timeout);
        let Some(stopping) = &mut self.stopping else { return };
        stopping.waiters.push(request);
        let at = stopping.timer.map_or(at, |sooner| sooner.min(at));
        self.timers.set(DeadlineReason::Stop, &mut stopping.timer, Some(at));
    }

    fn begin_stop(&mut self, actions: &mut Vec<Action>) {
        self.phase = CorePhase::Stopping;
        self.timers.set(DeadlineReason::Scaling, &mut self.pool.scale_timer, None);
        let pending_runs = self.counters.runs.pending;
        let mut report = StopReport { pending_runs, ..StopReport::default() };
        for key in self.active_keys() {
            let batch = &self.batches[&key];
            if batch.open > 0 && report.batches.len() < StopReport::BATCHES_SHOWN {
                report.batches.push(batch.id.clone());
            }
            self.cancel_unsent(key, CancelReason::Stopped, actions);
            // A delivery under way may come to its end; nobody else has to wait.
            let batch = &self.batches[&key];
            if batch.owner != BatchOwner::Scheduler && !batch.leases.is_empty() {
                continue;
            }
            for (request, _) in self.take_waiters(key) {
                self.refuse(request, Refusal::Stopped, actions);
            }
        }
        for mut waiter in std::mem::take(&mut self.waiters.all) {
            self.timers.set(DeadlineReason::Waiter(waiter.request), &mut waiter.timer, None);
            self.refuse(waiter.request, Refusal::Stopped, actions);
        }
        for request in std::mem::take(&mut self.waiters.start) {
            self.refuse(request, Refusal::Stopped, actions);
        }
        self.stopping = Some(StopProgress { waiters: Vec::new(), timer: None, report });
    }

    /// Completes a stop once nothing is under way any more.
    pub(crate) fn look_at_stop(&mut self, actions: &mut Vec<Action>) {
        if self.phase != CorePhase::Stopping || self.pool.working > 0 {
            return;
        }
        if !self.leases.values().any(|lease| lease.to == LeaseRecipient::Sink) {
            self.complete_stop(actions);
        }
    }

    pub(crate) fn stop_due(&mut self, actions: &mut Vec<Action>) {
        if let Some(stopping) = &mut self.stopping {
            stopping.timer = None;
            self.complete_stop(actions);
        }
    }

    fn complete_stop(&mut self, actions: &mut Vec<Action>) {
        let Some(mut stopping) = self.stopping.take() else { return };
        self.timers.set(DeadlineReason::Stop, &mut stopping.timer, None);
        let mut report = stopping.report;
        report.running_runs = self.counters.runs.running;
        self.stop_runners(actions);
        for key in self.active_keys() {
            let partial = PartialPolicy::Keep;
            self.truncate(
                key,
                CancelReason::Stopped,
                partial,
                UnresponsivePolicy::Replace,
                actions,
            );
            match self.batches[&key].owner {
                BatchOwner::Scheduler => {}
                BatchOwner::Coordinator(_) => {
                    let id = self.batches[&key].id.clone();
                    let undelivered = self.give_up(key, actions);
                    report.undelivered += undelivered;
                    let room = report.batches.len() < StopReport::BATCHES_SHOWN;
                    if undelivered > 0 && room && !report.batches.contains(&id) {
                        report.batches.push(id);
                    }
                }
            }
        }
        report.batches.sort_by_key(BatchId::priority);
        self.phase = CorePhase::Stopped;
        for request in stopping.waiters {
            self.answer(request, Response::Stopped(report.clone()), actions);
        }
    }

    fn stop_runners(&mut self, actions: &mut Vec<Action>) {
        for at in 0..self.pool.runners.len() {
            let runner = RunnerId(at as u32);
            let work = self.pool.runners[at].work();
            self.retire(runner, actions);
            if let Some((attempt, _)) = work {
                // Its runs are cancelled with the rest of their batch.
                self.counters.attempts_ended += 1;
                if let Some(batch) = self.batches.get_mut(&attempt.batch) {
                    batch.attempts -= 1;
                }
            }
        }
    }

    /// Aborts a submitted batch because of the stop; returns how many payloads are lost by it.
    fn give_up(&mut self, key: BatchKey, actions: &mut Vec<Action>) -> u64 {
        for lease in self.batches[&key].leases.clone() {
            if let Some(lease) = self.close_lease(lease) {
                self.give_back(&lease);
            }
        }
        let before = self.counters.payloads_dropped.total();
        self.drop_results(key, DropReason::Stopped, actions);
        let undelivered = self.counters.payloads_dropped.total() - before;
        if let Some(batch) = self.batches.get_mut(&key) {
            batch.abort.get_or_insert_with(|| AbortSpec {
                reason: "stopped".into(),
                keep: false,
                unresponsive: UnresponsivePolicy::Replace,
            });
        }
        for (request, _) in self.take_waiters(key) {
            self.refuse(request, Refusal::Stopped, actions);
        }
        self.close(key, BatchState::Aborted, Metrics::new(), actions);
        undelivered
    }

    fn active_keys(&self) -> Vec<BatchKey> {
        self.queues.order.iter().map(|(_, key)| *key).collect()
    }
}
