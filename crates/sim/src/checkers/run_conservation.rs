//! Every run ends in exactly one way, and the counts add up: in total, per batch, per task, and in
//! everything that is handed to users.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollway_core::{
    Action, AttemptCancelReason, BatchKey, BatchResult, BatchState, BatchView, CancelReason,
    DropReason, Refusal, Response, Status, StopReport, TaskId, TaskResult,
};

use super::{CheckContext, CheckVerdict, Checker, require};
use crate::ledger::SimLedger;
use crate::reference_model::{AttemptState, ModelAttempt, ModelBatch, ModelTask, Phase, RunState};

/// Adds up.
#[derive(Debug, Default)]
pub(super) struct RunConservationChecker {
    results: BTreeMap<BatchKey, Arc<BatchResult>>,
    /// Submitted batches that have ended, oldest first.
    over: Vec<BatchKey>,
}

impl Checker for RunConservationChecker {
    fn name(&self) -> &'static str {
        "ends"
    }

    fn action(&mut self, scene: &CheckContext<'_>, action: &Action) -> CheckVerdict {
        match action {
            Action::StartAttempt { batch, .. } => {
                let over = scene.book.batches.get(batch).is_none_or(|batch| batch.forgotten);
                require!(!over, "an attempt of {batch}, which has come to its end");
            }
            Action::DropTasks { batch } => {
                let known = scene.book.batches.get(batch).is_some_and(|batch| !batch.forgotten);
                require!(known, "{batch} comes to its end twice, or never began");
                if scene.book.batches.get(batch).is_some_and(|batch| batch.submitted) {
                    self.over.push(*batch);
                }
            }
            Action::Deliver { batch, results, .. } => tasks_add_up(scene, *batch, results)?,
            Action::Respond { request, answer } => match answer {
                Response::Finalized(result) => self.result(scene, result, BatchState::Finalized)?,
                Response::Aborted(Some(result)) => {
                    self.result(scene, result, BatchState::Aborted)?
                }
                Response::Collected(collected) => {
                    let name = scene.book.requests.get(request).and_then(|asked| asked.batch());
                    let batch = name.and_then(|name| scene.book.latest.get(name));
                    if let Some(batch) = batch {
                        tasks_add_up(scene, *batch, &collected.results)?;
                    }
                    let have = collected.results.len() as u64;
                    require!(have <= collected.expected, "{have} of {} tasks", collected.expected);
                }
                Response::Stopped(report) => stop_adds_up(scene, report)?,
                Response::Refused(Refusal::NotRegistered { batch }) => {
                    let most = scene.book.config.limits.terminal_batches as usize;
                    let key = scene.book.latest.get(batch);
                    let last = self.over.iter().rev().take(most).find(|over| key == Some(over));
                    require!(last.is_none(), "{batch} ({last:?}) has ended and is forgotten");
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

    fn settled(&mut self, scene: &CheckContext<'_>) -> CheckVerdict {
        let counters = scene.core.counters();
        require!(counters.balanced(), "the counters do not add up: {counters:?}");
        let (runs, book) = (&counters.runs, &scene.book);
        require!(
            runs.submitted == book.submitted && runs.succeeded == book.succeeded,
            "{} runs submitted and {} succeeded, but {runs:?}",
            book.submitted,
            book.succeeded
        );
        let requested = runs.cancelled[CancelReason::Requested];
        require!(
            requested == book.requested,
            "{} runs were to go, not {requested}",
            book.requested
        );
        for key in book.active.values() {
            let Some(view) = scene.core.batch_by_key(*key) else {
                return Err(format!("batch {key} has vanished"));
            };
            batch_adds_up(&view, &book.batches[key])?;
            under_way_adds_up(scene, *key, &view)?;
        }
        Ok(())
    }

    fn ended(&mut self, scene: &CheckContext<'_>) -> CheckVerdict {
        let runs = scene.core.counters().runs;
        require!(runs.pending == 0 && runs.running == 0, "runs are left in the end: {runs:?}");
        for (key, batch) in &scene.book.batches {
            require!(batch.forgotten, "batch {} ({key}) never came to its end", batch.id);
        }
        Ok(())
    }
}

impl RunConservationChecker {
    /// Looks at the last word about a batch, which must not change when it is said again.
    fn result(
        &mut self,
        scene: &CheckContext<'_>,
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
        let Some(batch) = scene.book.batches.get(&key) else {
            return Err(format!("a result of {key}, which there never was"));
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
        statuses_add_up(scene, key, result.statuses.iter().map(|(task, status)| (*task, &**status)))
    }
}

fn tasks_add_up(scene: &CheckContext<'_>, key: BatchKey, results: &[TaskResult]) -> CheckVerdict {
    statuses_add_up(scene, key, results.iter().map(|result| (result.task, &*result.status)))?;
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
    scene: &CheckContext<'_>,
    key: BatchKey,
    statuses: impl Iterator<Item = (TaskId, &'a Status)>,
) -> CheckVerdict {
    let mut last = None;
    for (id, status) in statuses {
        require!(last < Some(id), "{key} {id} comes after {last:?}");
        last = Some(id);
        let Some(task) = scene.book.task(key, id) else {
            return Err(format!("a result of {key} {id}, which there never was"));
        };
        status_adds_up(status, task, scene.book.config.limits.message_bytes)
            .and_then(|()| attempts_add_up(scene, (key, id), status))
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
    let said = status.cancelled_runs[CancelReason::Requested];
    require!(said == requested, "{requested} runs were cancelled one by one, not {said}");
    let labels: Vec<f64> =
        status.run_metrics.iter().filter_map(|metrics| metrics.get("label")).collect();
    require!(labels == good, "metrics of {labels:?} instead of {good:?}");
    require!(status.first_error.is_some() == (failed > 0), "{:?}", status.first_error);
    if let Some(error) = &status.first_error {
        let known = task.runs.get(error.run.0 as usize).is_some_and(|run| !run.succeeded());
        require!(known && status.failed_runs[error.kind] > 0, "a strange first error");
        require!(error.message.len() <= message_bytes as usize, "an error that is too long");
    }
    Ok(())
}

/// A task that was not cut tells how long each of its attempts took.
fn attempts_add_up(
    scene: &CheckContext<'_>,
    (batch, task): (BatchKey, TaskId),
    status: &Status,
) -> CheckVerdict {
    let theirs = |attempt: &&ModelAttempt| attempt.batch == batch && attempt.task == task;
    let attempts = scene.book.attempts.values().filter(theirs).count();
    let told = status.attempt_seconds.len();
    let cut = status.cancelled_runs.total() > 0;
    require!(told == attempts || (cut && told < attempts), "{told} of {attempts} attempts");
    let right = status.attempt_seconds.iter().all(|seconds| *seconds >= 0.0);
    require!(right, "an attempt that ended before it began");
    Ok(())
}

/// What a stop left behind is what was dropped by it, and is named if there is any.
fn stop_adds_up(scene: &CheckContext<'_>, report: &StopReport) -> CheckVerdict {
    let lost = scene
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
        require!(scene.book.latest.contains_key(name), "a stop leaves {name} behind");
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

/// What is under way is counted as such; what is being cancelled may have been cut meanwhile.
fn under_way_adds_up(scene: &CheckContext<'_>, key: BatchKey, view: &BatchView) -> CheckVerdict {
    let theirs = scene.book.slots.values().filter_map(|slot| match slot.phase {
        Phase::Given(attempt) => scene.book.attempts.get(&attempt),
        Phase::Starting | Phase::Idle | Phase::Over => None,
    });
    let (mut current, mut cancelling) = (0, 0);
    for attempt in theirs.filter(|attempt| attempt.batch == key) {
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
        "{key} has {current} runs under way, and {cancelling} being cancelled: {:?}",
        view.runs
    );
    Ok(())
}

fn runs_of(batch: &ModelBatch) -> impl Iterator<Item = RunState> + '_ {
    batch.tasks.iter().flat_map(|task| &task.runs).map(|run| run.state)
}

fn submitted(batch: &ModelBatch) -> u64 {
    batch.tasks.iter().map(|task| u64::from(task.spec.repeat_times)).sum()
}

fn succeeded(batch: &ModelBatch) -> u64 {
    runs_of(batch).filter(|state| matches!(state, RunState::Succeeded { .. })).count() as u64
}
