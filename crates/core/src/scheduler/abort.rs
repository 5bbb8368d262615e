//! Giving a batch up.

use std::sync::Arc;

use crate::Core;
use crate::batch_id::BatchId;
use crate::failure::CancelReason;
use crate::ids::{BatchKey, RequestId};
use crate::metrics::Metrics;
use crate::scheduler::action::{Action, CollectOutcome, Refusal, Response};
use crate::scheduler::batch::{AbortSpec, BatchOwner, WaitGoal, WaitTimeout};
use crate::scheduler::completion::PartialPolicy;
use crate::scheduler::input::UnresponsivePolicy;
use crate::scheduler::lease::LeaseRecipient;
use crate::scheduler::ledger_record::LedgerRecord;
use crate::scheduler::status::{BatchState, DropReason};
use crate::time::Time;

impl Core {
    pub(crate) fn abort(
        &mut self,
        request: RequestId,
        id: &BatchId,
        reason: Arc<str>,
        keep: bool,
        unresponsive: UnresponsivePolicy,
        actions: &mut Vec<Action>,
    ) {
        let Some(key) = self.ids.get(id).copied() else {
            return self.answer(request, Response::Aborted(None), actions);
        };
        let batch = &self.batches[&key];
        if let Some(result) = &batch.result {
            let aborted = (result.state == BatchState::Aborted).then(|| Arc::clone(result));
            return self.answer(request, Response::Aborted(aborted), actions);
        }
        if batch.owner == BatchOwner::Scheduler {
            return self.abort_scheduled(request, key, keep, unresponsive, actions);
        }
        let reason = self.clip(reason);
        if let Some(batch) = self.batches.get_mut(&key) {
            let wanted = AbortSpec { reason, keep, unresponsive };
            // While it has not been carried out, whoever wants to keep something has his way.
            let earlier = batch.abort.get_or_insert(wanted);
            let undone = batch.owner != BatchOwner::Coordinator(BatchState::Aborted);
            earlier.keep = keep || (undone && earlier.keep);
        }
        self.wait(key, request, WaitGoal::Abort, WaitTimeout::Until(Time::MAX));
        // What the sink is being handed may be trained on already. Whether the batch is finalized
        // or can still be given up is known when the sink has answered.
        if self.batches[&key].leases.is_empty() {
            self.carry_out_abort(key, actions);
        }
    }

    fn abort_scheduled(
        &mut self,
        request: RequestId,
        key: BatchKey,
        keep: bool,
        unresponsive: UnresponsivePolicy,
        actions: &mut Vec<Action>,
    ) {
        let partial = if keep { PartialPolicy::Keep } else { PartialPolicy::Drop };
        self.truncate(key, CancelReason::Aborted, partial, unresponsive, actions);
        for (waiter, _) in self.take_waiters(key) {
            self.hand_over(key, waiter, CollectOutcome::Aborted, actions);
        }
        self.answer(request, Response::Aborted(None), actions);
        self.changed.insert(key);
    }

    /// Gives a submitted batch up that nothing is being delivered of.
    pub(crate) fn carry_out_abort(&mut self, key: BatchKey, actions: &mut Vec<Action>) {
        let batch = &self.batches[&key];
        let (id, Some(abort)) = (batch.id.clone(), batch.abort.clone()) else { return };
        let AbortSpec { reason, keep, unresponsive } = abort;
        self.set_state(key, BatchState::Aborted);
        let partial = if keep { PartialPolicy::Keep } else { PartialPolicy::Drop };
        self.truncate(key, CancelReason::Aborted, partial, unresponsive, actions);
        self.record(key, actions, || {
            let reason = Arc::clone(&reason);
            LedgerRecord::Aborting { batch: key, reason }
        });
        for (waiter, wants) in self.take_waiters(key) {
            match wants {
                WaitGoal::Abort => self.wait(key, waiter, wants, WaitTimeout::Until(Time::MAX)),
                WaitGoal::Finalize | WaitGoal::Collect { .. } => {
                    let refusal =
                        Refusal::Aborted { batch: id.clone(), reason: Arc::clone(&reason) };
                    self.refuse(waiter, refusal, actions);
                }
            }
        }
        if keep && self.holds_payloads(key) {
            let Some((lease, results)) = self.lease_results(key, LeaseRecipient::Sink) else {
                return;
            };
            self.record(key, actions, || LedgerRecord::DeliveryStarted { batch: key });
            return actions.push(Action::Deliver { lease, batch: key, results });
        }
        if !keep {
            self.drop_results(key, DropReason::Aborted, actions);
        }
        self.finish_abort(key, Metrics::new(), actions);
    }

    /// Nothing is left to be done for an aborted batch: whoever waited for that is told.
    pub(crate) fn finish_abort(
        &mut self,
        key: BatchKey,
        metrics: Metrics,
        actions: &mut Vec<Action>,
    ) {
        let waiters = self.take_waiters(key);
        let result = self.close(key, BatchState::Aborted, metrics, actions);
        for (request, _) in waiters {
            self.answer(request, Response::Aborted(Some(Arc::clone(&result))), actions);
        }
    }
}
