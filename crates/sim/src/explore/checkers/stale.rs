//! Nothing staler than allowed is trained on or begun, unless the trainer cannot continue
//! otherwise.

use std::collections::{BTreeMap, BTreeSet};

use rollway_core::explore::{PlanAction, PlanInput, PlanStyle, SyncResult};

use super::{ExploreChecker, ExploreContext, ExploreEvent};
use crate::checkers::{CheckVerdict, require};

#[derive(Debug, Default)]
pub(super) struct Stale {
    /// Explorers whose trainer waits for them.
    wanted: BTreeSet<usize>,
    /// Steps that were begun.
    admitted: BTreeSet<(usize, u64)>,
    /// Last version of each explorer.
    versions: BTreeMap<usize, u64>,
    /// Steps that began because the trainer waited; they may exceed the bound.
    forced: BTreeSet<(usize, u64)>,
}

impl ExploreChecker for Stale {
    fn on_event(&mut self, ctx: &ExploreContext<'_>, seen: &ExploreEvent<'_>) -> CheckVerdict {
        let plan_config = &ctx.options.plan_config;
        let Some(bound) =
            plan_config.max_staleness.filter(|_| plan_config.style == PlanStyle::FullyAsync)
        else {
            return Ok(());
        };
        match *seen {
            ExploreEvent::Started { version } => {
                self.wanted.remove(&ctx.at);
                self.versions.insert(ctx.at, version);
            }
            ExploreEvent::Applied(PlanInput::Synced(exchange)) => {
                let before = self.versions.entry(ctx.at).or_default();
                match *exchange {
                    SyncResult::Version(version) | SyncResult::TrainerDone(version)
                        if version > *before =>
                    {
                        *before = version;
                    }
                    _ => drop(self.wanted.insert(ctx.at)),
                }
            }
            ExploreEvent::Applied(PlanInput::Loaded(version)) => {
                self.versions.insert(ctx.at, *version);
            }
            ExploreEvent::Ordered(PlanAction::BeginStep(step)) => {
                if !self.admitted.insert((ctx.at, step)) {
                    // Repeated after a crash.
                    return Ok(());
                }
                let explorers = ctx.explorers.iter();
                let all: u64 =
                    explorers.map(|it| it.experiences(plan_config.step_experiences)).sum();
                let all = all + plan_config.step_experiences;
                let trained = all.saturating_sub(1) / plan_config.train_batch_size;
                let version = self.versions.get(&ctx.at).copied().unwrap_or(0);
                let is_stale = trained > version + bound;
                let is_wanted = self.wanted.remove(&ctx.at);
                require!(
                    !is_stale || is_wanted,
                    "step {step} of version {version} would be trained on after {trained} steps"
                );
                if is_stale {
                    self.forced.insert((ctx.at, step));
                }
            }
            // With several explorers the age depends on the others.
            ExploreEvent::Trains(samples) if ctx.explorers.len() == 1 => {
                let version = ctx.trainer.version;
                for sample in samples {
                    let age = version - sample.version;
                    let is_forced = self.forced.contains(&(sample.explorer, sample.step));
                    require!(
                        age <= bound || is_forced,
                        "step {} is trained on {age} versions late, and {bound} are allowed",
                        sample.step
                    );
                }
            }
            _ => {}
        }
        Ok(())
    }
}
