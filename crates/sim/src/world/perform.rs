//! Execution of the core's actions: commands to runners, deliveries and responses.

use std::time::Duration;

use rollway_core::{
    Action, CollectedResults, DeliveryOutcome, LeaseId, Payload, PayloadId, Response, TaskResult,
};

use super::{RunnerOrder, SimWorld, WorldEvent};
use crate::faults::Fault;
use crate::sink::Origin;

impl SimWorld {
    pub(super) fn perform(&mut self, action: Action) {
        match action {
            Action::StartRunner { runner, incarnation, isolated } => {
                self.start_runner((runner, incarnation), isolated);
            }
            Action::StopRunner { runner, incarnation } => {
                let slow = self.strikes(Fault::SlowKill);
                let longest = Duration::from_millis(if slow { 20_000 } else { 20 });
                let wait = self.rng.spread(Duration::from_millis(1), longest);
                self.plan(wait, WorldEvent::Killed((runner, incarnation)));
            }
            Action::StartAttempt { runner, incarnation, attempt, batch, task, runs, .. } => {
                self.send((runner, incarnation), RunnerOrder::Begin { attempt, batch, task, runs });
            }
            Action::CancelAttempt { runner, incarnation, attempt, .. } => {
                self.send((runner, incarnation), RunnerOrder::Cancel { attempt });
            }
            Action::Deliver { .. } | Action::Respond { .. } => {
                self.ledger.hold(action);
                self.release();
            }
            Action::AppendRecord(record) => self.append(record),
            // The world keeps no tasks or payloads.
            Action::DropPayload { .. } | Action::ReleasePayloads(_) | Action::DropTasks { .. } => {}
        }
    }

    /// Performs the actions that the ledger has released.
    pub(super) fn release(&mut self) {
        while let Some(action) = self.ledger.release() {
            self.check(|checkers, ctx| checkers.released(ctx, &action));
            match action {
                Action::Deliver { lease, results, .. } => self.deliver(lease, &results),
                Action::Respond { request, answer } => {
                    if let Response::Collected(CollectedResults { lease: Some(lease), .. }) =
                        &answer
                    {
                        self.hand_over(*lease);
                    }
                    self.on_response(request, &answer);
                }
                _ => {}
            }
        }
    }

    /// Delivers results to the sink, with the faults of a sink.
    fn deliver(&mut self, lease: LeaseId, results: &[TaskResult]) {
        let usual = self.rng.spread(self.shape.latency, self.shape.latency * 20);
        let slow = self.strikes(Fault::SinkSlow);
        let wait = if slow {
            self.rng.spread(usual, self.model.config.delivery_timeout * 3)
        } else {
            usual
        };
        let failed = DeliveryOutcome::Failed { message: "the store is down".into() };
        if self.strikes(Fault::SinkRefuses) {
            return self.plan(wait, WorldEvent::Delivered(lease, failed));
        }
        if self.rejects(lease) {
            return self.plan(wait, WorldEvent::Delivered(lease, failed));
        }
        let payloads = results.iter().flat_map(|result| &result.payloads);
        let origin = |payload: &Payload| self.model.payloads.get(&payload.id)?.origin;
        let payloads = payloads.filter_map(|payload| Some((origin(payload)?, payload.id)));
        let payloads = payloads.collect();
        self.plan(wait / 2, WorldEvent::Store(payloads));
        if self.strikes(Fault::SinkSilent) {
            return;
        }
        let acknowledged =
            DeliveryOutcome::Acknowledged { metrics: [("stored", 1.0)].into_iter().collect() };
        let forgets = self.strikes(Fault::SinkForgets);
        let delivery = if forgets { failed } else { acknowledged };
        if self.strikes(Fault::SinkTwice) {
            self.plan(wait * 2, WorldEvent::Delivered(lease, delivery.clone()));
        }
        self.plan(wait, WorldEvent::Delivered(lease, delivery));
    }

    /// Tells whether the sink refuses this delivery for the content of its batch.
    fn rejects(&mut self, lease: LeaseId) -> bool {
        let Some(batch) = self.model.leases.get(&lease).map(|lease| lease.batch) else {
            return false;
        };
        if self.strikes(Fault::SinkRejects) {
            let refusals = self.rng.small(1, 5);
            self.rejected.entry(batch).or_insert(refusals);
        }
        match self.rejected.get_mut(&batch) {
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        }
    }

    pub(super) fn store(&mut self, payloads: &[(Origin, PayloadId)]) {
        for (origin, payload) in payloads {
            self.sink.store(*origin, *payload);
        }
        self.crashing |= self.strikes(Fault::CoordinatorCrash);
    }

    /// Hands collected results to the requester.
    fn hand_over(&mut self, lease: LeaseId) {
        if self.strikes(Fault::CollectorSilent) {
            return;
        }
        let delivery = if self.strikes(Fault::CollectorGone) {
            DeliveryOutcome::Failed { message: "collector gone".into() }
        } else {
            DeliveryOutcome::Acknowledged { metrics: rollway_core::metrics::Metrics::new() }
        };
        let wait = self.rng.spread(self.shape.latency / 4, self.shape.latency * 4);
        self.plan(wait, WorldEvent::Delivered(lease, delivery));
    }

    pub(crate) fn strikes(&mut self, fault: Fault) -> bool {
        self.faults.strikes(fault, &mut self.rng)
    }
}
