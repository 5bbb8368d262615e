//! Effects of restored records on the model.

use std::collections::BTreeSet;

use rollway_core::{BatchKey, CancelReason, LedgerRecord, Request, RunEnd, RunFailure, RunOutput};

use super::{ModelBatch, ModelPayload, PayloadState, ReferenceModel, RunState};
use crate::ledger::SimLedger;

impl ReferenceModel {
    /// Returns the model after a crash: only closed batches; everything else is restored.
    pub fn begin_anew(&self, ledger: &SimLedger) -> Self {
        let mut model = Self::new(self.config.clone());
        let ended: BTreeSet<BatchKey> = ledger.ended().into_iter().collect();
        for key in &ended {
            let Some(batch) = self.batches.get(key) else { continue };
            model.latest.insert(batch.id.clone(), *key);
            model.batches.insert(*key, batch.clone());
        }
        let attempts = self.attempts.iter().filter(|(_, attempt)| ended.contains(&attempt.batch));
        model.attempts.extend(attempts.map(|(id, attempt)| (*id, attempt.clone())));
        model
    }

    /// Applies a restored record.
    pub(super) fn recorded(&mut self, record: &LedgerRecord) {
        match record {
            LedgerRecord::Submitted { batch, id, kind, min_wait_num, tasks } => {
                let (id, min_wait_num) = (id.clone(), *min_wait_num);
                let submit =
                    Request::Submit { batch: id, kind: *kind, tasks: Vec::new(), min_wait_num };
                self.add_batch(*batch, &submit);
                self.add_tasks(*batch, tasks);
            }
            LedgerRecord::RunEnded { batch, task, run, ending } => {
                let origin = (*batch, *task, run.0);
                let Some(run) = self.run_mut(*batch, *task, run.0) else { return };
                run.restored = true;
                run.requested = matches!(ending, RunEnd::Cancelled(CancelReason::Requested));
                run.state = match ending {
                    RunEnd::Succeeded(RunOutput { payload, metrics }) => RunState::Succeeded {
                        label: metrics.get("label").unwrap_or(f64::NAN),
                        payload: payload.map(|payload| payload.id),
                    },
                    RunEnd::Failed(RunFailure { kind, .. }) => RunState::Failed(*kind),
                    RunEnd::Cancelled(_) => RunState::Cancelled,
                };
                self.requested += u64::from(run.requested);
                let RunEnd::Succeeded(RunOutput { payload, .. }) = ending else { return };
                self.succeeded += 1;
                if let Some(payload) = payload {
                    let (bytes, origin) = (payload.bytes, Some(origin));
                    let kept =
                        ModelPayload { bytes, origin, accepted: true, state: PayloadState::Held };
                    self.hold(kept, true);
                    self.payloads.insert(payload.id, kept);
                }
            }
            LedgerRecord::Truncated { batch, reason, keep } => {
                let Some(batch) = self.batches.get_mut(batch) else { return };
                batch.cut_before();
                let aborted = *reason == CancelReason::Aborted;
                batch.given_up |= aborted;
                batch.forgone |= aborted && !keep;
            }
            LedgerRecord::Aborting { batch, .. } => {
                if let Some(batch) = self.batches.get_mut(batch) {
                    batch.given_up = true;
                }
            }
            // Closed batches are kept from before.
            LedgerRecord::DeliveryStarted { .. } | LedgerRecord::Closed(_) => {}
        }
    }
}

impl ModelBatch {
    fn cut_before(&mut self) {
        for run in self.tasks.iter_mut().flat_map(|task| &mut task.runs) {
            if run.state == RunState::Fresh {
                run.state = RunState::Cancelled;
                run.restored = true;
            }
        }
    }
}
