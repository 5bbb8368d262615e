//! Nothing leaves before it is safe, and nothing leaves twice: a payload that was accepted is held,
//! on its way out, delivered, or dropped under a name; and the sink has what the results say.

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

/// Follows every payload.
#[derive(Debug, Default)]
pub(super) struct PayloadSafetyChecker {
    results: BTreeMap<BatchKey, Arc<BatchResult>>,
    /// Payloads that the shell stores: received and neither dropped nor released.
    stored: BTreeSet<PayloadId>,
}

impl Checker for PayloadSafetyChecker {
    fn name(&self) -> &'static str {
        "kept"
    }

    fn input(&mut self, scene: &CheckContext<'_>) -> CheckVerdict {
        let restored = match scene.input {
            Input::Restore(LedgerRecord::RunEnded {
                ending: RunEnd::Succeeded(RunOutput { payload, .. }),
                ..
            }) if scene.believed => *payload,
            _ => None,
        };
        let received = reported_payload(scene.input).or(restored);
        self.stored.extend(received.map(|payload| payload.id));
        Ok(())
    }

    fn action(&mut self, scene: &CheckContext<'_>, action: &Action) -> CheckVerdict {
        match action {
            Action::DropPayload { payload, reason } => {
                self.stored.remove(&payload.id);
                may_drop(scene, *payload, *reason)
            }
            Action::ReleasePayloads(payloads) => {
                for id in payloads {
                    require!(self.stored.remove(id), "payload {id} is released and not stored");
                    let state = scene.book.payloads.get(id).map(|kept| kept.place);
                    let delivered = state == Some(PayloadState::Delivered);
                    require!(delivered, "payload {id} is released: {state:?}");
                }
                Ok(())
            }
            Action::Deliver { lease, batch, results } => {
                let known = scene.book.leases.contains_key(lease);
                require!(!known, "delivery {lease} is ordered twice");
                let busy = scene
                    .book
                    .leases
                    .iter()
                    .find(|(_, other)| other.open && other.to_sink && other.batch == *batch);
                require!(busy.is_none(), "{lease} delivers what {busy:?} does");
                all_there(scene, *batch, results)?;
                may_leave(scene, *batch, results)
            }
            Action::Respond { request, answer } => self.answer(scene, *request, answer),
            Action::DropTasks { batch } => nothing_left(scene, *batch),
            _ => Ok(()),
        }
    }

    fn crashed(&mut self, ledger: &SimLedger) {
        let ended = ledger.ended();
        self.results.retain(|key, _| ended.contains(key));
        self.stored.clear();
    }

    fn settled(&mut self, scene: &CheckContext<'_>) -> CheckVerdict {
        let counters = scene.core.counters();
        require!(
            counters.payloads_held == scene.book.held
                && counters.payload_bytes_held == scene.book.held_bytes,
            "{} payloads of {} bytes are held, not {} of {}",
            scene.book.held,
            scene.book.held_bytes,
            counters.payloads_held,
            counters.payload_bytes_held
        );
        let stored = self.stored.len() as u64;
        require!(stored == counters.payloads_held, "{stored} payloads are stored, not released");
        if let Some(payload) = reported_payload(scene.input) {
            nothing_ignored(scene, payload)?;
        }
        let twice = scene.sink.conflicts.first();
        require!(twice.is_none(), "the sink got two results of {twice:?}");
        Ok(())
    }

    fn ended(&mut self, scene: &CheckContext<'_>) -> CheckVerdict {
        for (id, kept) in &scene.book.payloads {
            let gone = matches!(kept.place, PayloadState::Delivered | PayloadState::Dropped(_));
            require!(gone, "payload {id} is left: {kept:?}");
        }
        for (key, result) in &self.results {
            let (stored, delivered) = (scene.sink.count(*key), result.delivered);
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
        scene: &CheckContext<'_>,
        request: RequestId,
        answer: &Response,
    ) -> CheckVerdict {
        match answer {
            Response::Finalized(result) | Response::Aborted(Some(result)) => {
                let first = !self.results.contains_key(&result.key);
                self.results.insert(result.key, Arc::clone(result));
                if first { result_is_true(scene, result) } else { Ok(()) }
            }
            Response::Collected(CollectedResults { results, lease, .. }) => {
                require!(lease.is_some() != results.is_empty(), "{lease:?} for {}", results.len());
                let name = scene.book.requests.get(&request).and_then(|asked| asked.batch());
                match name.and_then(|name| scene.book.latest.get(name)) {
                    Some(batch) => may_leave(scene, *batch, results),
                    None => Ok(()),
                }
            }
            Response::Refused(
                Refusal::TimedOut { batch, .. }
                | Refusal::SinkFailed { batch, .. }
                | Refusal::TooFewSucceeded { batch, .. }
                | Refusal::TasksCancelled { batch, .. },
            ) => nothing_cut(scene, request, batch),
            _ => Ok(()),
        }
    }
}

