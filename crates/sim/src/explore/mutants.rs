//! Planted bugs in the loop of an explorer and around it, each with the checker that must notice.

use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};

use rollway_core::explore::{Plan, PlanAction, PlanInput, SyncResult};

use super::checkers::ExploreCheckers;
use super::run;
use super::subject::Around;
pub(super) use super::subject::ExploreBug;
use crate::REPEAT;
use crate::trace::TraceTarget;
use ExploreBug::{Hears, Kept, Says, Told};

/// A planted bug and the checker that must notice it.
#[derive(Clone, Copy)]
pub struct ExploreMutant {
    /// What it does, in a few words.
    pub name: &'static str,
    /// Who must notice.
    pub checker: &'static str,
    pub(super) bug: ExploreBug,
}

impl fmt::Debug for ExploreMutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.checker)
    }
}

/// Runs seeds with a planted bug until its checker notices, or `seeds_max` were tried. Returns
/// after how many it did, and in what words.
pub fn hunt(mutant: &ExploreMutant, first: u64, seeds_max: u64) -> Option<(u64, String)> {
    (0..seeds_max).find_map(|at| {
        let seed = first.wrapping_add(at);
        // A bug may well make something panic; that is not for this checker to notice.
        let found = panic::catch_unwind(AssertUnwindSafe(|| notice(mutant, seed)));
        found.ok().flatten().map(|words| (at + 1, words))
    })
}

fn notice(mutant: &ExploreMutant, seed: u64) -> Option<String> {
    if mutant.checker == REPEAT {
        return repeats(seed, Some(mutant)).err();
    }
    let outcome =
        run(seed, TraceTarget::Nowhere, ExploreCheckers::only(mutant.checker), Some(mutant));
    outcome.violation.map(|violation| violation.what)
}

/// Runs a seed twice and compares everything that was told and ordered.
///
/// # Errors
/// Says that the two runs differ.
pub fn repeats(seed: u64, mutant: Option<&ExploreMutant>) -> Result<u64, String> {
    let hash = || run(seed, TraceTarget::Hash, ExploreCheckers::none(), mutant).trace.hash();
    let (first, second) = (hash(), hash());
    if first == second {
        return Ok(first);
    }
    Err(format!("seed {seed} gave the trace {first:016x}, and then {second:016x}"))
}

macro_rules! mutants {
    ($($checker:literal: $name:literal => $bug:expr,)+) => {
        /// All of them, by checker.
        pub const MUTANTS: &[ExploreMutant] =
            &[$(ExploreMutant { name: $name, checker: $checker, bug: $bug },)+];
    };
}

