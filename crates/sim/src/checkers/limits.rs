//! No limit is exceeded.

use rollway_core::{Action, BatchKey, BatchType, CancelReason, Input, Request, RunnerState};

use super::{CheckContext, CheckVerdict, Checker, require};
use crate::ledger::SimLedger;

#[derive(Debug, Default)]
pub(super) struct LimitsChecker {
    /// True if the first batch had no payload budget at the start of the step.
    full: Option<bool>,
    /// Runs that were cancelled for lack of payload budget.
    no_room: u64,
}

impl Checker for LimitsChecker {
    fn input(&mut self, _: &CheckContext<'_>) -> CheckVerdict {
        self.full = None;
        Ok(())
    }

    fn crashed(&mut self, _: &SimLedger) {
        *self = Self::default();
    }

    fn action(&mut self, ctx: &CheckContext<'_>, action: &Action) -> CheckVerdict {
        self.look_at_first(ctx);
        let Action::StartAttempt { batch, .. } = action else { return Ok(()) };
        // Open attempts may add payloads; so none begins without budget.
        let held = ctx.model.held_bytes;
        let budget = ctx.model.config.limits.payload_bytes;
        require!(
            room(ctx, *batch),
            "an attempt of {batch} begins with {held} of {budget} bytes held"
        );
        Ok(())
    }

    fn settled(&mut self, ctx: &CheckContext<'_>) -> CheckVerdict {
        self.look_at_first(ctx);
        let no_room = ctx.core.counters().runs.cancelled[CancelReason::NoRoom];
        // After the end of a batch, another one is the first.
        let moved = ctx.actions.iter().any(|action| matches!(action, Action::DropTasks { .. }));
        let before = matches!(ctx.input, Input::Restore(_));
        let right = no_room == self.no_room || moved || before || self.full == Some(true);
        require!(right, "{no_room} runs cancelled for lack of budget, and there was budget");
        self.no_room = no_room;
        let limits = &ctx.model.config.limits;
        let within = |what: &str, count: usize, most: u64| {
            require!(count as u64 <= most, "{count} {what}, at most {most}");
            Ok(())
        };
        let active = ctx.model.active.len();
        within("batches", active, limits.batches.into())?;
        // Requests that end waits are never refused for lack of room.
        let waiters = ctx.model.waiting().filter(|(_, asked)| {
            matches!(
                asked.what,
                Request::Collect { .. } | Request::Finalize { .. } | Request::WaitAll { .. }
            )
        });
        within("waiters", waiters.count(), limits.waiters.into())?;
        let open_tasks: u64 = ctx.core.batches().map(|view| view.open_tasks).sum();
        let remembered = ctx.core.batches().count();
        within("open tasks", open_tasks as usize, limits.open_tasks)?;
        let terminal = u64::from(limits.terminal_batches);
        within("batches kept", remembered, terminal + active as u64)?;
        let alive = ctx.core.runners().filter(|view| view.state != RunnerState::Stopped);
        within("runners", alive.count(), limits.runners.into())
    }
}

impl LimitsChecker {
    fn look_at_first(&mut self, ctx: &CheckContext<'_>) {
        let full = || first_batch(ctx).is_some_and(|first| !room(ctx, first));
        self.full.get_or_insert_with(full);
    }
}

/// Returns whether a batch may add payloads: batches behind the first while half of the budget is
/// free, the first also while it holds less than half itself, and evals always.
pub(super) fn room(ctx: &CheckContext<'_>, key: BatchKey) -> bool {
    let budget = ctx.model.config.limits.payload_bytes;
    let held = ctx.model.held_bytes;
    let Some(batch) = ctx.model.batches.get(&key) else { return false };
    match batch.kind {
        BatchType::Eval => true,
        BatchType::Train if first_batch(ctx) == Some(key) => {
            held < budget || batch.held_bytes < budget / 2
        }
        BatchType::Train => held < budget / 2,
    }
}

/// Returns whether so many batches have no budget that the core may not reach those behind them: it
/// checks a bounded number.
pub(super) fn crowded(ctx: &CheckContext<'_>) -> bool {
    const LOOK_AHEAD: usize = 8;
    ctx.model.active.values().filter(|key| !room(ctx, **key)).count() >= LOOK_AHEAD
}

fn first_batch(ctx: &CheckContext<'_>) -> Option<BatchKey> {
    let ranked = ctx.model.active.iter().map(|(id, key)| (id.priority(), *key));
    ranked.min().map(|(_, key)| key)
}
