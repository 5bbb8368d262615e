//! Results on their way out. They stay where they are until they are known to have arrived.

use std::sync::Arc;

use crate::Core;
use crate::ids::{BatchKey, LeaseId, TaskId};
use crate::metrics::Metrics;
use crate::scheduler::action::Action;
use crate::scheduler::counters::IgnoreReason;
use crate::scheduler::input::DeliveryOutcome;
use crate::scheduler::status::{BatchState, TaskResult};
use crate::scheduler::task::TaskPhase;
use crate::scheduler::view::DeadlineReason;
use crate::time::Time;

/// Results that were handed out and not yet acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) batch: BatchKey,
    pub(crate) tasks: Vec<TaskId>,
    pub(crate) to: LeaseRecipient,
    pub(crate) timer: Option<Time>,
}

/// To whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseRecipient {
    /// Whoever collected.
    Collector,
    /// The sink, to finalize the batch or to keep what an aborted one has.
    Sink,
}

impl Core {
    /// Hands out all results that a batch has, by task id; none if there are none.
    pub(crate) fn lease_results(
        &mut self,
        key: BatchKey,
        to: LeaseRecipient,
    ) -> Option<(LeaseId, Vec<TaskResult>)> {
        let batch = self.batches.get_mut(&key)?;
        if batch.results.is_empty() {
            return None;
        }
        let lease = LeaseId(self.serials.lease);
        self.serials.lease += 1;
        let mut tasks = std::mem::take(&mut batch.results);
        tasks.sort_unstable();
        let mut results = Vec::with_capacity(tasks.len());
        for task in &tasks {
            let TaskPhase::Ended(ended) = &mut batch.tasks[task.0 as usize].body else { continue };
            ended.lease = Some(lease);
            results.push(TaskResult {
                task: *task,
                status: Arc::clone(&ended.status),
                payloads: ended.payloads.clone(),
            });
        }
        batch.handed += tasks.len() as u64;
        batch.leases.push(lease);
        let mut timer = None;
        if to == LeaseRecipient::Sink {
            batch.offered = true;
            let at = self.now.after(self.config.delivery_timeout);
            self.timers.set(DeadlineReason::Delivery(lease), &mut timer, Some(at));
        }
        self.leases.insert(lease, Lease { batch: key, tasks, to, timer });
        Some((lease, results))
    }

    pub(crate) fn delivered(
        &mut self,
        id: LeaseId,
        delivery: DeliveryOutcome,
        actions: &mut Vec<Action>,
    ) {
        let Some(lease) = self.close_lease(id) else {
            return self.ignore_report(IgnoreReason::UnknownLease);
        };
        let key = lease.batch;
        match delivery {
            DeliveryOutcome::Acknowledged { metrics } => {
                self.take_results(&lease, actions);
                match lease.to {
                    LeaseRecipient::Collector => self.forget_if_empty(key, actions),
                    LeaseRecipient::Sink => self.sink_acknowledged(key, metrics, actions),
                }
            }
            DeliveryOutcome::Failed { message } => {
                self.give_back(&lease);
                match lease.to {
                    LeaseRecipient::Collector => {}
                    LeaseRecipient::Sink => self.sink_failed(key, message, actions),
                }
            }
        }
        self.changed.insert(key);
    }

    /// The sink has taken too long: nobody knows whether it has the results.
    pub(crate) fn delivery_due(&mut self, id: LeaseId, actions: &mut Vec<Action>) {
        let seconds = self.config.delivery_timeout.as_secs_f64();
        let message = format!("no acknowledgement within {seconds} s").into();
        self.delivered(id, DeliveryOutcome::Failed { message }, actions);
    }

    pub(crate) fn close_lease(&mut self, id: LeaseId) -> Option<Lease> {
        let mut lease = self.leases.remove(&id)?;
        self.timers.set(DeadlineReason::Delivery(id), &mut lease.timer, None);
        if let Some(batch) = self.batches.get_mut(&lease.batch) {
            batch.leases.retain(|other| *other != id);
        }
        Some(lease)
    }

    fn take_results(&mut self, lease: &Lease, actions: &mut Vec<Action>) {
        let Some(batch) = self.batches.get_mut(&lease.batch) else { return };
        let mut released = Vec::new();
        for task in &lease.tasks {
            let task = &mut batch.tasks[task.0 as usize];
            let TaskPhase::Ended(ended) = &mut task.body else { continue };
            for payload in ended.payloads.drain(..) {
                batch.held_bytes -= payload.bytes;
                batch.delivered += 1;
                self.counters.payloads_held -= 1;
                self.counters.payload_bytes_held -= payload.bytes;
                self.counters.payloads_delivered += 1;
                released.push(payload.id);
            }
            ended.lease = None;
            if lease.to == LeaseRecipient::Collector {
                task.body = TaskPhase::Gone;
            }
        }
        if lease.to == LeaseRecipient::Sink {
            batch.offered = false;
        }
        if !released.is_empty() {
            actions.push(Action::ReleasePayloads(released));
        }
    }

    /// Puts results that did not arrive back where they can be taken.
    pub(crate) fn give_back(&mut self, lease: &Lease) {
        let Some(batch) = self.batches.get_mut(&lease.batch) else { return };
        for id in &lease.tasks {
            if let TaskPhase::Ended(ended) = &mut batch.tasks[id.0 as usize].body {
                ended.lease = None;
                batch.handed -= 1;
                batch.results.push(*id);
            }
        }
    }

    fn sink_acknowledged(&mut self, key: BatchKey, metrics: Metrics, actions: &mut Vec<Action>) {
        let Some(batch) = self.batches.get(&key) else { return };
        if batch.state() == Some(BatchState::Aborted) {
            self.finish_abort(key, metrics, actions);
        } else {
            self.finish_finalize(key, metrics, actions);
        }
    }
}
