//! What the record takes from the ledger when a core begins anew.

use std::collections::BTreeSet;

use rollway_core::{BatchKey, CancelReason, Ending, Record, Request};

use super::{Batch, Book, Kept, Place, RunState};
use crate::ledger::Ledger;

impl Book {
    /// Returns a record of what has not been forgotten with the last core: the batches that have
    /// ended. Everything else is told again.
    pub fn begin_anew(&self, ledger: &Ledger) -> Self {
        let mut book = Self::new(self.config.clone());
        let ended: BTreeSet<BatchKey> = ledger.ended().into_iter().collect();
        for key in &ended {
            let Some(batch) = self.batches.get(key) else { continue };
            book.latest.insert(batch.id.clone(), *key);
            book.batches.insert(*key, batch.clone());
        }
        let attempts = self.attempts.iter().filter(|(_, attempt)| ended.contains(&attempt.batch));
        book.attempts.extend(attempts.map(|(id, attempt)| (*id, attempt.clone())));
        book
    }

    /// Takes in what was recorded before, and believed.
    pub(super) fn recorded(&mut self, record: &Record) {
        match record {
            Record::Submitted { batch, id, kind, min_wait_num, tasks } => {
                let (id, min_wait_num) = (id.clone(), *min_wait_num);
                let submit =
                    Request::Submit { batch: id, kind: *kind, tasks: Vec::new(), min_wait_num };
                self.add_batch(*batch, &submit);
                self.add_tasks(*batch, tasks);
            }
            Record::RunEnded { batch, task, run, ending } => {
                let origin = (*batch, *task, run.0);
                let Some(run) = self.run_mut(*batch, *task, run.0) else { return };
                run.restored = true;
                run.requested =
                    matches!(ending, Ending::Cancelled { reason: CancelReason::Requested });
                run.state = match ending {
                    Ending::Succeeded { payload, metrics } => RunState::Succeeded {
                        label: metrics.get("label").unwrap_or(f64::NAN),
                        payload: payload.map(|payload| payload.id),
                    },
                    Ending::Failed { kind, .. } => RunState::Failed(*kind),
                    Ending::Cancelled { .. } => RunState::Cancelled,
                };
                self.requested += u64::from(run.requested);
                let Ending::Succeeded { payload, .. } = ending else { return };
                self.succeeded += 1;
                if let Some(payload) = payload {
                    let (bytes, origin) = (payload.bytes, Some(origin));
                    let kept = Kept { bytes, origin, accepted: true, place: Place::Held };
                    self.hold(kept, true);
                    self.payloads.insert(payload.id, kept);
                }
            }
            Record::Cut { batch, reason, keep } => {
                let Some(batch) = self.batches.get_mut(batch) else { return };
                batch.cut_before();
                let aborted = *reason == CancelReason::Aborted;
                batch.given_up |= aborted;
                batch.forgone |= aborted && !keep;
            }
            Record::GivenUp { batch, .. } => {
                if let Some(batch) = self.batches.get_mut(batch) {
                    batch.given_up = true;
                }
            }
            // What has ended is known from before.
            Record::Offered { .. } | Record::Ended(_) => {}
        }
    }
}

impl Batch {
    fn cut_before(&mut self) {
        for run in self.tasks.iter_mut().flat_map(|task| &mut task.runs) {
            if run.state == RunState::Fresh {
                run.state = RunState::Cancelled;
                run.restored = true;
            }
        }
    }
}
