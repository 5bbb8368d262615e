//! Every run ends exactly once, and the counts add up: in total, per batch, per task, and in every
//! result.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollway_core::{
    Action, AttemptCancelReason, BatchKey, BatchResult, BatchState, BatchView, CancelReason,
    DropReason, Refusal, Response, Status, StopReport, TaskId, TaskResult,
};

use super::{CheckContext, CheckVerdict, Checker, require};
use crate::ledger::SimLedger;
use crate::reference_model::{AttemptState, ModelAttempt, ModelBatch, ModelTask, Phase, RunState};

#[derive(Debug, Default)]
pub(super) struct RunConservationChecker {
    results: BTreeMap<BatchKey, Arc<BatchResult>>,
    /// Submitted batches that are closed, oldest first.
    over: Vec<BatchKey>,
}

impl Checker for RunConservationChecker {
    fn action(&mut self, ctx: &CheckContext<'_>, action: &Action) -> CheckVerdict {
        match action {
            Action::StartAttempt { batch, .. } => {
                let over = ctx.model.batches.get(batch).is_none_or(|batch| batch.forgotten);
                require!(!over, "an attempt of {batch}, which is closed");
            }
            Action::DropTasks { batch } => {
                let known = ctx.model.batches.get(batch).is_some_and(|batch| !batch.forgotten);
                require!(known, "{batch} is closed twice, or never began");
                if ctx.model.batches.get(batch).is_some_and(|batch| batch.submitted) {
                    self.over.push(*batch);
                }
            }
            Action::Deliver { batch, results, .. } => tasks_add_up(ctx, *batch, results)?,
            Action::Respond { request, answer } => match answer {
                Response::Finalized(result) => self.result(ctx, result, BatchState::Finalized)?,
                Response::Aborted(Some(result)) => self.result(ctx, result, BatchState::Aborted)?,
                Response::Collected(collected) => {
                    if let Some(batch) = ctx.model.batch_of(*request) {
                        tasks_add_up(ctx, batch, &collected.results)?;
                    }
                    let have = collected.results.len() as u64;
                    require!(have <= collected.expected, "{have} of {} tasks", collected.expected);
                }
                Response::Stopped(report) => stop_adds_up(ctx, report)?,
                Response::Refused(Refusal::NotRegistered { batch }) => {
                    let most = ctx.model.config.limits.terminal_batches as usize;
                    let key = ctx.model.latest.get(batch);
                    let last = self.over.iter().rev().take(most).find(|over| key == Some(over));
                    require!(last.is_none(), "{batch} ({last:?}) has ended and is unknown");
                }
                _ => {}
            },
            _ => {}
        }
        Ok(())
    }

    fn crashed(&mut self, ledger: &SimLedger) {
        self.over = ledger.ended();
        self.results.retain(|key, _| self.over.contains(key));
    }

    fn settled(&mut self, ctx: &CheckContext<'_>) -> CheckVerdict {
        let counters = ctx.core.counters();
        require!(counters.balanced(), "the counters do not add up: {counters:?}");
        let (runs, model) = (&counters.runs, &ctx.model);
        require!(
            runs.submitted == model.submitted && runs.succeeded == model.succeeded,
            "{} runs submitted and {} succeeded, but {runs:?}",
            model.submitted,
            model.succeeded
        );
        let requested = runs.cancelled[CancelReason::Requested];
        require!(
            requested == model.requested,
            "{} cancelled runs, not {requested}",
            model.requested
        );
        for key in model.active.values() {
            let Some(view) = ctx.core.batch_by_key(*key) else {
                return Err(format!("batch {key} is missing"));
            };
            batch_adds_up(&view, &model.batches[key])?;
            under_way_adds_up(ctx, *key, &view)?;
        }
        Ok(())
    }

    fn ended(&mut self, ctx: &CheckContext<'_>) -> CheckVerdict {
        let runs = ctx.core.counters().runs;
        require!(runs.pending == 0 && runs.running == 0, "runs are left in the end: {runs:?}");
        for (key, batch) in &ctx.model.batches {
            require!(batch.forgotten, "batch {} ({key}) was never closed", batch.id);
        }
        Ok(())
    }
}

