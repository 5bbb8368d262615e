//! Every outcome of a wait is true: the minimum is reached, the time is up, or the batch failed.

use rollway_core::{
    Action, BatchKey, BatchResult, BatchState, BatchView, CollectOutcome, CollectedResults,
    FailureKind, OnExhausted, Refusal, Request, Response,
};

use super::{CheckContext, CheckVerdict, Checker, require};
use crate::reference_model::{ModelBatch, ModelRequest, ModelRun};

#[derive(Debug)]
pub(super) struct WaitOutcomesChecker;

impl Checker for WaitOutcomesChecker {
    fn action(&mut self, ctx: &CheckContext<'_>, action: &Action) -> CheckVerdict {
        let Action::Respond { request, answer } = action else { return Ok(()) };
        let Some(asked) = ctx.model.requests.get(request) else { return Ok(()) };
        let verdict = match answer {
            Response::Finalized(result) => closed(ctx, result),
            Response::Collected(collected) => taken(ctx, asked, collected),
            Response::AllEnded => {
                let open: u64 = ctx.core.batches().map(|view| view.open_tasks).sum();
                require!(open == 0, "{request} is answered with {open} open tasks");
                Ok(())
            }
            Response::Refused(refusal) => refused(ctx, asked, refusal),
            _ => Ok(()),
        };
        verdict.map_err(|what| format!("{request}: {what}, and is answered {answer:?}"))
    }
}

/// A batch is finalized if it is complete, or enough tasks have finished.
fn closed(ctx: &CheckContext<'_>, result: &BatchResult) -> CheckVerdict {
    let Some(batch) = ctx.model.batches.get(&result.key) else { return Ok(()) };
    let (finished, expected) = (result.finished(), batch.tasks.len() as u64);
    let policy = ctx.model.config.policy(batch.kind);
    let quorum = policy.quorum_percent.is_some_and(|quorum| finished >= share(expected, quorum));
    let enough = batch.min_wait_num.is_some() && finished >= needed(batch);
    require!(
        result.complete() || enough || quorum,
        "{finished} of {expected} tasks have finished, {:?} were enough",
        batch.min_wait_num
    );
    let good = result.tasks.ok + result.tasks.partial;
    let wanted = share(expected, policy.success_min_percent);
    require!(good >= wanted, "{good} tasks have a good run, {wanted} must");
    let failed = result.runs.failed.nonzero().find(|(kind, _)| fails_batch(ctx, *kind));
    require!(failed.is_none(), "a batch is finalized that failed by {failed:?}");
    Ok(())
}

/// Returns whether too few tasks have a successful run for finalizing the batch now; perhaps also
/// if there are enough, since truncated tasks are counted as well.
pub(super) fn too_few_good(ctx: &CheckContext<'_>, key: BatchKey) -> bool {
    let (Some(batch), Some(view)) = (ctx.model.batches.get(&key), ctx.core.batch_by_key(key))
    else {
        return false;
    };
    let partial = ctx.model.config.over_rollout.return_partial_tasks;
    let ended = view.tasks.ok + view.tasks.partial;
    let good = batch.tasks.iter().filter(|task| task.runs.iter().any(ModelRun::succeeded)).count();
    let good = if partial && view.tasks.cancelled == 0 { good as u64 } else { ended };
    good < share(batch.tasks.len() as u64, ctx.model.config.policy(batch.kind).success_min_percent)
}

