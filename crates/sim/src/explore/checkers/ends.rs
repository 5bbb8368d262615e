//! The end of an explorer has a true reason.

use rollway_core::sync::WaitOutcome;

use super::{ExploreChecker, ExploreContext, ExploreEvent};
use crate::checkers::{CheckVerdict, require};
use crate::explore::process::ProcessEnd;
use crate::explore::trainer::SimTrainerState;

#[derive(Debug)]
pub(super) struct ExploreEndsChecker;

impl ExploreChecker for ExploreEndsChecker {
    fn see(&mut self, scene: &ExploreContext<'_>, seen: &ExploreEvent<'_>) -> CheckVerdict {
        let state = scene.trainer.state;
        match *seen {
            ExploreEvent::Waited { outcome: WaitOutcome::TrainerFailed(_), .. } => {
                let SimTrainerState::Dead { since, loud } = state else {
                    return Err(format!("the trainer is reported as failed, and is {state:?}"));
                };
                let silent = scene.now.since(since);
                let timeout = scene.options.lease;
                require!(loud || silent >= timeout, "reported as failed after {silent:?}");
            }
            ExploreEvent::Waited { began, outcome: WaitOutcome::TimedOut(_) } => {
                let (waited, agreed) = (scene.now.since(began), scene.options.sync_timeout);
                require!(waited >= agreed, "timed out after {waited:?} of {agreed:?}");
            }
            ExploreEvent::Waited { outcome: WaitOutcome::TrainerDone(_), .. } => {
                require!(
                    state == SimTrainerState::Done,
                    "the trainer is reported as done, and is {state:?}"
                );
            }
            ExploreEvent::Ended(ProcessEnd::Done) => {
                let steps = scene.options.pace.total_steps.min(scene.options.tasks);
                let made = scene.explorer().kept.finalized;
                let is_cut = state == SimTrainerState::Done;
                require!(made == steps || is_cut, "done with {made} of {steps} steps");
                let (version, last) = (scene.explorer().version, scene.trainer.version);
                let is_last = version == last || scene.explorers.len() > 1;
                require!(
                    !is_cut || is_last,
                    "done with version {version}, and {last} was the last"
                );
                let closed = scene.explorer().kept.closed;
                require!(closed == Some(made), "done, and closed after {closed:?} of {made}");
            }
            ExploreEvent::TrainerLeft => {
                for explorer in scene.explorers {
                    let is_there = explorer.end.is_none()
                        && explorer.process.as_ref().is_some_and(|process| !process.closing);
                    require!(!is_there, "the trainer left, and {} is present", explorer.name);
                }
            }
            ExploreEvent::Over => {
                for explorer in scene.explorers.iter().filter(|_| scene.options.is_calm) {
                    let end = explorer.end.as_ref().map_or("none", ProcessEnd::name);
                    require!(end == "done", "no fault occurred, and {} is {end}", explorer.name);
                }
            }
            _ => {}
        }
        Ok(())
    }
}
