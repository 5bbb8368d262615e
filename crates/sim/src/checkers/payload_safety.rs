//! No payload is lost or leaves twice: an accepted payload is held, leased, delivered, or dropped
//! with a reason; and the sink has the payloads of the results.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rollway_core::{
    Action, BatchId, BatchKey, BatchResult, BatchState, BatchType, CollectedResults, DropReason,
    GroupPolicy, Input, LedgerRecord, Payload, PayloadId, Refusal, RequestId, Response, RunEnd,
    RunOutput, RunnerReport, TaskResult,
};

use super::{CheckContext, CheckVerdict, Checker, require};
use crate::ledger::SimLedger;
use crate::reference_model::{PayloadState, RunState};

#[derive(Debug, Default)]
pub(super) struct PayloadSafetyChecker {
    results: BTreeMap<BatchKey, Arc<BatchResult>>,
    /// Payloads that the shell stores: received and neither dropped nor released.
    stored: BTreeSet<PayloadId>,
}

impl Checker for PayloadSafetyChecker {
    fn input(&mut self, ctx: &CheckContext<'_>) -> CheckVerdict {
        let restored = match ctx.input {
            Input::Restore(LedgerRecord::RunEnded {
                ending: RunEnd::Succeeded(RunOutput { payload, .. }),
                ..
            }) if ctx.accepted => *payload,
            _ => None,
        };
        let received = reported_payload(ctx.input).or(restored);
        self.stored.extend(received.map(|payload| payload.id));
        Ok(())
    }

    fn action(&mut self, ctx: &CheckContext<'_>, action: &Action) -> CheckVerdict {
        match action {
            Action::DropPayload { payload, reason } => {
                self.stored.remove(&payload.id);
                may_drop(ctx, *payload, *reason)
            }
            Action::ReleasePayloads(payloads) => {
                for id in payloads {
                    require!(self.stored.remove(id), "payload {id} is released and not stored");
                    let state = ctx.model.payloads.get(id).map(|kept| kept.state);
                    let delivered = state == Some(PayloadState::Delivered);
                    require!(delivered, "payload {id} is released: {state:?}");
                }
                Ok(())
            }
            Action::Deliver { lease, batch, results } => {
                let known = ctx.model.leases.contains_key(lease);
                require!(!known, "delivery {lease} is ordered twice");
                let busy = ctx
                    .model
                    .leases
                    .iter()
                    .find(|(_, other)| other.open && other.to_sink && other.batch == *batch);
                require!(busy.is_none(), "{lease} delivers what {busy:?} does");
                all_there(ctx, *batch, results)?;
                may_leave(ctx, *batch, results)
            }
            Action::Respond { request, answer } => self.answer(ctx, *request, answer),
            Action::DropTasks { batch } => nothing_left(ctx, *batch),
            _ => Ok(()),
        }
    }

    fn crashed(&mut self, ledger: &SimLedger) {
        let ended = ledger.ended();
        self.results.retain(|key, _| ended.contains(key));
        self.stored.clear();
    }

    fn settled(&mut self, ctx: &CheckContext<'_>) -> CheckVerdict {
        let counters = ctx.core.counters();
        require!(
            counters.payloads_held == ctx.model.held
                && counters.payload_bytes_held == ctx.model.held_bytes,
            "{} payloads of {} bytes are held, not {} of {}",
            ctx.model.held,
            ctx.model.held_bytes,
            counters.payloads_held,
            counters.payload_bytes_held
        );
        let stored = self.stored.len() as u64;
        require!(stored == counters.payloads_held, "{stored} payloads are stored, not released");
        if let Some(payload) = reported_payload(ctx.input) {
            nothing_ignored(ctx, payload)?;
        }
        let twice = ctx.sink.conflicts.first();
        require!(twice.is_none(), "the sink has two results of {twice:?}");
        Ok(())
    }

