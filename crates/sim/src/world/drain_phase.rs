//! The second phase of a world: no faults, and all open work is finished.

use std::time::Duration;

use rollway_core::{
    BatchKey, BatchPriority, BatchState, DeliveryOutcome, Request, RunnerReport, RunnerState,
    Suspicion, UnresponsivePolicy,
};

use super::{SimWorld, WorldEvent};
use crate::process::{ProcessState, RunnerKey};
use crate::reference_model::{Phase, Pool};

const POLL_INTERVAL: Duration = Duration::from_millis(300);

impl SimWorld {
    /// Disables faults. Earlier faults keep their effects until the core has handled them, but
    /// connections return, and unreported deaths are reported.
    pub(crate) fn end_faults(&mut self) {
        if self.faults_ended {
            return;
        }
        self.faults_ended = true;
        self.faults.end_faults();
        let states: Vec<(RunnerKey, ProcessState)> =
            self.processes.iter().map(|(at, process)| (at, process.state)).collect();
        for (at, state) in states {
            match state {
                ProcessState::Alive => self.reconnect(at),
                ProcessState::DiedUnseen => {
                    let message = "found dead".into();
                    self.notify(at, RunnerReport::Lost { message, suspicion: Suspicion::None });
                }
                ProcessState::Starting | ProcessState::Dead => {}
            }
        }
        self.hang_up();
        self.plan(POLL_INTERVAL, WorldEvent::Close);
        let bound = self.bound();
        self.plan(bound, WorldEvent::TooLate);
    }

    /// Fails the open leases of collectors.
    fn hang_up(&mut self) {
        let handed: Vec<_> = (self.model.leases.iter())
            .filter(|(_, lease)| lease.open && !lease.to_sink)
            .map(|(id, _)| *id)
            .collect();
        for lease in handed {
            let delivery = DeliveryOutcome::Failed { message: "hung up".into() };
            self.plan(POLL_INTERVAL, WorldEvent::Delivered(lease, delivery));
        }
    }

    /// Returns an upper bound of the time to finish everything: every timeout many times over.
    fn bound(&self) -> Duration {
        let config = &self.model.config;
        let supervision = &config.supervision;
        let once = config.default_timeout
            + config.max_timeout * 3
            + config.delivery_timeout
            + config.over_rollout.wait_after_min
            + supervision.start_timeout
            + supervision.begin_timeout
            + supervision.cancel_grace
            + supervision.max_restart_backoff
            + supervision.broken_retry_delay
            + supervision.other_runner_wait
            + supervision.heartbeat_timeout.unwrap_or_default();
        let runs = self.subject.core().counters().runs;
        let work = Duration::from_millis(500) * (runs.pending + runs.running) as u32;
        once * 12 + Duration::from_secs(120) + work
    }

    /// Sends the requests that are needed to finish everything.
    pub(super) fn close(&mut self) {
        if self.left_undone().is_none() {
            return self.finish();
        }
        self.plan(POLL_INTERVAL, WorldEvent::Close);
        if self.model.pool != Pool::Running {
            // Refused during a stop.
            return self.send_world_request(Request::Start);
        }
        // In the order of service: the first batches block the others.
        let ranked = self.model.active.iter().map(|(id, key)| (id.priority(), *key));
        let mut ranked: Vec<(BatchPriority, BatchKey)> = ranked.collect();
        ranked.sort_unstable();
        for (_, key) in ranked {
            self.close_batch(key);
        }
    }

    fn close_batch(&mut self, key: BatchKey) {
        let Some(batch) = self.model.batches.get(&key) else { return };
        let (id, kind, submitted) = (batch.id.clone(), batch.kind, batch.submitted);
        if self.model.waiting().any(|(_, asked)| asked.batch() == Some(&id)) {
            return;
        }
        if !submitted {
            return self.send_world_request(Request::Collect {
                batch: id,
                min_num: None,
                timeout: None,
                clear_timeout_tasks: false,
                return_partial_tasks: false,
            });
        }
        let state = self.subject.core().batch_by_key(key).and_then(|view| view.state);
        let refused = self.users.unfinalizable.contains(&key);
        if refused || state == Some(BatchState::Aborted) {
            let (batch, reason) = (id, "enough".into());
            let keep_partial_results = self.rng.percent(50);
            let unresponsive = UnresponsivePolicy::Replace;
            self.send_world_request(Request::Abort {
                batch,
                reason,
                keep_partial_results,
                unresponsive,
            });
        } else {
            self.send_world_request(Request::Finalize { batch: id, kind, timeout: None });
        }
    }

    /// Describes the open work, if there is any.
    pub(super) fn left_undone(&self) -> Option<String> {
        let core = self.subject.core();
        if let Some((request, asked)) = self.model.waiting().next() {
            return Some(format!("request {request} is not answered: {:?}", asked.what));
        }
        if !self.ledger.idle() {
            return Some("responses or deliveries are held back".to_owned());
        }
        if let Some((id, key)) = self.model.active.iter().next() {
            let view = core.batch_by_key(*key);
            return Some(format!("batch {id} ({key}) has not ended: {view:?}"));
        }
        if self.model.held > 0 {
            return Some(format!("{} payloads are held", self.model.held));
        }
        if self.model.pool != Pool::Running {
            return Some("the pool is not started".to_owned());
        }
        for (runner, slot) in &self.model.slots {
            if let Phase::Starting | Phase::Given(_) = slot.phase {
                return Some(format!("runner {runner} is not idle: {:?}", core.runner(*runner)));
            }
        }
        let mut idle = 0;
        for view in core.runners().filter(|view| view.state == RunnerState::Idle) {
            let process = self.processes.get((view.runner, view.incarnation));
            if process.is_none_or(|process| process.state != ProcessState::Alive) {
                return Some(format!("runner {} is idle and dead", view.runner));
            }
            idle += 1;
        }
        // A scaled pool decides its own target.
        let scales = self.model.config.scaling.is_some();
        let wanted = if scales { core.wanted() } else { self.model.wanted() };
        (idle != wanted).then(|| format!("{idle} of {wanted} runners are idle"))
    }
}
