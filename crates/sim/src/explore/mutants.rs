//! Planted bugs in the plan of an explorer and around it, each with the checker that must report
//! it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use rollway_core::explore::{PlanAction, PlanInput, SyncResult};

use super::checkers::ExploreCheckers;
use super::run;
pub(super) use super::subject::ExploreBug;
use super::subject::{Around, ExploreBug::*};
use crate::mutants::first_report;
use crate::trace::TraceTarget;
use crate::{REPEAT, same_trace};

/// A planted bug and the checker that must report it.
#[derive(Clone, Copy)]
pub struct ExploreMutant {
    pub name: &'static str,
    pub checker: &'static str,
    pub(super) bug: ExploreBug,
}

impl fmt::Debug for ExploreMutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.checker)
    }
}

/// Runs seeds with a planted bug until its checker reports it, at most `seeds_max`. Returns the
/// number of seeds and the message.
pub fn find_seed(mutant: &ExploreMutant, first: u64, seeds_max: u64) -> Option<(u64, String)> {
    first_report(first, seeds_max, |seed| {
        if mutant.checker == REPEAT {
            return repeats(seed, Some(mutant)).err();
        }
        let checkers = ExploreCheckers::only(mutant.checker);
        let result = run(seed, TraceTarget::Nowhere, checkers, Some(mutant));
        result.violation.map(|violation| violation.what)
    })
}

/// Runs a seed twice and compares all inputs and actions.
///
/// # Errors
/// The two traces differ.
pub fn repeats(seed: u64, mutant: Option<&ExploreMutant>) -> Result<u64, String> {
    same_trace(seed, || run(seed, TraceTarget::Hash, ExploreCheckers::none(), mutant))
}

macro_rules! mutants {
    ($($checker:literal: $name:literal => $bug:expr,)+) => {
        pub const MUTANTS: &[ExploreMutant] =
            &[$(ExploreMutant { name: $name, checker: $checker, bug: $bug },)+];
    };
}

mutants! {
    "once": "a begun step is forgotten" => Progress(|saved| saved.begun = saved.finalized),
    "once": "a finalized step is forgotten" => Progress(|saved| {
        saved.finalized = saved.finalized.saturating_sub(1);
    }),
    "once": "a step is skipped" => EditAction(|order| {
        if *order == PlanAction::FinalizeStep(2) {
            *order = PlanAction::FinalizeStep(3);
        }
    }),
    "once": "steps in flight count as finalized" => Progress(|saved| saved.finalized = saved.begun),
    "once": "an open submission is forgotten" => Progress(|saved| saved.beginning = None),
    "once": "experiences are delivered again" => World(Around::DeliveredAgain),
    "evals": "open evaluations are forgotten" => Progress(|saved| saved.evals.clear()),
    "evals": "an open submission of an evaluation is forgotten" => Progress(|saved| {
        saved.evaluating = None;
    }),
    "evals": "an evaluation is repeated" => Progress(|saved| {
        saved.evaluated = saved.evaluated.map(|step| step.saturating_sub(1));
    }),
    "evals": "weights are loaded at once" => Actions(|input, actions| {
        let published = matches!(input, Some(PlanInput::Published(_)));
        if published && !actions.contains(&PlanAction::Load) {
            actions.push(PlanAction::Load);
        }
    }),
    "evals": "the first evaluation is missing" => Config(|config| config.eval_on_startup = false),
    "evals": "the last evaluation is missing" => Config(|config| config.eval_at_end = false),
    "evals": "an evaluation is missing" => Config(|config| {
        config.eval_interval = config.eval_interval.map(|steps| steps + 1);
    }),
    "evals": "no evaluation needs one version" => Config(|config| {
        config.eval_single_version = false;
    }),
    "held": "every evaluation needs one version" => Config(|config| {
        config.eval_single_version = true;
    }),
    "paced": "the window is too wide by one" => Config(|config| config.max_inflight += 1),
    "paced": "the period is too long by one" => Config(|config| config.sync_interval += 1),
    "paced": "a weight sync counts as done" => Progress(|saved| saved.synced = saved.finalized),
    "stale": "the bound is too high by one" => Config(|config| {
        config.max_staleness = config.max_staleness.map(|bound| bound + 1);
    }),
    "stale": "the expected yield is too low" => Config(|config| config.step_experiences = 1),
    "stale": "experiences of other explorers are ignored" => Input(|_, input| {
        Some(input).filter(|input| !matches!(input, PlanInput::OthersSubmitted(_)))
    }),
    "versions": "the version is forgotten" => Progress(|saved| {
        saved.version = saved.version.saturating_sub(1);
    }),
    "versions": "the last version is not saved" => Input(|_, input| match input {
        PlanInput::Synced(SyncResult::TrainerDone(_)) => {
            Some(PlanInput::Synced(SyncResult::NothingNew))
        }
        input => Some(input),
    }),
    "waits": "the synchronizer has no clock" => World(Around::NoClock),
    "waits": "explorers wait too long" => World(Around::LongTimeout),
    "ends": "a failed trainer counts as done" => World(Around::FailureIsEnd),
    "ends": "nothing new counts as the end" => Input(|plan, input| match input {
        PlanInput::Synced(SyncResult::NothingNew) => {
            Some(PlanInput::Synced(SyncResult::TrainerDone(plan.progress().version)))
        }
        input => Some(input),
    }),
    "ends": "the trainer is not informed of the end" => EditAction(|order| {
        if *order == PlanAction::FinishTraining {
            *order = PlanAction::End;
        }
    }),
    "progress": "a weight sync is not performed" => Actions(|_, actions| {
        actions.retain(|order| !matches!(order, PlanAction::Sync { .. }));
    }),
    "progress": "the end of an evaluation is lost" => Input(|_, input| {
        Some(input).filter(|input| !matches!(input, PlanInput::EvalFinished(_)))
    }),
    // As if the weight sync had a result, so that it is repeated.
    "progress": "the bound is never exceeded" => Input(|plan, input| {
        let nothing_new = input == PlanInput::Synced(SyncResult::NothingNew);
        Some(input).filter(|_| !nothing_new || plan.progress().closed.is_some())
    }),
    "repeat": "randomness from outside the seed" => Actions(|_, actions| {
        static EMITTED: AtomicU64 = AtomicU64::new(0);
        if EMITTED.fetch_add(1, Ordering::Relaxed).is_multiple_of(7) {
            actions.reverse();
        }
    }),
}
