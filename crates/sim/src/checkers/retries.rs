//! Only runs without success are retried, as often and as late as the policy demands, on another
//! runner if there is one; failures of the infrastructure are not charged to the task.

use rollway_core::{Action, BatchKey, FailureKind, Response, RunnerId, Status, TaskId, TaskResult};

use super::{CheckContext, CheckVerdict, Checker, require};
use crate::reference_model::{ModelRun, Phase, RunState};

#[derive(Debug)]
pub(super) struct Retries;

impl Checker for Retries {
    fn action(&mut self, ctx: &CheckContext<'_>, action: &Action) -> CheckVerdict {
        match action {
            Action::StartAttempt { runner, batch, task, runs, suspected_losses, .. } => {
                let known = ctx.model.task(*batch, *task).map_or(0, |task| task.suspected_losses);
                require!(
                    known == *suspected_losses,
                    "{batch} {task} has killed {known}, not {suspected_losses}"
                );
                for run in runs.iter() {
                    let Some(record) = ctx.model.run(*batch, *task, run.0) else { continue };
                    may_try(ctx, record).map_err(|what| format!("{batch} {task} {run} {what}"))?;
                    // A run that hangs or kills its runner must not affect others again.
                    let alone = runs.count == 1 || record.state == RunState::Fresh;
                    require!(alone, "{batch} {task} {run} is retried together with others");
                    // Suspects return to the runner whose process they ended, in another process.
                    let here = !record.suspect && last_runner(ctx, record) == Some(*runner);
                    let elsewhere = other_idle(ctx, *runner).filter(|_| here);
                    require!(
                        elsewhere.is_none(),
                        "{batch} {task} {run} goes back to {runner}, not to {elsewhere:?}"
                    );
                }
                Ok(())
            }
            Action::Deliver { batch, results, .. } => not_too_early(ctx, *batch, results),
            Action::Respond { request, answer: Response::Collected(collected) } => {
                match ctx.model.batch_of(*request) {
                    Some(batch) => not_too_early(ctx, batch, &collected.results),
                    None => Ok(()),
                }
            }
            Action::Respond { answer: Response::Finalized(result), .. } => {
                for (task, status) in &result.statuses {
                    was_tried(ctx, result.key, *task, status)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn may_try(ctx: &CheckContext<'_>, run: &ModelRun) -> CheckVerdict {
    match run.state {
        RunState::Fresh => return Ok(()),
        RunState::Back => {}
        state => return Err(format!("is retried and was {state:?}")),
    }
    let policy = &ctx.model.config.failures;
    if let Some(kind) = run.last_failure {
        let (failures, retries) = (run.failures_like(kind), policy.rule(kind).retries);
        require!(
            failures <= u64::from(retries),
            "is retried after {failures} failures like {kind}, of which {retries} are retried"
        );
        let pause = policy.rule(kind).wait(u32::try_from(failures).unwrap_or(u32::MAX));
        let waited = ctx.now.since(run.failed_at);
        require!(waited >= pause, "is retried {waited:?} after a failure, not {pause:?}");
    }
    require!(
        run.suspected_losses < policy.poison_limit.max(1),
        "is retried after its task has killed {} runners",
        run.suspected_losses
    );
    Ok(())
}

fn last_runner(ctx: &CheckContext<'_>, run: &ModelRun) -> Option<RunnerId> {
    ctx.model.attempts.get(&run.last?).map(|attempt| attempt.runner)
}

fn other_idle(ctx: &CheckContext<'_>, runner: RunnerId) -> Option<RunnerId> {
    let mut idle = ctx.model.slots.iter().filter(|(_, slot)| slot.phase == Phase::Idle);
    idle.find(|(other, _)| **other != runner).map(|(other, _)| *other)
}

fn not_too_early(ctx: &CheckContext<'_>, batch: BatchKey, results: &[TaskResult]) -> CheckVerdict {
    for result in results {
        was_tried(ctx, batch, result.task, &result.status)?;
    }
    Ok(())
}

/// No run fails while its policy allows a retry.
fn was_tried(
    ctx: &CheckContext<'_>,
    batch: BatchKey,
    task: TaskId,
    status: &Status,
) -> CheckVerdict {
    let Some(record) = ctx.model.task(batch, task) else { return Ok(()) };
    let policy = &ctx.model.config.failures;
    for (kind, failed) in status.failed_runs.nonzero() {
        let retries = u64::from(policy.rule(kind).retries);
        let poisoned = record.suspected_losses >= policy.poison_limit.max(1);
        let poisoned = kind == FailureKind::RunnerLost && poisoned;
        let spent = |run: &&ModelRun| match run.state {
            RunState::Back if run.last_failure == Some(kind) => {
                run.failures_like(kind) > retries || poisoned
            }
            // A poison task is not dispatched again.
            RunState::Back | RunState::Fresh => poisoned,
            RunState::Failed(before) => before == kind,
            RunState::Given | RunState::Succeeded { .. } | RunState::Cancelled => false,
        };
        let spent = record.runs.iter().filter(spent).count() as u64;
        require!(
            failed <= spent,
            "{batch} {task}: {failed} runs failed by {kind}, {spent} had no retry left: {:?}",
            record.runs
        );
    }
    Ok(())
}
