//! Aborting a batch.

use std::sync::Arc;

use super::{AbortSpec, BatchOwner, LeaseRecipient, WaitGoal, WaitTimeout};
use crate::metrics::Metrics;
use crate::{
    Action, BatchId, BatchKey, BatchState, CancelReason, CollectOutcome, Core, DropReason,
    LedgerRecord, Refusal, RequestId, Response, Time,
};

impl Core {
    pub(crate) fn abort(&mut self, request: RequestId, id: &BatchId, mut spec: AbortSpec) {
        let Some(key) = self.ids.get(id).copied() else {
            return self.answer(request, Response::Aborted(None));
        };
        let batch = &self.batches[&key];
        if let Some(result) = &batch.result {
            let aborted = (result.state == BatchState::Aborted).then(|| Arc::clone(result));
            return self.answer(request, Response::Aborted(aborted));
        }
        if batch.owner == BatchOwner::Scheduler {
            self.truncate(key, CancelReason::Aborted, spec.keep, spec.unresponsive);
            for (waiter, _) in self.take_waiters(key) {
                self.hand_over(key, waiter, CollectOutcome::Aborted);
            }
            self.answer(request, Response::Aborted(None));
            self.changed.insert(key);
            return;
        }
        spec.reason = self.clip(spec.reason);
        if let Some(batch) = self.batches.get_mut(&key) {
            // Until the abort is carried out, a request to keep results wins.
            let keep = spec.keep;
            let earlier = batch.abort.get_or_insert(spec);
            let undone = batch.owner != BatchOwner::Coordinator(BatchState::Aborted);
            earlier.keep = keep || (undone && earlier.keep);
        }
        self.wait(key, request, WaitGoal::Abort, WaitTimeout::Until(Time::MAX));
        // The sink may have stored the results of a delivery: only its answer decides whether the
        // batch is finalized or aborted.
        if self.batches[&key].leases.is_empty() {
            self.carry_out_abort(key);
        }
    }

    /// Aborts a submitted batch without open deliveries.
    pub(crate) fn carry_out_abort(&mut self, key: BatchKey) {
        let batch = &self.batches[&key];
        let (id, Some(abort)) = (batch.id.clone(), batch.abort.clone()) else { return };
        let AbortSpec { reason, keep, unresponsive } = abort;
        self.set_state(key, BatchState::Aborted);
        self.truncate(key, CancelReason::Aborted, keep, unresponsive);
        self.record(key, || {
            let reason = Arc::clone(&reason);
            LedgerRecord::Aborting { batch: key, reason }
        });
        for (waiter, goal) in self.take_waiters(key) {
            match goal {
                WaitGoal::Abort => self.wait(key, waiter, goal, WaitTimeout::Until(Time::MAX)),
                WaitGoal::Finalize | WaitGoal::Collect { .. } => {
                    let refusal =
                        Refusal::Aborted { batch: id.clone(), reason: Arc::clone(&reason) };
                    self.refuse(waiter, refusal);
                }
            }
        }
        if keep && self.holds_payloads(key) {
            let Some((lease, results)) = self.lease_results(key, LeaseRecipient::Sink) else {
                return;
            };
            self.record(key, || LedgerRecord::DeliveryStarted { batch: key });
            return self.actions.push(Action::Deliver { lease, batch: key, results });
        }
        if !keep {
            self.drop_results(key, DropReason::Aborted);
        }
        self.finish_abort(key, Metrics::new());
    }

    /// Closes an aborted batch and answers its waiters.
    pub(crate) fn finish_abort(&mut self, key: BatchKey, metrics: Metrics) {
        let waiters = self.take_waiters(key);
        let result = self.close(key, BatchState::Aborted, metrics);
        for (request, _) in waiters {
            self.answer(request, Response::Aborted(Some(Arc::clone(&result))));
        }
    }
}