/// Whoever is refused has changed nothing. Somebody else who is answered in the same step may have.
fn nothing_cut(scene: &CheckContext<'_>, request: RequestId, batch: &BatchId) -> CheckVerdict {
    let key = scene.book.latest.get(batch).copied();
    let mut cut = None;
    for action in scene.actions {
        match action {
            Action::Respond { request: other, .. } if *other != request => return Ok(()),
            Action::DropPayload { payload, reason: DropReason::PartialTask } => {
                let kept = scene.book.payloads.get(&payload.id);
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

fn may_drop(scene: &CheckContext<'_>, payload: Payload, reason: DropReason) -> CheckVerdict {
    let id = payload.id;
    let Some(kept) = scene.book.payloads.get(&id) else {
        return Err(format!("payload {id} is dropped and never came"));
    };
    // A stop that has lasted long enough ends deliveries; what they carried is then uncertain.
    let stopped = reason == DropReason::Stopped && matches!(kept.place, PayloadState::Leased(_));
    require!(kept.place == PayloadState::Held || stopped, "payload {id} is dropped: {kept:?}");
    require!(kept.bytes == payload.bytes, "payload {id} has {} bytes", kept.bytes);
    let stray = matches!(reason, DropReason::Late | DropReason::Duplicate | DropReason::TooLarge);
    require!(stray != kept.accepted, "payload {id} is dropped as {reason}: {kept:?}");
    let kind = kept.origin.and_then(|(batch, ..)| scene.book.batches.get(&batch));
    let eval = kind.is_some_and(|batch| batch.kind == BatchType::Eval);
    require!(stray || eval == (reason == DropReason::Eval), "payload {id} is dropped as {reason}");
    Ok(())
}

/// Returns the payload of a reported run.
fn reported_payload(input: &Input) -> Option<Payload> {
    match input {
        Input::Report { report: RunnerReport::RunFinished { outcome: Ok(output), .. }, .. } => {
            output.payload
        }
        _ => None,
    }
}

/// A payload of an ignored report, or one that is too large, is dropped at once.
fn nothing_ignored(scene: &CheckContext<'_>, payload: Payload) -> CheckVerdict {
    let Some(kept) = scene.book.payloads.get(&payload.id) else { return Ok(()) };
    let dropped = matches!(kept.place, PayloadState::Dropped(_));
    require!(kept.accepted || dropped, "payload {} is kept and did not count", payload.id);
    Ok(())
}

fn may_leave(scene: &CheckContext<'_>, batch: BatchKey, results: &[TaskResult]) -> CheckVerdict {
    for result in results {
        let task = result.task;
        let handed = scene.book.task(batch, task).map_or(0, |task| task.handed);
        require!(handed == 0, "{batch} {task} is handed out again");
        let mut last = None;
        for payload in &result.payloads {
            let id = payload.id;
            let Some(kept) = scene.book.payloads.get(&id) else {
                return Err(format!("payload {id} leaves and never came"));
            };
            require!(kept.place == PayloadState::Held, "payload {id} leaves: {kept:?}");
            let (from, of, run) = kept.origin.unwrap_or((BatchKey(u64::MAX), task, 0));
            require!((from, of) == (batch, task), "payload {id} is of {from} {of}");
            require!(last < Some(run), "payload {id} of run {run} comes after {last:?}");
            last = Some(run);
        }
        group_is_right(scene, batch, result)?;
    }
    Ok(())
}

/// A task yields what all its good runs yielded, or nothing: where groups are whole or not at all.
fn group_is_right(scene: &CheckContext<'_>, key: BatchKey, result: &TaskResult) -> CheckVerdict {
    let Some(batch) = scene.book.batches.get(&key) else { return Ok(()) };
    let Some(task) = batch.tasks.get(result.task.0 as usize) else { return Ok(()) };
    let whole = scene.book.config.failures.groups == GroupPolicy::Whole && !result.status.ok();
    let nothing = whole || batch.kind == BatchType::Eval;
    let yielded = task.runs.iter().filter(|run| {
        matches!(run.state, RunState::Succeeded { payload: Some(_), .. }) && !nothing
    });
    let (yielded, there) = (yielded.count(), result.payloads.len());
    require!(there == yielded, "{key} {} has {there} payloads, not {yielded}", result.task);
    Ok(())
}

/// A delivery to the sink carries every payload that the batch holds.
fn all_there(scene: &CheckContext<'_>, batch: BatchKey, results: &[TaskResult]) -> CheckVerdict {
    let carried = results.iter().map(|result| result.payloads.len()).sum::<usize>();
    let held = scene.book.payloads.values().filter(|kept| {
        let theirs = kept.origin.is_some_and(|(from, ..)| from == batch);
        theirs && kept.accepted && kept.place == PayloadState::Held
    });
    let held = held.count();
    require!(carried == held, "{carried} of {held} payloads of {batch} are delivered");
    Ok(())
}

fn nothing_left(scene: &CheckContext<'_>, batch: BatchKey) -> CheckVerdict {
    let left = scene.book.payloads.iter().find(|(_, kept)| {
        let theirs = kept.origin.is_some_and(|(from, ..)| from == batch);
        theirs && matches!(kept.place, PayloadState::Held | PayloadState::Leased(_))
    });
    require!(left.is_none(), "{batch} ends and leaves {left:?}");
    Ok(())
}

fn result_is_true(scene: &CheckContext<'_>, result: &BatchResult) -> CheckVerdict {
    let key = result.key;
    let Some(batch) = scene.book.batches.get(&key) else { return Ok(()) };
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
    let payloads = batch.tasks.iter().flat_map(|task| &task.runs);
    let good =
        payloads.filter(|run| matches!(run.state, RunState::Succeeded { payload: Some(_), .. }));
    let good = good.count() as u64;
    let known = result.delivered + batch.dropped.total();
    require!(known == good, "{good} payloads of {key}, {known} accounted for: {result:?}");
    Ok(())
}