impl RunConservationChecker {
    /// Checks the final result of a batch, which must not change when it is repeated.
    fn result(
        &mut self,
        ctx: &CheckContext<'_>,
        result: &Arc<BatchResult>,
        state: BatchState,
    ) -> CheckVerdict {
        let key = result.key;
        if let Some(before) = self.results.get(&key) {
            require!(before == result, "the result of {key} was {before:?} and is {result:?}");
            return Ok(());
        }
        self.results.insert(key, Arc::clone(result));
        require!(result.state == state, "{key} is {} as a result of {state}", result.state);
        let Some(batch) = ctx.model.batches.get(&key) else {
            return Err(format!("a result of the unknown {key}"));
        };
        let right = result.batch == batch.id && result.kind == batch.kind;
        require!(right, "{key} is mislabelled as {} {}", result.kind, result.batch);
        let (tasks, runs) = (&result.tasks, &result.runs);
        let (expected, submitted) = (batch.tasks.len() as u64, submitted(batch));
        require!(tasks.total() == expected, "{key} had {expected} tasks, not {tasks:?}");
        require!(
            runs.balanced() && runs.pending == 0 && runs.running == 0,
            "runs of {key} are left: {runs:?}"
        );
        require!(
            runs.submitted == submitted && runs.succeeded == succeeded(batch),
            "{key} had {submitted} runs, {} succeeded, not {runs:?}",
            succeeded(batch)
        );
        let finished = result.finished();
        let listed = result.statuses.len() as u64;
        require!(listed == finished, "{key} lists {listed} of {finished} tasks");
        statuses_add_up(ctx, key, result.statuses.iter().map(|(task, status)| (*task, &**status)))
    }
}

fn tasks_add_up(ctx: &CheckContext<'_>, key: BatchKey, results: &[TaskResult]) -> CheckVerdict {
    statuses_add_up(ctx, key, results.iter().map(|result| (result.task, &*result.status)))?;
    for result in results {
        let yielded = result.payloads.len() as u32;
        require!(
            yielded <= result.status.completed_runs,
            "{key} {} has {yielded} payloads: {:?}",
            result.task,
            result.status
        );
    }
    Ok(())
}

fn statuses_add_up<'a>(
    ctx: &CheckContext<'_>,
    key: BatchKey,
    statuses: impl Iterator<Item = (TaskId, &'a Status)>,
) -> CheckVerdict {
    let mut last = None;
    for (id, status) in statuses {
        require!(last < Some(id), "{key} {id} comes after {last:?}");
        last = Some(id);
        let Some(task) = ctx.model.task(key, id) else {
            return Err(format!("a result of the unknown {key} {id}"));
        };
        status_adds_up(status, task, ctx.model.config.limits.message_bytes)
            .and_then(|()| attempts_add_up(ctx, (key, id), status))
            .map_err(|what| format!("{key} {id}: {what} in {status:?}"))?;
    }
    Ok(())
}

fn status_adds_up(status: &Status, task: &ModelTask, message_bytes: u32) -> CheckVerdict {
    let good: Vec<f64> = (task.runs.iter())
        .filter_map(|run| match run.state {
            RunState::Succeeded { label, .. } => Some(label),
            _ => None,
        })
        .collect();
    let (failed, cancelled) = (status.failed_runs.total(), status.cancelled_runs.total());
    let total = u64::from(status.total_runs);
    require!(status.total_runs == task.spec.repeat_times, "{} runs", task.spec.repeat_times);
    require!(status.completed_runs as usize == good.len(), "{} good runs", good.len());
    require!(
        u64::from(status.completed_runs) + failed + cancelled == total,
        "the runs do not add up"
    );
    let requested = task.runs.iter().filter(|run| run.requested).count() as u64;
    let counted = status.cancelled_runs[CancelReason::Requested];
    require!(counted == requested, "{requested} runs were cancelled on request, not {counted}");
    let labels: Vec<f64> =
        status.run_metrics.iter().filter_map(|metrics| metrics.get("label")).collect();
    require!(labels == good, "metrics of {labels:?} instead of {good:?}");
    require!(status.first_error.is_some() == (failed > 0), "{:?}", status.first_error);
    if let Some(error) = &status.first_error {
        let known = task.runs.get(error.run.0 as usize).is_some_and(|run| !run.succeeded());
        require!(known && status.failed_runs[error.kind] > 0, "an unknown first error");
        require!(
            error.message.len() <= message_bytes as usize,
            "an error message that is too long"
        );
    }
    Ok(())
}