    fn ended(&mut self, ctx: &CheckContext<'_>) -> CheckVerdict {
        for (id, kept) in &ctx.model.payloads {
            let gone = matches!(kept.state, PayloadState::Delivered | PayloadState::Dropped(_));
            require!(gone, "payload {id} is left at the end: {kept:?}");
        }
        for (key, result) in &self.results {
            let (stored, delivered) = (ctx.sink.count(*key), result.delivered);
            let most = match result.state {
                BatchState::Aborted => delivered + result.uncertain,
                _ => delivered,
            };
            require!(
                stored >= delivered && stored <= most,
                "the sink has {stored} payloads of {key}: {result:?}"
            );
        }
        Ok(())
    }
}

impl PayloadSafetyChecker {
    fn answer(
        &mut self,
        ctx: &CheckContext<'_>,
        request: RequestId,
        answer: &Response,
    ) -> CheckVerdict {
        match answer {
            Response::Finalized(result) | Response::Aborted(Some(result)) => {
                let first = !self.results.contains_key(&result.key);
                self.results.insert(result.key, Arc::clone(result));
                if first { result_is_true(ctx, result) } else { Ok(()) }
            }
            Response::Collected(CollectedResults { results, lease, .. }) => {
                require!(lease.is_some() != results.is_empty(), "{lease:?} for {}", results.len());
                match ctx.model.batch_of(request) {
                    Some(batch) => may_leave(ctx, batch, results),
                    None => Ok(()),
                }
            }
            Response::Refused(
                Refusal::TimedOut { batch, .. }
                | Refusal::SinkFailed { batch, .. }
                | Refusal::TooFewSucceeded { batch, .. }
                | Refusal::TasksCancelled { batch, .. },
            ) => nothing_cut(ctx, request, batch),
            _ => Ok(()),
        }
    }
}

/// A refused request changes nothing. Another response in the same step may have.
fn nothing_cut(ctx: &CheckContext<'_>, request: RequestId, batch: &BatchId) -> CheckVerdict {
    let key = ctx.model.latest.get(batch).copied();
    let mut cut = None;
    for action in ctx.actions {
        match action {
            Action::Respond { request: other, .. } if *other != request => return Ok(()),
            Action::DropPayload { payload, reason: DropReason::PartialTask } => {
                let kept = ctx.model.payloads.get(&payload.id);
                let origin = kept.and_then(|kept| kept.origin);
                if origin.map(|(batch, ..)| batch) == key {
                    cut = Some(payload.id);
                }
            }
            _ => {}
        }
    }
    require!(cut.is_none(), "{batch} is refused and loses {cut:?}");
    Ok(())
}

fn may_drop(ctx: &CheckContext<'_>, payload: Payload, reason: DropReason) -> CheckVerdict {
    let id = payload.id;
    let Some(kept) = ctx.model.payloads.get(&id) else {
        return Err(format!("payload {id} is dropped and was never received"));
    };
    // A stop that timed out ends deliveries; their payloads are then uncertain.
    let stopped = reason == DropReason::Stopped && matches!(kept.state, PayloadState::Leased(_));
    require!(kept.state == PayloadState::Held || stopped, "payload {id} is dropped: {kept:?}");
    require!(kept.bytes == payload.bytes, "payload {id} has {} bytes", kept.bytes);
    let stray = matches!(reason, DropReason::Late | DropReason::Duplicate | DropReason::TooLarge);
    require!(stray != kept.accepted, "payload {id} is dropped as {reason}: {kept:?}");
    let kind = kept.origin.and_then(|(batch, ..)| ctx.model.batches.get(&batch));
    let eval = kind.is_some_and(|batch| batch.kind == BatchType::Eval);
    require!(stray || eval == (reason == DropReason::Eval), "payload {id} is dropped as {reason}");
    Ok(())
}

fn reported_payload(input: &Input) -> Option<Payload> {
    match input {
        Input::Report { report: RunnerReport::RunFinished { outcome: Ok(output), .. }, .. } => {
            output.payload
        }
        _ => None,
    }
}

/// The payload of an ignored or too large report is dropped at once.
fn nothing_ignored(ctx: &CheckContext<'_>, payload: Payload) -> CheckVerdict {
    let Some(kept) = ctx.model.payloads.get(&payload.id) else { return Ok(()) };
    let dropped = matches!(kept.state, PayloadState::Dropped(_));
    require!(kept.accepted || dropped, "payload {} is kept and did not count", payload.id);
    Ok(())
}