fn taken(
    ctx: &CheckContext<'_>,
    asked: &ModelRequest,
    collected: &CollectedResults,
) -> CheckVerdict {
    let Request::Collect { min_num, .. } = &asked.what else { return Ok(()) };
    let view = view_of(ctx, asked);
    match collected.outcome {
        CollectOutcome::Complete => {
            let open = view.map_or(0, |view| view.open_tasks);
            require!(open == 0, "{open} tasks are open");
        }
        CollectOutcome::Minimum => {
            let wanted = u64::from(min_num.unwrap_or(u32::MAX)).min(collected.expected);
            let have = collected.results.len() as u64;
            require!(have >= wanted, "{have} tasks are there, {wanted} were wanted");
            let grace = asked.at.after(ctx.model.config.over_rollout.wait_after_min);
            require!(ctx.now >= grace, "stragglers have time until {grace}");
        }
        CollectOutcome::TimedOut => not_early(ctx, asked)?,
        CollectOutcome::BatchFailed(kind) => failed_by(ctx, asked, kind)?,
        CollectOutcome::Aborted | CollectOutcome::Polled => {}
    }
    Ok(())
}

fn refused(ctx: &CheckContext<'_>, asked: &ModelRequest, refusal: &Refusal) -> CheckVerdict {
    match refusal {
        Refusal::TimedOut { state, finished, needed: said, expected, .. } => {
            not_early(ctx, asked)?;
            let Some(batch) = ctx.model.latest_batch_of(asked) else { return Ok(()) };
            let tasks = batch.tasks.len() as u64;
            let right = *expected == tasks && *said == needed(batch);
            require!(right, "there are {tasks} tasks, {} needed", needed(batch));
            let quorum = ctx.model.config.policy(batch.kind).quorum_percent;
            let enough = finished >= said || quorum.is_some_and(|q| *finished >= share(tasks, q));
            require!(*state == BatchState::Finalizing || !enough, "{finished} were enough");
            Ok(())
        }
        Refusal::TasksCancelled { finished, needed, .. } => {
            require!(finished < needed, "{finished} were enough");
            Ok(())
        }
        Refusal::TooFewSucceeded { succeeded, needed, .. } => {
            require!(succeeded < needed, "{succeeded} were enough");
            let Some(batch) = ctx.model.latest_batch_of(asked) else { return Ok(()) };
            // Truncated tasks do not count, nor do unfinished ones that would be dropped.
            let view = view_of(ctx, asked);
            let partial = ctx.model.config.over_rollout.return_partial_tasks;
            let whole = view.is_some_and(|view| view.tasks.cancelled == 0);
            let good = batch.tasks.iter().filter(|task| task.runs.iter().any(ModelRun::succeeded));
            let good = good.count() as u64;
            require!(!whole || !partial || *succeeded == good, "{good} tasks have a good run");
            Ok(())
        }
        Refusal::WaitAllTimedOut { .. } => not_early(ctx, asked),
        Refusal::BatchFailed { kind, .. } => failed_by(ctx, asked, *kind),
        _ => Ok(()),
    }
}

fn not_early(ctx: &CheckContext<'_>, asked: &ModelRequest) -> CheckVerdict {
    let until = asked.time_up(ctx.model);
    require!(ctx.now >= until, "has time until {until}");
    Ok(())
}

fn failed_by(ctx: &CheckContext<'_>, asked: &ModelRequest, kind: FailureKind) -> CheckVerdict {
    let failed = view_of(ctx, asked).is_none_or(|view| view.runs.failed[kind] > 0);
    require!(failed && fails_batch(ctx, kind), "no run failed the batch by {kind}");
    Ok(())
}

fn fails_batch(ctx: &CheckContext<'_>, kind: FailureKind) -> bool {
    ctx.model.config.failures.rule(kind).then == OnExhausted::FailBatch
}

fn view_of(ctx: &CheckContext<'_>, asked: &ModelRequest) -> Option<BatchView> {
    ctx.core.batch_by_key(*ctx.model.latest.get(asked.batch()?)?)
}

fn needed(batch: &ModelBatch) -> u64 {
    let expected = batch.tasks.len() as u64;
    batch.min_wait_num.map_or(expected, |min| u64::from(min).min(expected))
}

/// Returns `percent` of `all`, rounded up.
fn share(all: u64, percent: u8) -> u64 {
    (all * u64::from(percent)).div_ceil(100)
}
