//! Batches are served in the order of their ids, and fresh runs in order within a batch. Retries
//! may come before them.

use rollway_core::{Action, BatchKey, RunId, TaskId};

use super::limits::{crowded, room};
use super::{CheckContext, CheckVerdict, Checker, require};
use crate::reference_model::{ModelBatch, ModelRun, RunState};

#[derive(Debug)]
pub(super) struct DispatchOrderChecker;

impl Checker for DispatchOrderChecker {
    fn action(&mut self, ctx: &CheckContext<'_>, action: &Action) -> CheckVerdict {
        let Action::StartAttempt { batch, task, runs, .. } = action else { return Ok(()) };
        let Some(record) = ctx.model.batches.get(batch) else { return Ok(()) };
        let own = (record.id.priority(), *batch);
        for (id, key) in ctx.model.active.iter().filter(|_| !crowded(ctx)) {
            let before = (id.priority(), *key) < own;
            let waits = before && fresh_left(ctx, *key) > 0 && room(ctx, *key);
            require!(!waits, "an attempt of {batch} goes out while {id} ({key}) waits");
        }
        let is_fresh = |run: RunId| {
            ctx.model.run(*batch, *task, run.0).is_some_and(|run| run.state == RunState::Fresh)
        };
        if !runs.iter().all(is_fresh) {
            return Ok(());
        }
        let Some(first) = runs.iter().next() else {
            return Err(format!("an attempt of {batch} {task} without runs"));
        };
        let after = record.tasks.get(task.0 as usize).map_or(&[][..], |task| &task.runs);
        let after = after.iter().skip(first.0 as usize);
        let left = after.take_while(|run| run.state == RunState::Fresh).count() as u32;
        let most = ctx.model.config.max_repeat_times_per_runner.unwrap_or(u32::MAX);
        let count = most.max(1).min(left);
        require!(runs.count == count, "{batch} {task}: {runs:?} instead of {count} runs");
        let behind = passed_over(record, *task, first.0);
        // Runs that ended before their dispatch are skipped.
        let ended = ctx
            .core
            .batch_by_key(*batch)
            .map_or(0, |view| view.runs.cancelled.total() + view.runs.failed.total());
        require!(
            behind <= ended,
            "{batch} {task} {first} goes out before {behind} runs that came earlier"
        );
        let later = gone_before(record, *task, first.0);
        require!(later.is_none(), "{batch} {task} {first} goes out after {later:?}");
        Ok(())
    }
}

/// Returns the number of runs of a batch that certainly wait for their first dispatch.
pub(super) fn fresh_left(ctx: &CheckContext<'_>, key: BatchKey) -> u64 {
    let pending = ctx.core.batch_by_key(key).map_or(0, |view| view.runs.pending);
    let Some(batch) = ctx.model.batches.get(&key).filter(|_| pending > 0) else { return 0 };
    let failed = runs(batch).filter(|(.., run)| run.state == RunState::Back).count() as u64;
    pending.saturating_sub(failed)
}

/// Counts the runs before this one that were never dispatched.
fn passed_over(batch: &ModelBatch, task: TaskId, run: u32) -> u64 {
    let before = runs(batch).take_while(|(at, run_at, _)| (*at, *run_at) < (task.0, run));
    before.filter(|(.., run)| run.state == RunState::Fresh).count() as u64
}

/// Returns a run after this one that was dispatched already.
fn gone_before(batch: &ModelBatch, task: TaskId, run: u32) -> Option<(u32, u32)> {
    let after = runs(batch).filter(|(at, run_at, _)| (*at, *run_at) > (task.0, run));
    let mut sent = after.filter(|(.., run)| run.tries > 0 && !run.restored);
    sent.next().map(|(task, run, _)| (task, run))
}

fn runs(batch: &ModelBatch) -> impl Iterator<Item = (u32, u32, &ModelRun)> + '_ {
    (0..)
        .zip(&batch.tasks)
        .flat_map(|(at, task)| (0..).zip(&task.runs).map(move |(run, record)| (at, run, record)))
}
