//! Every due evaluation runs once, with one version of the weights if that is required, and its
//! results are taken.

use std::collections::{BTreeMap, BTreeSet};

use rollway_core::explore::{PlanAction, PlanInput};

use super::{ExploreChecker, ExploreContext, ExploreEvent};
use crate::checkers::{CheckVerdict, require};
use crate::explore::process::ProcessEnd;

#[derive(Debug, Default)]
pub(super) struct Evals {
    /// Active evaluations, with their versions.
    under_way: BTreeMap<(usize, u64), u64>,
    over: BTreeSet<(usize, u64)>,
}

impl Evals {
    /// Returns the evaluations that must exist when an explorer is done.
    fn due(ctx: &ExploreContext<'_>, last: u64) -> BTreeSet<u64> {
        let plan_config = &ctx.options.plan_config;
        let Some(interval) = plan_config.eval_interval else { return BTreeSet::new() };
        let mut due: BTreeSet<u64> = (1..=last).filter(|it| it.is_multiple_of(interval)).collect();
        if plan_config.eval_on_startup {
            due.insert(0);
        }
        if plan_config.eval_at_end {
            due.insert(last);
        }
        due
    }

    fn done(&self, ctx: &ExploreContext<'_>) -> CheckVerdict {
        let last = ctx.explorer().checkpoint.finalized;
        let over = self.over.range((ctx.at, 0)..(ctx.at + 1, 0));
        let mut over: BTreeSet<u64> = over.map(|(_, step)| *step).collect();
        let evals = &ctx.explorer().evals;
        let newest = evals.last_key_value().map(|(step, work)| (*step, work.version));
        if ctx.options.plan_config.eval_at_end && ctx.options.plan_config.eval_interval.is_some() {
            let version = ctx.explorer().version;
            let is_last = newest.is_some_and(|(_, of)| of == version);
            require!(is_last, "the last evaluation is {newest:?}, and the weights are {version}");
            // The job ended early, and the last step was evaluated before.
            if newest.is_some_and(|(step, _)| step == last + 1) {
                over.remove(&(last + 1));
            }
        }
        let due = Self::due(ctx, last);
        require!(over == due, "evaluated were {over:?}, due were {due:?}");
        Ok(())
    }
}

impl ExploreChecker for Evals {
    fn on_event(&mut self, ctx: &ExploreContext<'_>, seen: &ExploreEvent<'_>) -> CheckVerdict {
        let at = ctx.at;
        let version = ctx.explorer().version;
        match *seen {
            ExploreEvent::Ordered(PlanAction::Evaluate(step)) => {
                require!(!self.over.contains(&(at, step)), "step {step} is evaluated again");
            }
            ExploreEvent::EvalBegan { step } => {
                let again = self.under_way.insert((at, step), version);
                require!(again.is_none(), "step {step} is evaluated twice");
            }
            ExploreEvent::Applied(PlanInput::EvalBegun(step)) => {
                let begun = ctx.explorer().evals.get(step).map(|work| work.version);
                let is_known = begun == Some(version);
                require!(is_known, "step {step} began with {begun:?}, and counts as {version}");
            }
            ExploreEvent::EvalEnded { step } => {
                require!(self.under_way.remove(&(at, step)).is_some(), "step {step} is not");
                self.over.insert((at, step));
            }
            ExploreEvent::Loaded { .. } | ExploreEvent::Started { .. }
                if ctx.options.plan_config.eval_single_version =>
            {
                for ((_, step), of) in self.under_way.range((at, 0)..(at + 1, 0)) {
                    require!(
                        *of == version,
                        "version {version} is loaded while step {step} is evaluated with {of}"
                    );
                }
            }
            ExploreEvent::Ended(ProcessEnd::Done) => return self.done(ctx),
            _ => {}
        }
        Ok(())
    }
}
