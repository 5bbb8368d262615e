//! Tasks that end their process delay healthy ones by no more than the start of a process: the
//! runners of the process are started at once, suspects execute in a process of their own, and no
//! more than half of the runners are set aside for them.

use rollway_core::{Action, Input, RunnerReport, Suspicion};

use super::{CheckContext, CheckVerdict, Checker, require};
use crate::reference_model::Phase;

#[derive(Debug)]
pub(super) struct Isolation;

impl Checker for Isolation {
    fn action(&mut self, ctx: &CheckContext<'_>, action: &Action) -> CheckVerdict {
        let Action::StartAttempt { runner, batch, task, runs, .. } = action else { return Ok(()) };
        let isolated = ctx.model.slots.get(runner).is_some_and(|slot| slot.isolated);
        if isolated || ctx.model.config.runners_per_worker <= 1 {
            return Ok(());
        }
        for run in runs.iter() {
            let suspect = ctx.model.run(*batch, *task, run.0).is_some_and(|run| run.suspect);
            require!(
                !suspect,
                "{batch} {task} {run} is a suspect and shares the process of {runner}"
            );
        }
        Ok(())
    }

    fn settled(&mut self, ctx: &CheckContext<'_>) -> CheckVerdict {
        let live = ctx.model.slots.values().filter(|slot| slot.phase != Phase::Over);
        let isolated = live.filter(|slot| slot.isolated).count();
        // A pool that has just shrunk may have more.
        let limit = (ctx.core.wanted() as usize / 2).max(1);
        let counted = ctx.model.config.scaling.is_none();
        require!(!counted || isolated <= limit, "{isolated} runners are isolated, not {limit}");
        let Input::Report { runner, report: RunnerReport::Lost { suspicion, .. }, .. } = ctx.input
        else {
            return Ok(());
        };
        let caused = *suspicion != Suspicion::None && ctx.accepted && ctx.model.fitted();
        let over = ctx.model.slots.get(runner).is_some_and(|slot| slot.phase == Phase::Over);
        require!(
            !(caused && over),
            "{runner} was lost by {suspicion:?} and is not started at once"
        );
        Ok(())
    }
}
