//! What must be true of explorers, a trainer and the board, whatever happens. One small type per
//! guarantee; each sees everything in order, and keeps its own record.

mod ends;
mod evals;
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

/// What is to be seen.
#[derive(Debug)]
pub(crate) enum ExploreEvent<'a> {
    /// A process begins, the first or another; its servers have this version.
    Started { version: u64 },
    /// It ordered something.
    Ordered(PlanAction),
    /// It was told something.
    Told(&'a PlanInput),
    /// The tasks of a step were submitted.
    Submitted { step: u64 },
    /// The experiences of a step are in the buffer.
    Delivered { step: u64 },
    /// The evaluations of a step were submitted, and run with this version from now on.
    EvalBegan { step: u64 },
    /// The evaluations of a step are over.
    EvalEnded { step: u64 },
    /// The servers have other weights.
    Loaded { version: u64 },
    /// A wait that began then is over.
    Waited { began: Time, outcome: &'a WaitOutcome },
    /// The explorer ended.
    Ended(&'a ProcessEnd),
    /// The trainer is about to make a step with these.
    Trains(&'a [SimSample]),
    /// The trainer left because all explorers did.
    TrainerLeft,
    /// An event is over.
    Settled,
    /// Everything is.
    Over,
}

/// Where it is to be seen.
#[derive(Debug)]
pub(crate) struct ExploreContext<'a> {
    pub(crate) now: Time,
    /// Which explorer it is about, if it is about one.
    pub(crate) at: usize,
    /// What the world is like.
    pub(crate) options: &'a ExploreWorldOptions,
    /// The explorers as they really are.
    pub(crate) explorers: &'a [SimExplorer],
    /// The trainer as it really is.
    pub(crate) trainer: &'a SimTrainer,
}

impl ExploreContext<'_> {
    /// Returns the explorer that it is about.
    pub(crate) fn explorer(&self) -> &SimExplorer {
        &self.explorers[self.at]
    }
}

/// One guarantee.
pub(crate) trait ExploreChecker: fmt::Debug {
    /// Returns its name.
    fn name(&self) -> &'static str;

    /// Looks.
    fn see(&mut self, scene: &ExploreContext<'_>, seen: &ExploreEvent<'_>) -> CheckVerdict;
}

/// All guarantees, or one of them.
#[derive(Debug)]
pub struct ExploreCheckers {
    list: Vec<Box<dyn ExploreChecker>>,
    progress: bool,
}

impl ExploreCheckers {
    /// Returns all of them.
    pub fn all() -> Self {
        let list: Vec<Box<dyn ExploreChecker>> = vec![
            Box::new(once::ExploreOnceChecker::default()),
            Box::new(evals::Evals::default()),
            Box::new(paced::Paced::default()),
            Box::new(stale::Stale::default()),
            Box::new(versions::Versions::default()),
            Box::new(waits::Waits),
            Box::new(ends::ExploreEndsChecker),
        ];
        Self { list, progress: true }
    }

    /// Returns the one of this name.
    pub fn only(name: &str) -> Self {
        let mut checkers = Self::all();
        checkers.list.retain(|checker| checker.name() == name);
        checkers.progress = name == PROGRESS;
        checkers
    }

    /// Returns none of them.
    pub const fn none() -> Self {
        Self { list: Vec::new(), progress: false }
    }

    /// Returns their names.
    pub fn names() -> Vec<&'static str> {
        let list = Self::all().list;
        list.iter().map(|checker| checker.name()).chain([PROGRESS]).collect()
    }

    /// Lets all of them look.
    pub(crate) fn see(
        &mut self,
        scene: &ExploreContext<'_>,
        seen: &ExploreEvent<'_>,
    ) -> Option<Violation> {
        for checker in &mut self.list {
            if let Err(what) = checker.see(scene, seen) {
                return Some(Violation { checker: checker.name(), at: scene.now, what });
            }
        }
        None
    }

    /// Says that the world does not come to its end, unless nobody is interested.
    pub(crate) fn stuck(&self, at: Time, what: String) -> Option<Violation> {
        self.progress.then_some(Violation { checker: PROGRESS, at, what })
    }
}
