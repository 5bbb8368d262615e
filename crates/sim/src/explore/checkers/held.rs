//! Evaluations do not delay anything else, unless each needs one version of the weights or too many
//! are active.

use rollway_core::explore::{PlanAction, PlanInput};

use super::{ExploreChecker, ExploreContext, ExploreEvent};
use crate::checkers::{CheckVerdict, require};

#[derive(Debug, Default)]
pub(super) struct Held {
    /// Actions without a result, by explorer.
    open: Vec<Vec<PlanAction>>,
}

impl Held {
    fn open(&mut self, at: usize) -> &mut Vec<PlanAction> {
        if self.open.len() <= at {
            self.open.resize_with(at + 1, Vec::new);
        }
        &mut self.open[at]
    }

    /// Returns whether an explorer waits for nothing but evaluations although it need not.
    fn is_held_up(&mut self, ctx: &ExploreContext<'_>) -> bool {
        let plan_config = &ctx.options.plan_config;
        let explorer = ctx.explorer();
        let Some(process) = explorer.process.as_ref().filter(|process| !process.stopping) else {
            return false;
        };
        let is_eval = |order: &PlanAction| matches!(order, PlanAction::FinishEval(_));
        let open = self.open(ctx.at);
        let waits = !open.is_empty() && open.iter().all(is_eval);
        let is_full = explorer.checkpoint.evals.len() as u64 >= plan_config.max_inflight.max(1);
        waits && !plan_config.eval_single_version && !is_full && !process.subject.plan().is_closed()
    }
}

impl ExploreChecker for Held {
    fn on_event(&mut self, ctx: &ExploreContext<'_>, seen: &ExploreEvent<'_>) -> CheckVerdict {
        match *seen {
            ExploreEvent::Started { .. } => self.open(ctx.at).clear(),
            ExploreEvent::Ordered(order) => self.open(ctx.at).push(order),
            ExploreEvent::Applied(input) => self.open(ctx.at).retain(|one| !is_result(*one, input)),
            ExploreEvent::Settled => {
                let evals = &ctx.explorer().checkpoint.evals;
                require!(!self.is_held_up(ctx), "everything waits for the evaluations {evals:?}");
            }
            _ => {}
        }
        Ok(())
    }
}

/// Returns whether an input is the result of an action.
fn is_result(order: PlanAction, input: &PlanInput) -> bool {
    match order {
        PlanAction::BeginStep(_) => matches!(input, PlanInput::Begun(_) | PlanInput::Exhausted),
        PlanAction::FinalizeStep(_) => matches!(input, PlanInput::Finalized { .. }),
        PlanAction::Evaluate(_) => matches!(input, PlanInput::EvalBegun(_)),
        PlanAction::FinishEval(_) => matches!(input, PlanInput::EvalFinished(_)),
        PlanAction::Sync { .. } | PlanAction::FinishTraining => {
            matches!(input, PlanInput::Synced(_))
        }
        PlanAction::Load => matches!(input, PlanInput::Loaded(_)),
        PlanAction::End => false,
    }
}