fn may_leave(ctx: &CheckContext<'_>, batch: BatchKey, results: &[TaskResult]) -> CheckVerdict {
    for result in results {
        let task = result.task;
        let handed = ctx.model.task(batch, task).map_or(0, |task| task.handed);
        require!(handed == 0, "{batch} {task} is handed out again");
        let mut last = None;
        for payload in &result.payloads {
            let id = payload.id;
            let Some(kept) = ctx.model.payloads.get(&id) else {
                return Err(format!("payload {id} leaves and was never received"));
            };
            require!(kept.state == PayloadState::Held, "payload {id} leaves: {kept:?}");
            let (from, of, run) = kept.origin.unwrap_or((BatchKey(u64::MAX), task, 0));
            require!((from, of) == (batch, task), "payload {id} is of {from} {of}");
            require!(last < Some(run), "payload {id} of run {run} comes after {last:?}");
            last = Some(run);
        }
        group_is_right(ctx, batch, result)?;
    }
    Ok(())
}

/// A task yields the payloads of all its successful runs, or none if groups must be whole.
fn group_is_right(ctx: &CheckContext<'_>, key: BatchKey, result: &TaskResult) -> CheckVerdict {
    let Some(batch) = ctx.model.batches.get(&key) else { return Ok(()) };
    let Some(task) = batch.tasks.get(result.task.0 as usize) else { return Ok(()) };
    let whole = ctx.model.config.failures.groups == GroupPolicy::Whole && !result.status.ok();
    let nothing = whole || batch.kind == BatchType::Eval;
    let yielded = task.runs.iter().filter(|run| {
        matches!(run.state, RunState::Succeeded { payload: Some(_), .. }) && !nothing
    });
    let (yielded, there) = (yielded.count(), result.payloads.len());
    require!(there == yielded, "{key} {} has {there} payloads, not {yielded}", result.task);
    Ok(())
}

/// A delivery to the sink contains every payload that the batch holds.
fn all_there(ctx: &CheckContext<'_>, batch: BatchKey, results: &[TaskResult]) -> CheckVerdict {
    let carried = results.iter().map(|result| result.payloads.len()).sum::<usize>();
    let held = ctx
        .model
        .payloads
        .values()
        .filter(|kept| kept.of(batch) && kept.accepted && kept.state == PayloadState::Held);
    let held = held.count();
    require!(carried == held, "{carried} of {held} payloads of {batch} are delivered");
    Ok(())
}

fn nothing_left(ctx: &CheckContext<'_>, batch: BatchKey) -> CheckVerdict {
    let left = ctx.model.payloads.iter().find(|(_, kept)| {
        kept.of(batch) && matches!(kept.state, PayloadState::Held | PayloadState::Leased(_))
    });
    require!(left.is_none(), "{batch} ends and leaves {left:?}");
    Ok(())
}

fn result_is_true(ctx: &CheckContext<'_>, result: &BatchResult) -> CheckVerdict {
    let key = result.key;
    let Some(batch) = ctx.model.batches.get(&key) else { return Ok(()) };
    require!(
        result.delivered == batch.delivered,
        "{} payloads of {key} were delivered: {result:?}",
        batch.delivered
    );
    for reason in DropReason::ALL {
        let stray = matches!(
            reason,
            DropReason::Late | DropReason::Duplicate | DropReason::TooLarge | DropReason::Eval
        );
        let dropped = batch.dropped[*reason];
        require!(
            stray || result.dropped[*reason] == dropped,
            "{dropped} payloads of {key} were dropped as {reason}: {result:?}"
        );
    }
    let runs = batch.tasks.iter().flat_map(|task| &task.runs);
    let good = runs.filter(|run| matches!(run.state, RunState::Succeeded { payload: Some(_), .. }));
    let good = good.count() as u64;
    let known = result.delivered + batch.dropped.total();
    require!(known == good, "{good} payloads of {key}, {known} accounted for: {result:?}");
    Ok(())
}
