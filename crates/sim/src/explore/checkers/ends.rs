//! The end of an explorer has a true reason.

use rollway_core::sync::WaitOutcome;

use super::{ExploreChecker, ExploreContext, ExploreEvent};
use crate::checkers::{CheckVerdict, require};
use crate::explore::process::ProcessEnd;
use crate::explore::trainer::SimTrainerState;

#[derive(Debug)]
pub(super) struct ExploreEndsChecker;

impl ExploreChecker for ExploreEndsChecker {
    fn on_event(&mut self, ctx: &ExploreContext<'_>, seen: &ExploreEvent<'_>) -> CheckVerdict {
        let state = ctx.trainer.state;
        match *seen {
            ExploreEvent::Waited { outcome: WaitOutcome::TrainerFailed(_), .. } => {
                let SimTrainerState::Dead { since, reports_failure } = state else {
                    return Err(format!("the trainer is reported as failed, and is {state:?}"));
                };
                let silent = ctx.now.since(since);
                let timeout = ctx.options.lease;
                require!(
                    reports_failure || silent >= timeout,
                    "reported as failed after {silent:?}"
                );
            }
            ExploreEvent::Waited { began, outcome: WaitOutcome::TimedOut(_) } => {
                let (waited, agreed) = (ctx.now.since(began), ctx.options.sync_timeout);
                require!(waited >= agreed, "timed out after {waited:?} of {agreed:?}");
            }
            ExploreEvent::Waited { outcome: WaitOutcome::TrainerDone(_), .. } => {
                require!(
                    state == SimTrainerState::Done,
                    "the trainer is reported as done, and is {state:?}"
                );
            }
            ExploreEvent::Ended(ProcessEnd::Done) => {
                let steps = ctx.options.plan_config.total_steps.min(ctx.options.tasks);
                let made = ctx.explorer().checkpoint.finalized;
                let is_cut = state == SimTrainerState::Done;
                require!(made == steps || is_cut, "done with {made} of {steps} steps");
                let (version, last) = (ctx.explorer().version, ctx.trainer.version);
                let is_last = version == last || ctx.explorers.len() > 1;
                require!(
                    !is_cut || is_last,
                    "done with version {version}, and {last} was the last"
                );
                let closed = ctx.explorer().checkpoint.closed;
                require!(closed == Some(made), "done, and closed after {closed:?} of {made}");
            }
            ExploreEvent::TrainerLeft => {
                for explorer in ctx.explorers {
                    let is_there = explorer.end.is_none()
                        && explorer.process.as_ref().is_some_and(|process| !process.closing);
                    require!(!is_there, "the trainer left, and {} is present", explorer.name);
                }
            }
            ExploreEvent::Over => {
                for explorer in ctx.explorers.iter().filter(|_| ctx.options.is_calm) {
                    let end = explorer.end.as_ref().map_or("none", ProcessEnd::name);
                    require!(end == "done", "no fault occurred, and {} is {end}", explorer.name);
                }
            }
            _ => {}
        }
        Ok(())
    }
}