mutants! {
    "once": "a step that was begun is forgotten" => Kept(|kept| kept.begun = kept.finalized),
    "once": "a step that was finalized is forgotten" => Kept(|kept| {
        kept.finalized = kept.finalized.saturating_sub(1);
    }),
    "once": "a step is passed over" => Says(pass_over),
    "once": "steps in flight are taken for finalized" => Kept(|kept| kept.finalized = kept.begun),
    "once": "what is being submitted is forgotten" => Kept(|kept| kept.beginning = None),
    "once": "experiences are delivered again" => ExploreBug::Around(Around::DeliveredAgain),
    "evals": "evaluations under way are forgotten" => Kept(|kept| kept.evals.clear()),
    "evals": "an evaluation being submitted is forgotten" => Kept(|kept| kept.evaluating = None),
    "evals": "an evaluation is made again" => Kept(|kept| {
        kept.evaluated = kept.evaluated.map(|step| step.saturating_sub(1));
    }),
    "evals": "weights come when they come" => Says(load_at_once),
    "evals": "the first evaluation is left out" => Told(|pace| pace.eval_on_startup = false),
    "evals": "the last evaluation is left out" => Told(|pace| pace.eval_at_end = false),
    "evals": "an evaluation is left out" => Told(|pace| {
        pace.eval_interval = pace.eval_interval.map(|steps| steps + 1);
    }),
    "paced": "the window is one too wide" => Told(|pace| pace.max_inflight += 1),
    "paced": "the period is one too long" => Told(|pace| pace.sync_interval += 1),
    "paced": "an exchange is taken for made" => Kept(|kept| kept.synced = kept.finalized),
    "stale": "the bound is off by one" => Told(|pace| {
        pace.max_staleness = pace.max_staleness.map(|bound| bound + 1);
    }),
    "stale": "steps are expected to yield little" => Told(|pace| pace.step_experiences = 1),
    "stale": "nobody hears of the others" => Hears(others_unheard),
    "versions": "the version is forgotten" => Kept(|kept| {
        kept.version = kept.version.saturating_sub(1);
    }),
    "versions": "the last version is not kept" => Hears(last_version_unheard),
    "waits": "the board has no clock" => ExploreBug::Around(Around::NoClock),
    "waits": "explorers are patient" => ExploreBug::Around(Around::Patient),
    "ends": "a trainer that failed is taken for done" => ExploreBug::Around(Around::FailureIsEnd),
    "ends": "nothing new is taken for the end" => Hears(nothing_new_is_the_end),
    "ends": "the end comes without a word to the trainer" => Says(end_without_close),
    "progress": "an exchange is not carried out" => Says(|_, _, orders| {
        orders.retain(|order| !matches!(order, PlanAction::Sync { .. }));
    }),
    "progress": "an evaluation is never heard of" => Hears(|_, fact| match fact {
        PlanInput::EvalFinished(_) => Vec::new(),
        fact => vec![fact],
    }),
    "progress": "the bound never gives way" => Hears(never_forced),
    "repeat": "chance from outside the seed" => Says(|_, _, orders| outside_chance(orders)),
}

fn pass_over(_: &Plan, _: Option<&PlanInput>, orders: &mut Vec<PlanAction>) {
    for order in orders {
        if let PlanAction::FinalizeStep(step) = order
            && *step == 2
        {
            *step = 3;
        }
    }
}

fn load_at_once(_: &Plan, fact: Option<&PlanInput>, orders: &mut Vec<PlanAction>) {
    let published = matches!(fact, Some(PlanInput::Published(_)));
    if published && !orders.contains(&PlanAction::Load) {
        orders.push(PlanAction::Load);
    }
}

fn others_unheard(_: &Plan, fact: PlanInput) -> Vec<PlanInput> {
    match fact {
        PlanInput::OthersSubmitted(_) => Vec::new(),
        fact => vec![fact],
    }
}

fn last_version_unheard(_: &Plan, fact: PlanInput) -> Vec<PlanInput> {
    match fact {
        PlanInput::Synced(SyncResult::TrainerDone(_)) => {
            vec![PlanInput::Synced(SyncResult::NothingNew)]
        }
        fact => vec![fact],
    }
}

fn nothing_new_is_the_end(plan: &Plan, fact: PlanInput) -> Vec<PlanInput> {
    match fact {
        PlanInput::Synced(SyncResult::NothingNew) => {
            vec![PlanInput::Synced(SyncResult::TrainerDone(plan.progress().version))]
        }
        fact => vec![fact],
    }
}

fn end_without_close(_: &Plan, _: Option<&PlanInput>, orders: &mut Vec<PlanAction>) {
    for order in orders {
        if *order == PlanAction::FinishTraining {
            *order = PlanAction::End;
        }
    }
}

fn never_forced(plan: &Plan, fact: PlanInput) -> Vec<PlanInput> {
    match fact {
        // As if the exchange had brought something, so that it is ordered again.
        PlanInput::Synced(SyncResult::NothingNew) if plan.progress().closed.is_none() => Vec::new(),
        fact => vec![fact],
    }
}

fn outside_chance(orders: &mut [PlanAction]) {
    static EMITTED: AtomicU64 = AtomicU64::new(0);
    if EMITTED.fetch_add(1, Ordering::Relaxed).is_multiple_of(7) {
        orders.reverse();
    }
}
