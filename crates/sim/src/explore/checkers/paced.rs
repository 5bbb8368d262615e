//! No step begins before its period or its window allows it.

use std::collections::BTreeMap;

use rollway_core::explore::{PlanAction, PlanInput, PlanStyle};

use super::{ExploreChecker, ExploreContext, ExploreEvent};
use crate::checkers::{CheckVerdict, require};

#[derive(Debug, Default)]
pub(super) struct Paced {
    explorers: BTreeMap<usize, Ahead>,
}

#[derive(Debug, Default)]
struct Ahead {
    begun: u64,
    finalized: u64,
    /// Last step that a weight sync followed.
    synced: u64,
}

impl ExploreChecker for Paced {
    fn on_event(&mut self, ctx: &ExploreContext<'_>, seen: &ExploreEvent<'_>) -> CheckVerdict {
        let plan_config = &ctx.options.plan_config;
        let ahead = self.explorers.entry(ctx.at).or_default();
        match *seen {
            ExploreEvent::Applied(PlanInput::Begun(step)) => ahead.begun = *step,
            ExploreEvent::Applied(PlanInput::Finalized { step, .. }) => ahead.finalized = *step,
            ExploreEvent::Applied(PlanInput::Synced(_)) => ahead.synced = ahead.finalized,
            ExploreEvent::Ordered(PlanAction::BeginStep(step))
                if plan_config.style == PlanStyle::FullyAsync =>
            {
                let inflight = step.saturating_sub(ahead.finalized);
                let most = plan_config.max_inflight;
                require!(inflight <= most, "{inflight} steps in flight, and {most} may be");
            }
            ExploreEvent::Ordered(PlanAction::BeginStep(step)) => {
                let past = ahead.synced.max(plan_config.sync_offset) - plan_config.sync_offset;
                let until = plan_config.sync_offset
                    + (past / plan_config.sync_interval + 1) * plan_config.sync_interval;
                require!(
                    step <= until,
                    "step {step} is begun before the weight sync after {until}"
                );
            }
            ExploreEvent::Ordered(PlanAction::Sync { step, .. }) => {
                let Ahead { begun, finalized, .. } = *ahead;
                require!(
                    step == begun && step == finalized,
                    "weights are synced after {step}, with {begun} begun and {finalized} finalized"
                );
            }
            _ => {}
        }
        Ok(())
    }
}
