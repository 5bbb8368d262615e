//! Nothing that anybody was told is undone by the end of a coordinator: a batch that was taken in
//! stays, one that has ended stays ended and in the same words, no run that has ended is executed
//! again, nor one that somebody had cancelled, and what is delivered again is what was delivered
//! before. And no number that a word from before could refer to is used again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rollway_core::{
    Action, AttemptId, BatchKey, BatchResult, Incarnation, LedgerRecord, PayloadId, Request,
    Response, RunnerId, TaskId, TaskResult,
};

use super::{CheckContext, CheckVerdict, Checker, require};
use crate::ledger::SimLedger;

/// Remembers what the world was told, whoever told it.
#[derive(Debug, Default)]
pub(super) struct DurabilityChecker {
    /// Batches whose submission was acknowledged.
    acknowledged: BTreeSet<BatchKey>,
    /// The last words about batches.
    results: BTreeMap<BatchKey, Arc<BatchResult>>,
    /// What was handed to the sink.
    delivered: BTreeMap<BatchKey, BTreeSet<PayloadId>>,
    /// Runs of submitted batches that somebody was told are cancelled.
    cancelled: BTreeSet<(BatchKey, TaskId, u32)>,
    attempts: BTreeSet<AttemptId>,
    lives: BTreeSet<(RunnerId, Incarnation)>,
    /// As the latest core found it: runs that had ended, batches all of whose runs had, and those
    /// that had themselves, oldest end first.
    runs: BTreeSet<(BatchKey, TaskId, u32)>,
    cut: BTreeSet<BatchKey>,
    ended: Vec<BatchKey>,
}

impl Checker for DurabilityChecker {
    fn name(&self) -> &'static str {
        "survival"
    }

    fn action(&mut self, _: &CheckContext<'_>, action: &Action) -> CheckVerdict {
        match action {
            Action::StartRunner { runner, life } => {
                let new = self.lives.insert((*runner, *life));
                require!(new, "{runner} {life} begins, and was there before");
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

    fn released(&mut self, scene: &CheckContext<'_>, action: &Action) -> CheckVerdict {
        match action {
            Action::Respond { request, answer: Response::RunCancelled(true) } => {
                let asked = scene.book.requests.get(request).map(|asked| &asked.what);
                if let Some(Request::CancelRun { batch, task, run }) = asked
                    && let Some(key) = scene.book.latest.get(batch)
                    && scene.book.batches.get(key).is_some_and(|batch| batch.submitted)
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
                    "somebody heard of {before:?} before, and now of {result:?}"
                );
            }
            Action::Deliver { batch, results, .. } => {
                let payloads = payloads(results);
                let before = self.delivered.entry(*batch).or_insert_with(|| payloads.clone());
                require!(
                    *before == payloads,
                    "the sink was handed {before:?} of {batch} before, and now {payloads:?}"
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

    fn restored(&mut self, scene: &CheckContext<'_>) -> CheckVerdict {
        for run in &self.cancelled {
            let over = self.runs.contains(run) || self.ended.contains(&run.0);
            require!(over, "{run:?} was cancelled, and is not");
        }
        for key in &self.acknowledged {
            let known = scene.core.batch_by_key(*key).is_some() || self.ended.contains(key);
            require!(known, "{key} was taken in, and there is no such batch");
        }
        let most = scene.book.config.limits.terminal_batches as usize;
        for (key, result) in &self.results {
            require!(self.ended.contains(key), "{key} was {}, and is not", result.state);
            let state = scene.core.batch_by_key(*key).and_then(|view| view.state);
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
