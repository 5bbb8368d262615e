//! Leases: results that were handed out stay in the core until they are acknowledged.

use std::sync::Arc;

use super::TaskPhase;
use crate::metrics::Metrics;
use crate::{
    Action, BatchKey, BatchState, Core, DeadlineReason, DeliveryOutcome, IgnoreReason, LeaseId,
    TaskId, TaskResult, Time,
};

/// Results that were handed out and not yet acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) batch: BatchKey,
    pub(crate) tasks: Vec<TaskId>,
    pub(crate) to: LeaseRecipient,
    pub(crate) timer: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseRecipient {
    Collector,
    /// To finalize the batch, or to keep results of an aborted one.
    Sink,
}

impl Core {
    /// Leases all available results of a batch, by task id. `None` without results.
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

    pub(crate) fn delivered(&mut self, id: LeaseId, delivery: DeliveryOutcome) {
        let Some(lease) = self.close_lease(id) else {
            return self.ignore_report(IgnoreReason::UnknownLease);
        };
        let key = lease.batch;
        match delivery {
            DeliveryOutcome::Acknowledged { metrics } => {
                self.take_results(&lease);
                match lease.to {
                    LeaseRecipient::Collector => self.remove_if_empty(key),
                    LeaseRecipient::Sink => self.sink_acknowledged(key, metrics),
                }
            }
            DeliveryOutcome::Failed { message } => {
                self.give_back(&lease);
                match lease.to {
                    LeaseRecipient::Collector => {}
                    LeaseRecipient::Sink => self.sink_failed(key, message),
                }
            }
        }
        self.changed.insert(key);
    }

    /// Fails a delivery that timed out.
    pub(crate) fn delivery_due(&mut self, id: LeaseId) {
        let seconds = self.config.delivery_timeout.as_secs_f64();
        let message = format!("no acknowledgement within {seconds} s").into();
        self.delivered(id, DeliveryOutcome::Failed { message });
    }

    pub(crate) fn close_lease(&mut self, id: LeaseId) -> Option<Lease> {
        let mut lease = self.leases.remove(&id)?;
        self.timers.set(DeadlineReason::Delivery(id), &mut lease.timer, None);
        if let Some(batch) = self.batches.get_mut(&lease.batch) {
            batch.leases.retain(|other| *other != id);
        }
        Some(lease)
    }

    fn take_results(&mut self, lease: &Lease) {
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
            self.actions.push(Action::ReleasePayloads(released));
        }
    }

    /// Makes results that did not arrive available again.
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

    fn sink_acknowledged(&mut self, key: BatchKey, metrics: Metrics) {
        let Some(batch) = self.batches.get(&key) else { return };
        if batch.state() == Some(BatchState::Aborted) {
            self.finish_abort(key, metrics);
        } else {
            self.finish_finalize(key, metrics);
        }
    }
}
