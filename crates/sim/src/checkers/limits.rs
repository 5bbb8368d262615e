//! Nothing grows beyond its limit.

use rollway_core::{Action, BatchKey, BatchType, CancelReason, Input, Request, RunnerState};

use super::{CheckContext, CheckVerdict, Checker, require};
use crate::ledger::SimLedger;

/// Counts what is kept.
#[derive(Debug, Default)]
pub(super) struct LimitsChecker {
    /// Whether the first batch had no room when the core began to look.
    full: Option<bool>,
    /// Runs that were cancelled for lack of room.
    no_room: u64,
}

impl Checker for LimitsChecker {
    fn name(&self) -> &'static str {
        "limits"
    }

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
        // Attempts under way may add to what is held; so none begins once there is no room.
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
        // When a batch has just ended, another one is the first.
        let moved = scene.actions.iter().any(|action| matches!(action, Action::DropTasks { .. }));
        let before = matches!(scene.input, Input::Restore(_));
        let right = no_room == self.no_room || moved || before || self.full == Some(true);
        require!(right, "{no_room} runs cancelled for lack of room, and there was room");
        self.no_room = no_room;
        let limits = &scene.book.config.limits;
        let within = |what: &str, count: usize, most: u64| {
            require!(count as u64 <= most, "{count} {what}, at most {most}");
            Ok(())
        };
        let active = scene.book.active.len();
        within("batches", active, limits.batches.into())?;
        // What brings waits to an end is never refused for lack of room.
        let waiters = scene.book.waiting().filter(|(_, asked)| {
            matches!(
                asked.what,
                Request::Collect { .. } | Request::Finalize { .. } | Request::WaitAll { .. }
            )
        });
        within("waiters", waiters.count(), limits.waiters.into())?;
        let mut open_tasks = 0;
        let mut remembered = 0;
        for view in scene.core.batches() {
            open_tasks += view.open_tasks as usize;
            remembered += 1;
        }
        within("open tasks", open_tasks, limits.open_tasks)?;
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

/// Tells whether a batch may add to the payloads that are held: those behind the first while half
/// of the budget is free, the first also while it holds less than half itself, and evals always.
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

/// Tells whether so many batches have no room that the core may not see those behind them: it looks
/// at a bounded number.
pub(super) fn crowded(scene: &CheckContext<'_>) -> bool {
    const LOOK_AHEAD: usize = 8;
    scene.book.active.values().filter(|key| !room(scene, **key)).count() >= LOOK_AHEAD
}

/// Returns the batch that is served first.
fn first_batch(scene: &CheckContext<'_>) -> Option<BatchKey> {
    let ranked = scene.book.active.iter().map(|(id, key)| (id.priority(), *key));
    ranked.min().map(|(_, key)| key)
}
