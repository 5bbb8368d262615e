//! Whoever ends does so for a reason that is true.

use rollway_core::rendezvous::Outcome;

use super::{Checker, Scene, Seen};
use crate::checkers::{Verdict, require};
use crate::explore::process::End;
use crate::explore::trainer::State;

/// No end that is not what it says.
#[derive(Debug)]
pub(super) struct Ends;

impl Checker for Ends {
    fn name(&self) -> &'static str {
        "ends"
    }

    fn see(&mut self, scene: &Scene<'_>, seen: &Seen<'_>) -> Verdict {
        let state = scene.trainer.state;
        match *seen {
            Seen::Waited { outcome: Outcome::TrainerFailed(_), .. } => {
                let State::Dead { since, loud } = state else {
                    return Err(format!("the trainer is said to have failed, and is {state:?}"));
                };
                let silent = scene.now.since(since);
                let patience = scene.options.lease;
                require!(loud || silent >= patience, "it was given up after {silent:?}");
            }
            Seen::Waited { began, outcome: Outcome::TimedOut(_) } => {
                let (waited, agreed) = (scene.now.since(began), scene.options.sync_timeout);
                require!(waited >= agreed, "given up after {waited:?} of {agreed:?}");
            }
            Seen::Waited { outcome: Outcome::TrainerDone(_), .. } => {
                require!(state == State::Done, "the trainer is said to be done, and is {state:?}");
            }
            Seen::Ended(End::Done) => {
                let steps = scene.options.pace.total_steps.min(scene.options.tasks);
                let made = scene.explorer().kept.finalized;
                let is_cut = state == State::Done;
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
            Seen::TrainerLeft => {
                for explorer in scene.explorers {
                    let is_there = explorer.end.is_none()
                        && explorer.process.as_ref().is_some_and(|process| !process.closing);
                    require!(!is_there, "the trainer left, and {} is there", explorer.name);
                }
            }
            Seen::Over => {
                for explorer in scene.explorers.iter().filter(|_| scene.options.is_calm) {
                    let end = explorer.end.as_ref().map_or("none", End::name);
                    require!(end == "done", "nothing went wrong, and {} is {end}", explorer.name);
                }
            }
            _ => {}
        }
        Ok(())
    }
}