/// A task that was not truncated reports the duration of each attempt.
fn attempts_add_up(
    ctx: &CheckContext<'_>,
    (batch, task): (BatchKey, TaskId),
    status: &Status,
) -> CheckVerdict {
    let own = |attempt: &&ModelAttempt| attempt.batch == batch && attempt.task == task;
    let attempts = ctx.model.attempts.values().filter(own).count();
    let listed = status.attempt_seconds.len();
    let cut = status.cancelled_runs.total() > 0;
    require!(listed == attempts || (cut && listed < attempts), "{listed} of {attempts} attempts");
    let right = status.attempt_seconds.iter().all(|seconds| *seconds >= 0.0);
    require!(right, "an attempt that ended before it began");
    Ok(())
}

/// The report of a stop equals the dropped payloads and names the affected batches.
fn stop_adds_up(ctx: &CheckContext<'_>, report: &StopReport) -> CheckVerdict {
    let lost = ctx
        .actions
        .iter()
        .filter(|action| matches!(action, Action::DropPayload { reason: DropReason::Stopped, .. }));
    let lost = lost.count() as u64;
    require!(report.undelivered == lost, "a stop loses {lost} payloads: {report:?}");
    let runs = report.pending_runs + report.running_runs;
    require!(
        runs == 0 || !report.batches.is_empty(),
        "a stop leaves {runs} runs of no batch behind: {report:?}"
    );
    for name in &report.batches {
        require!(ctx.model.latest.contains_key(name), "a stop leaves {name} behind");
    }
    Ok(())
}

fn batch_adds_up(view: &BatchView, batch: &ModelBatch) -> CheckVerdict {
    let BatchView { batch: name, runs, tasks, .. } = view;
    let submitted = submitted(batch);
    require!(runs.balanced(), "runs of {name} do not add up: {runs:?}");
    require!(runs.submitted == submitted, "{name} has {submitted} runs: {runs:?}");
    require!(runs.succeeded == succeeded(batch), "{name}: {} good: {runs:?}", succeeded(batch));
    let known = tasks.total() + view.open_tasks;
    require!(known == batch.tasks.len() as u64, "{name} has {known} tasks: {tasks:?}");
    Ok(())
}

/// Open runs are counted as running; runs of cancelled attempts may have been truncated meanwhile.
fn under_way_adds_up(ctx: &CheckContext<'_>, key: BatchKey, view: &BatchView) -> CheckVerdict {
    let attempts = ctx.model.slots.values().filter_map(|slot| match slot.phase {
        Phase::Given(attempt) => ctx.model.attempts.get(&attempt),
        Phase::Starting | Phase::Idle | Phase::Over => None,
    });
    let (mut current, mut cancelling) = (0, 0);
    for attempt in attempts.filter(|attempt| attempt.batch == key) {
        let runs = attempt.outstanding.len() as u64;
        match attempt.state {
            AttemptState::Current => current += runs,
            AttemptState::Cancelling(
                AttemptCancelReason::Timeout
                | AttemptCancelReason::BeginTimeout
                | AttemptCancelReason::Runs(CancelReason::Requested),
            ) => cancelling += runs,
            AttemptState::Cancelling(AttemptCancelReason::Runs(_)) | AttemptState::Over => {}
        }
    }
    let running = view.runs.running;
    require!(
        running >= current && running <= current + cancelling,
        "{key} has {current} running runs, and {cancelling} being cancelled: {:?}",
        view.runs
    );
    Ok(())
}

fn submitted(batch: &ModelBatch) -> u64 {
    batch.tasks.iter().map(|task| u64::from(task.spec.repeat_times)).sum()
}

fn succeeded(batch: &ModelBatch) -> u64 {
    batch.tasks.iter().flat_map(|task| &task.runs).filter(|run| run.succeeded()).count() as u64
}
