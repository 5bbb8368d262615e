//! No limit is exceeded.

use rollway_core::{Action, BatchKey, BatchType, CancelReason, Input, Request, RunnerState};

use super::{CheckContext, CheckVerdict, Checker, require};
use crate::ledger::SimLedger;

#[derive(Debug, Default)]
pub(super) struct LimitsChecker {
    /// Whether the first batch had no payload budget at the begin of the step.
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

    fn action(&mut self, scene: &CheckContext<'_>, action: &Action) -> CheckVerdict {
        self.look_at_first(scene);
        let Action::StartAttempt { batch, .. } = action else { return Ok(()) };
        // Open attempts may add payloads; so none begins without budget.
        let held = scene.book.held_bytes;
        let budget = scene.book.config.limits.payload_bytes;
        require!(
            room(scene, *batch),
            "an attempt of {batch} begins with {held} of {budget} bytes held"
        );
        Ok(())
    }

    fn settled(&mut self, scene: &CheckContext<'_>) -> CheckVerdict {
        self.look_at_first(scene);
        let no_room = scene.core.counters().runs.cancelled[CancelReason::NoRoom];
        // After the end of a batch, another one is the first.
        let moved = scene.actions.iter().any(|action| matches!(action, Action::DropTasks { .. }));
        let before = matches!(scene.input, Input::Restore(_));
        let right = no_room == self.no_room || moved || before || self.full == Some(true);
        require!(right, "{no_room} runs cancelled for lack of budget, and there was budget");
        self.no_room = no_room;
        let limits = &scene.book.config.limits;
        let within = |what: &str, count: usize, most: u64| {
            require!(count as u64 <= most, "{count} {what}, at most {most}");
            Ok(())
        };
        let active = scene.book.active.len();
        within("batches", active, limits.batches.into())?;
        // Requests that end waits are never refused for lack of room.
        let waiters = scene.book.waiting().filter(|(_, asked)| {
            matches!(
                asked.what,
                Request::Collect { .. } | Request::Finalize { .. } | Request::WaitAll { .. }
            )
        });
        within("waiters", waiters.count(), limits.waiters.into())?;
        let open_tasks: u64 = scene.core.batches().map(|view| view.open_tasks).sum();
        let remembered = scene.core.batches().count();
        within("open tasks", open_tasks as usize, limits.open_tasks)?;
        let terminal = u64::from(limits.terminal_batches);
        within("batches kept", remembered, terminal + active as u64)?;
        let alive = scene.core.runners().filter(|view| view.state != RunnerState::Stopped);
        within("runners", alive.count(), limits.runners.into())
    }
}

impl LimitsChecker {
    fn look_at_first(&mut self, scene: &CheckContext<'_>) {
        let full = || first_batch(scene).is_some_and(|first| !room(scene, first));
        self.full.get_or_insert_with(full);
    }
}

/// Returns whether a batch may add payloads: batches behind the first while half of the budget is
/// free, the first also while it holds less than half itself, and evals always.
pub(super) fn room(scene: &CheckContext<'_>, key: BatchKey) -> bool {
    let budget = scene.book.config.limits.payload_bytes;
    let held = scene.book.held_bytes;
    let Some(batch) = scene.book.batches.get(&key) else { return false };
    match batch.kind {
        BatchType::Eval => true,
        BatchType::Train if first_batch(scene) == Some(key) => {
            held < budget || batch.held_bytes < budget / 2
        }
        BatchType::Train => held < budget / 2,
    }
}

/// Returns whether so many batches have no budget that the core may not reach those behind them: it
/// checks a bounded number.
pub(super) fn crowded(scene: &CheckContext<'_>) -> bool {
    const LOOK_AHEAD: usize = 8;
    scene.book.active.values().filter(|key| !room(scene, **key)).count() >= LOOK_AHEAD
}

fn first_batch(scene: &CheckContext<'_>) -> Option<BatchKey> {
    let ranked = scene.book.active.iter().map(|(id, key)| (id.priority(), *key));
    ranked.min().map(|(_, key)| key)
}
