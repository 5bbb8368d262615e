//! Start and stop of the core.

use std::time::Duration;

use super::{AbortSpec, BatchOwner, LeaseRecipient, RunnerSlot, WaiterLocation};
use crate::metrics::Metrics;
use crate::{
    BatchId, BatchKey, BatchState, CancelReason, Core, DeadlineReason, DropReason, Refusal,
    RequestId, Response, RunnerId, StopReport, Time, UnresponsivePolicy,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CorePhase {
    /// Never started: accepts tasks of the scheduler, dispatches nothing.
    New,
    Running,
    /// Accepts nothing new and waits for open attempts and deliveries.
    Stopping,
    /// Results of the scheduler can still be collected.
    Stopped,
}

#[derive(Clone, Debug)]
pub(crate) struct StopProgress {
    pub(crate) waiters: Vec<RequestId>,
    pub(crate) timer: Option<Time>,
    report: StopReport,
}

impl Core {
    pub(crate) fn start(&mut self, request: RequestId) {
        match self.phase {
            CorePhase::Stopping => return self.refuse(request, Refusal::Stopped),
            CorePhase::Running => {}
            CorePhase::New | CorePhase::Stopped => {
                self.phase = CorePhase::Running;
                self.resize_pool();
            }
        }
        self.pool.settled = 0;
        self.waiters.start.push(request);
        self.waiters.requests.insert(request, WaiterLocation::Start);
    }

    /// Answers start requests once every runner is ready, has failed to start, or waits for an
    /// external condition. If none is ready and some wait, the response is delayed.
    pub(crate) fn check_start_waiters(&mut self) {
        if self.waiters.start.is_empty() {
            return;
        }
        let waits = |slot: &RunnerSlot| slot.counted() && !slot.settled;
        // Continues at the first unsettled slot: the cost is not linear in runners for every input.
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
            self.answer(request, Response::Started { ready, wanted });
        }
    }

    pub(crate) fn stop(&mut self, request: RequestId, timeout: Duration) {
        match self.phase {
            CorePhase::Stopped => {
                let report = StopReport::default();
                return self.answer(request, Response::Stopped(report));
            }
            CorePhase::New | CorePhase::Running => self.begin_stop(),
            CorePhase::Stopping => {}
        }
        self.waiters.requests.insert(request, WaiterLocation::Stop);
        let at = self.now.after(timeout);
        let Some(stopping) = &mut self.stopping else { return };
        stopping.waiters.push(request);
        let at = stopping.timer.map_or(at, |sooner| sooner.min(at));
        self.timers.set(DeadlineReason::Stop, &mut stopping.timer, Some(at));
    }

    fn begin_stop(&mut self) {
        self.phase = CorePhase::Stopping;
        self.timers.set(DeadlineReason::Scaling, &mut self.pool.scale_timer, None);
        let pending_runs = self.counters.runs.pending;
        let mut report = StopReport { pending_runs, ..StopReport::default() };
        for key in self.active_keys() {
            let batch = &self.batches[&key];
            if batch.open > 0 && report.batches.len() < StopReport::BATCHES_SHOWN {
                report.batches.push(batch.id.clone());
            }
            self.cancel_unsent(key, CancelReason::Stopped);
            // An open delivery may end; all other waiters are refused.
            let batch = &self.batches[&key];
            if batch.owner != BatchOwner::Scheduler && !batch.leases.is_empty() {
                continue;
            }
            for (request, _) in self.take_waiters(key) {
                self.refuse(request, Refusal::Stopped);
            }
        }
        for mut waiter in std::mem::take(&mut self.waiters.all) {
            self.timers.set(DeadlineReason::Waiter(waiter.request), &mut waiter.timer, None);
            self.refuse(waiter.request, Refusal::Stopped);
        }
        for request in std::mem::take(&mut self.waiters.start) {
            self.refuse(request, Refusal::Stopped);
        }
        self.stopping = Some(StopProgress { waiters: Vec::new(), timer: None, report });
    }

    /// Completes a stop once no attempt and no delivery is open.
    pub(crate) fn check_stop_waiters(&mut self) {
        if self.phase != CorePhase::Stopping || self.pool.working > 0 {
            return;
        }
        if !self.leases.values().any(|lease| lease.to == LeaseRecipient::Sink) {
            self.complete_stop();
        }
    }

    pub(crate) fn stop_due(&mut self) {
        if let Some(stopping) = &mut self.stopping {
            stopping.timer = None;
            self.complete_stop();
        }
    }

    fn complete_stop(&mut self) {
        let Some(mut stopping) = self.stopping.take() else { return };
        self.timers.set(DeadlineReason::Stop, &mut stopping.timer, None);
        let mut report = stopping.report;
        report.running_runs = self.counters.runs.running;
        self.stop_runners();
        for key in self.active_keys() {
            self.truncate(key, CancelReason::Stopped, true, UnresponsivePolicy::Replace);
            match self.batches[&key].owner {
                BatchOwner::Scheduler => {}
                BatchOwner::Coordinator(_) => {
                    let id = self.batches[&key].id.clone();
                    let undelivered = self.give_up(key);
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
            self.answer(request, Response::Stopped(report.clone()));
        }
    }

    fn stop_runners(&mut self) {
        for at in 0..self.pool.runners.len() {
            let runner = RunnerId(at as u32);
            let work = self.pool.runners[at].work();
            self.retire(runner);
            if let Some((attempt, _)) = work {
                // Its runs are cancelled with the rest of their batch.
                self.counters.attempts_ended += 1;
                if let Some(batch) = self.batches.get_mut(&attempt.batch) {
                    batch.attempts -= 1;
                }
            }
        }
    }

    /// Aborts a submitted batch because of the stop; returns the number of lost payloads.
    fn give_up(&mut self, key: BatchKey) -> u64 {
        for lease in self.batches[&key].leases.clone() {
            if let Some(lease) = self.close_lease(lease) {
                self.give_back(&lease);
            }
        }
        let before = self.counters.payloads_dropped.total();
        self.drop_results(key, DropReason::Stopped);
        let undelivered = self.counters.payloads_dropped.total() - before;
        if let Some(batch) = self.batches.get_mut(&key) {
            batch.abort.get_or_insert_with(|| AbortSpec {
                reason: "stopped".into(),
                keep: false,
                unresponsive: UnresponsivePolicy::Replace,
            });
        }
        for (request, _) in self.take_waiters(key) {
            self.refuse(request, Refusal::Stopped);
        }
        self.close(key, BatchState::Aborted, Metrics::new());
        undelivered
    }

    fn active_keys(&self) -> Vec<BatchKey> {
        self.queues.order.iter().map(|(_, key)| *key).collect()
    }
}
