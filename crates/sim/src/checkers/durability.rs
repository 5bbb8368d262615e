//! A crash of the coordinator undoes no response: accepted batches exist, closed batches keep their
//! result, ended and cancelled runs are not executed again, and a repeated delivery has the same
//! payloads. No id is used again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rollway_core::{
    Action, AttemptId, BatchKey, BatchResult, Incarnation, LedgerRecord, PayloadId, Request,
    Response, RunnerId, TaskId, TaskResult,
};

use super::{CheckContext, CheckVerdict, Checker, require};
use crate::ledger::SimLedger;

#[derive(Debug, Default)]
pub(super) struct DurabilityChecker {
    acknowledged: BTreeSet<BatchKey>,
    results: BTreeMap<BatchKey, Arc<BatchResult>>,
    delivered: BTreeMap<BatchKey, BTreeSet<PayloadId>>,
    /// Runs of submitted batches whose cancellation was confirmed.
    cancelled: BTreeSet<(BatchKey, TaskId, u32)>,
    attempts: BTreeSet<AttemptId>,
    lives: BTreeSet<(RunnerId, Incarnation)>,
    /// State of the ledger at the last crash: ended runs, batches without open runs, and closed
    /// batches, oldest first.
    runs: BTreeSet<(BatchKey, TaskId, u32)>,
    cut: BTreeSet<BatchKey>,
    ended: Vec<BatchKey>,
}

impl Checker for DurabilityChecker {
    fn action(&mut self, _: &CheckContext<'_>, action: &Action) -> CheckVerdict {
        match action {
            Action::StartRunner { runner, incarnation, .. } => {
                let new = self.lives.insert((*runner, *incarnation));
                require!(new, "{runner} {incarnation} is started again");
            }
            Action::StartAttempt { attempt, batch, task, runs, .. } => {
                require!(self.attempts.insert(*attempt), "{attempt} is ordered again");
                for run in runs.iter() {
                    let over =
                        self.cut.contains(batch) || self.runs.contains(&(*batch, *task, run.0));
                    require!(!over, "{batch} {task} {run} had ended, and is executed again");
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn released(&mut self, ctx: &CheckContext<'_>, action: &Action) -> CheckVerdict {
        match action {
            Action::Respond { request, answer: Response::RunCancelled(true) } => {
                let asked = ctx.model.requests.get(request).map(|asked| &asked.what);
                if let Some(Request::CancelRun { batch, task, run }) = asked
                    && let Some(key) = ctx.model.latest.get(batch)
                    && ctx.model.batches.get(key).is_some_and(|batch| batch.submitted)
                {
                    self.cancelled.insert((*key, *task, run.0));
                }
            }
            Action::Respond { answer: Response::Submitted { batch }, .. } => {
                self.acknowledged.insert(*batch);
            }
            Action::Respond {
                answer: Response::Finalized(result) | Response::Aborted(Some(result)),
                ..
            } => {
                let before = self.results.entry(result.key).or_insert_with(|| Arc::clone(result));
                require!(
                    before == result,
                    "the response was {before:?} before, and is {result:?} now"
                );
            }
            Action::Deliver { batch, results, .. } => {
                let payloads = payloads(results);
                let before = self.delivered.entry(*batch).or_insert_with(|| payloads.clone());
                require!(
                    *before == payloads,
                    "the delivery of {batch} was {before:?} before, and is {payloads:?} now"
                );
            }
            _ => {}
        }
        Ok(())
    }

    fn crashed(&mut self, ledger: &SimLedger) {
        self.runs.clear();
        self.cut.clear();
        for record in ledger.records() {
            match record {
                LedgerRecord::RunEnded { batch, task, run, .. } => {
                    self.runs.insert((*batch, *task, run.0));
                }
                LedgerRecord::Truncated { batch, .. } => {
                    self.cut.insert(*batch);
                }
                _ => {}
            }
        }
        self.ended = ledger.ended();
        self.cut.extend(&self.ended);
    }

    fn restored(&mut self, ctx: &CheckContext<'_>) -> CheckVerdict {
        for run in &self.cancelled {
            let over = self.runs.contains(run) || self.ended.contains(&run.0);
            require!(over, "{run:?} was cancelled, and is open again");
        }
        for key in &self.acknowledged {
            let known = ctx.core.batch_by_key(*key).is_some() || self.ended.contains(key);
            require!(known, "{key} was accepted, and is unknown");
        }
        let most = ctx.model.config.limits.terminal_batches as usize;
        for (key, result) in &self.results {
            require!(self.ended.contains(key), "{key} was {}, and is not", result.state);
            let state = ctx.core.batch_by_key(*key).and_then(|view| view.state);
            let recent = self.ended.iter().rev().take(most).any(|ended| ended == key);
            require!(
                state == recent.then_some(result.state),
                "{key} was {}, and is {state:?}",
                result.state
            );
        }
        Ok(())
    }
}

fn payloads(results: &[TaskResult]) -> BTreeSet<PayloadId> {
    results.iter().flat_map(|result| &result.payloads).map(|payload| payload.id).collect()
}
