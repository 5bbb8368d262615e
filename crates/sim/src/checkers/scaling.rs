//! The number of runners follows the work: between its bounds, up at once, down slowly, and never
//! below the recent demand.

use std::collections::VecDeque;
use std::time::Duration;

use rollway_core::Time;

use super::dispatch_order::fresh_left;
use super::limits::{crowded, room};
use super::{CheckContext, CheckVerdict, Checker, require};
use crate::ledger::SimLedger;
use crate::reference_model::{Phase, Pool};

#[derive(Debug, Default)]
pub(super) struct Scaling {
    wanted: Option<u32>,
    /// Number of busy runners, from each of these times on.
    busy: VecDeque<(Time, u32)>,
}

impl Checker for Scaling {
    fn crashed(&mut self, _: &SimLedger) {
        *self = Self::default();
    }

    fn settled(&mut self, ctx: &CheckContext<'_>) -> CheckVerdict {
        let Some(bounds) = ctx.model.config.scaling else { return Ok(()) };
        if ctx.model.pool != Pool::Running {
            *self = Self::default();
            return Ok(());
        }
        let most = bounds.max.min(ctx.model.config.limits.runners);
        let least = bounds.min.min(most);
        let wanted = ctx.core.wanted();
        let together = bounds.runners_per_worker.max(1);
        require!(
            (least..=most).contains(&wanted),
            "{wanted} runners are wanted, not {least} to {most}"
        );
        let whole = wanted.is_multiple_of(together) || wanted == least || wanted == most;
        require!(whole, "{wanted} runners are no whole workers of {together}");
        let busy = ctx.model.slots.values().filter(|slot| slot.phase.is_given()).count() as u32;
        self.note(ctx.now, busy, bounds.idle_timeout);
        let waits = waiting(ctx);
        let needed = u64::from(busy) + waits;
        require!(
            waits == 0 || u64::from(wanted) >= needed.min(most.into()),
            "{busy} runners are busy, {waits} more could be, and {wanted} are wanted"
        );
        let before = self.wanted.replace(wanted).unwrap_or(wanted);
        if wanted > before {
            let pending = ctx.core.counters().runs.pending;
            let useful = u64::from(busy) + pending + u64::from(together);
            require!(u64::from(wanted) < useful, "{wanted} runners are wanted for {useful}");
        }
        if wanted < before {
            let step = together + before / 8;
            require!(before - wanted <= step, "from {before} runners to {wanted} in one step");
            let needed = self.busy.iter().map(|(_, busy)| *busy).max().unwrap_or_default();
            require!(
                needed.min(most) <= wanted,
                "{needed} runners were busy within {:?}, and {wanted} are wanted",
                bounds.idle_timeout
            );
        }
        Ok(())
    }
}

impl Scaling {
    /// Records the number of busy runners for the idle timeout.
    fn note(&mut self, now: Time, busy: u32, quiet: Duration) {
        if self.busy.back().is_none_or(|(_, last)| *last != busy) {
            self.busy.push_back((now, busy));
        }
        while self.busy.get(1).is_some_and(|(since, _)| since.after(quiet) <= now) {
            self.busy.pop_front();
        }
    }
}

/// Returns how many more runners waiting runs could certainly use.
fn waiting(ctx: &CheckContext<'_>) -> u64 {
    let idle = ctx.model.slots.values().any(|slot| slot.phase == Phase::Idle);
    if idle || crowded(ctx) {
        return 0;
    }
    let most = ctx.model.config.max_repeat_times_per_runner.unwrap_or(u32::MAX).max(1);
    let keys = ctx.model.active.values().filter(|key| room(ctx, **key));
    keys.map(|key| fresh_left(ctx, *key).div_ceil(most.into())).sum()
}
