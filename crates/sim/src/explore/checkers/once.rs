//! Every step is begun, delivered and finalized exactly once, in order.

use std::collections::{BTreeMap, BTreeSet};

use rollway_core::explore::{PlanAction, PlanInput};

use super::{ExploreChecker, ExploreContext, ExploreEvent};
use crate::checkers::{CheckVerdict, require};
use crate::explore::process::ProcessEnd;

#[derive(Debug, Default)]
pub(super) struct ExploreOnceChecker {
    /// Last begun and finalized steps.
    applied: BTreeMap<usize, (u64, u64)>,
    submitted: BTreeSet<(usize, u64)>,
    delivered: BTreeSet<(usize, u64)>,
}

impl ExploreChecker for ExploreOnceChecker {
    fn on_event(&mut self, ctx: &ExploreContext<'_>, seen: &ExploreEvent<'_>) -> CheckVerdict {
        let at = ctx.at;
        let (begun, finalized) = self.applied.entry(at).or_default();
        match *seen {
            ExploreEvent::Ordered(PlanAction::BeginStep(step)) => {
                require!(step == *begun + 1, "step {step} is begun after step {begun}");
            }
            ExploreEvent::Ordered(PlanAction::FinalizeStep(step)) => {
                require!(step == *finalized + 1, "step {step} is finalized after {finalized}");
                require!(step <= *begun, "step {step} is finalized and was not begun");
            }
            ExploreEvent::Applied(PlanInput::Begun(step)) => *begun = *step,
            ExploreEvent::Applied(PlanInput::Finalized { step, .. }) => *finalized = *step,
            ExploreEvent::Submitted { step } => {
                require!(self.submitted.insert((at, step)), "step {step} is submitted again");
            }
            ExploreEvent::Delivered { step } => {
                require!(self.delivered.insert((at, step)), "step {step} is delivered again");
            }
            ExploreEvent::Ended(ProcessEnd::Done) => {
                let count =
                    |set: &BTreeSet<(usize, u64)>| set.range((at, 0)..(at + 1, 0)).count() as u64;
                let (submitted, delivered) = (count(&self.submitted), count(&self.delivered));
                require!(submitted == *begun, "{submitted} steps submitted, {begun} begun");
                require!(delivered == *begun, "{delivered} of {begun} steps were delivered");
                require!(finalized == begun, "{finalized} of {begun} steps were finalized");
            }
            _ => {}
        }
        Ok(())
    }
}
