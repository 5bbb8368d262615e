//! Guarantees of explorers, the trainer and the synchronizer. One type per guarantee; each sees all
//! events in order, and keeps its own record.

mod ends;
mod evals;
mod held;
mod once;
mod paced;
mod stale;
mod versions;
mod waits;

use std::fmt;

use rollway_core::Time;
use rollway_core::explore::{PlanAction, PlanInput};
use rollway_core::sync::WaitOutcome;

use super::options::ExploreWorldOptions;
use super::process::{ProcessEnd, SimExplorer};
use super::trainer::{SimSample, SimTrainer};
use crate::checkers::{CheckVerdict, PROGRESS, Violation};

#[derive(Debug)]
pub(crate) enum ExploreEvent<'a> {
    /// A process begins; its servers have this version.
    Started { version: u64 },
    /// The plan emitted an action.
    Ordered(PlanAction),
    /// An input was applied to the plan.
    Applied(&'a PlanInput),
    /// The tasks of a step were submitted.
    Submitted { step: u64 },
    /// The experiences of a step are in the buffer.
    Delivered { step: u64 },
    /// The evaluations of a step were submitted, and run with the current version.
    EvalBegan { step: u64 },
    /// The evaluations of a step ended.
    EvalEnded { step: u64 },
    /// The servers have other weights.
    Loaded { version: u64 },
    /// A wait is over.
    Waited { began: Time, outcome: &'a WaitOutcome },
    /// The explorer ended.
    Ended(&'a ProcessEnd),
    /// The trainer begins a step with these samples.
    Trains(&'a [SimSample]),
    /// The trainer left because all explorers did.
    TrainerLeft,
    /// One event of the world was handled.
    Settled,
    /// The world has ended.
    Over,
}

/// State of the world at an event.
#[derive(Debug)]
pub(crate) struct ExploreContext<'a> {
    pub(crate) now: Time,
    /// Index of the explorer, for events about one.
    pub(crate) at: usize,
    pub(crate) options: &'a ExploreWorldOptions,
    pub(crate) explorers: &'a [SimExplorer],
    pub(crate) trainer: &'a SimTrainer,
}

impl ExploreContext<'_> {
    pub(crate) fn explorer(&self) -> &SimExplorer {
        &self.explorers[self.at]
    }
}

pub(crate) trait ExploreChecker: fmt::Debug {
    fn on_event(&mut self, ctx: &ExploreContext<'_>, seen: &ExploreEvent<'_>) -> CheckVerdict;
}

#[derive(Debug)]
pub struct ExploreCheckers {
    list: Vec<(&'static str, Box<dyn ExploreChecker>)>,
    progress: bool,
}

impl ExploreCheckers {
    pub fn all() -> Self {
        let list: Vec<(&'static str, Box<dyn ExploreChecker>)> = vec![
            ("once", Box::new(once::ExploreOnceChecker::default())),
            ("evals", Box::new(evals::Evals::default())),
            ("held", Box::new(held::Held::default())),
            ("paced", Box::new(paced::Paced::default())),
            ("stale", Box::new(stale::Stale::default())),
            ("versions", Box::new(versions::Versions::default())),
            ("waits", Box::new(waits::Waits)),
            ("ends", Box::new(ends::ExploreEndsChecker)),
        ];
        Self { list, progress: true }
    }

    pub fn only(name: &str) -> Self {
        let mut checkers = Self::all();
        checkers.list.retain(|(checker, _)| *checker == name);
        checkers.progress = name == PROGRESS;
        checkers
    }

    pub const fn none() -> Self {
        Self { list: Vec::new(), progress: false }
    }

    pub fn names() -> Vec<&'static str> {
        let list = Self::all().list;
        list.iter().map(|(name, _)| *name).chain([PROGRESS]).collect()
    }

    pub(crate) fn on_event(
        &mut self,
        ctx: &ExploreContext<'_>,
        seen: &ExploreEvent<'_>,
    ) -> Option<Violation> {
        for (name, checker) in &mut self.list {
            if let Err(what) = checker.on_event(ctx, seen) {
                return Some(Violation { checker: name, at: ctx.now, what });
            }
        }
        None
    }

    /// Returns a violation for a world that does not end, if progress is checked.
    pub(crate) fn stuck(&self, at: Time, what: String) -> Option<Violation> {
        self.progress.then_some(Violation { checker: PROGRESS, at, what })
    }
}
