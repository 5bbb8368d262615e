//! What must be true, whatever happens. One small type per guarantee; each sees every input and
//! action in order, the state of the core, the record of what was said and ordered, and the world
//! as it really is.

mod counters;
mod deadlines;
mod dispatch_order;
mod durability;
mod fencing;
mod limits;
mod payload_safety;
mod progress;
mod reasons;
mod refusals;
mod responses;
mod retries;
mod run_conservation;
mod runner_states;
mod scaling;
mod wait_outcomes;

use std::fmt;

use rollway_core::{Action, Core, Input, Time};

use crate::ledger::SimLedger;
use crate::process::Processes;
use crate::reference_model::ReferenceModel;
use crate::sink::SimSink;

/// Fails with words unless a condition holds.
macro_rules! require {
    ($condition:expr, $($words:tt)+) => {
        if !$condition {
            return Err(format!($($words)+));
        }
    };
}
pub(crate) use require;

/// What a checker says: nothing, or what is wrong.
pub type CheckVerdict = Result<(), String>;

/// What a checker sees.
#[derive(Debug)]
pub struct CheckContext<'a> {
    pub now: Time,
    /// What the core was told.
    pub input: &'a Input,
    /// What it ordered.
    pub actions: &'a [Action],
    /// Whether it did not ignore what it was told.
    pub believed: bool,
    /// The core, after the step.
    pub core: &'a Core,
    /// The record: up to what is being looked at, and not further.
    pub book: &'a mut ReferenceModel,
    /// The runners as they really are, before the actions are performed.
    pub processes: &'a Processes,
    pub sink: &'a SimSink,
}

/// One guarantee.
pub trait Checker: fmt::Debug {
    /// Returns its name.
    fn name(&self) -> &'static str;

    /// Looks at the input; the record does not know it yet.
    fn input(&mut self, _scene: &CheckContext<'_>) -> CheckVerdict {
        Ok(())
    }

    /// Looks at one action; the record knows what came before it.
    fn action(&mut self, _scene: &CheckContext<'_>, _action: &Action) -> CheckVerdict {
        Ok(())
    }

    /// Looks at everything after a step.
    fn settled(&mut self, _scene: &CheckContext<'_>) -> CheckVerdict {
        Ok(())
    }

    /// Looks at an answer or a delivery that nothing holds back any more.
    fn released(&mut self, _scene: &CheckContext<'_>, _action: &Action) -> CheckVerdict {
        Ok(())
    }

    /// The core is no more, and the ledger has this. What it knew counts no longer.
    fn crashed(&mut self, _ledger: &SimLedger) {}

    /// Looks at a core that has taken up what the ledger has.
    fn restored(&mut self, _scene: &CheckContext<'_>) -> CheckVerdict {
        Ok(())
    }

    /// Looks at what is left when the world has come to its end.
    fn ended(&mut self, _scene: &CheckContext<'_>) -> CheckVerdict {
        Ok(())
    }
}

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which checker found it.
    pub checker: &'static str,
    pub at: Time,
    pub what: String,
}

impl Violation {
    /// Tells whether it is about something that did not happen, rather than something that did.
    pub fn is_liveness(&self) -> bool {
        self.checker == PROGRESS
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {}", self.checker, self.at, self.what)
    }
}

/// The name of the checker that wants everything to end.
pub const PROGRESS: &str = "progress";

/// The name under which contradictions inside the core are reported.
pub const INVARIANTS: &str = "invariants";

/// All guarantees, or one of them.
#[derive(Debug)]
pub struct Checkers {
    list: Vec<Box<dyn Checker>>,
    /// Whether the core looks at itself as well.
    invariants: bool,
}

impl Checkers {
    /// Returns all of them.
    pub fn all() -> Self {
        let list: Vec<Box<dyn Checker>> = vec![
            Box::new(fencing::Fencing),
            Box::new(runner_states::RunnerStatesChecker::default()),
            Box::new(run_conservation::RunConservationChecker::default()),
            Box::new(counters::CountersChecker::default()),
            Box::new(responses::ResponsesChecker::default()),
            Box::new(wait_outcomes::WaitOutcomesChecker),
            Box::new(refusals::Refusals),
            Box::new(reasons::Reasons),
            Box::new(dispatch_order::DispatchOrderChecker),
            Box::new(payload_safety::PayloadSafetyChecker::default()),
            Box::new(retries::Retries),
            Box::new(limits::LimitsChecker::default()),
            Box::new(deadlines::DeadlinesChecker),
            Box::new(scaling::Scaling::default()),
            Box::new(durability::DurabilityChecker::default()),
            Box::new(progress::Progress),
        ];
        Self { list, invariants: true }
    }

    /// Returns the one of this name.
    pub fn only(name: &str) -> Self {
        let mut checkers = Self::all();
        checkers.list.retain(|checker| checker.name() == name);
        checkers.invariants = name == INVARIANTS;
        checkers
    }

    /// Returns none of them.
    pub const fn none() -> Self {
        Self { list: Vec::new(), invariants: false }
    }

    /// Returns their names.
    pub fn names() -> Vec<&'static str> {
        Self::all().list.iter().map(|checker| checker.name()).collect()
    }

    /// Lets all of them look at one step, and keeps the record.
    pub fn observe(&mut self, scene: &mut CheckContext<'_>) -> Option<Violation> {
        let found = self.each(scene, |checker, scene| checker.input(scene));
        scene.book.input(scene.now, scene.input, scene.actions, scene.believed);
        if found.is_some() {
            return found;
        }
        for action in scene.actions {
            let found = self.each(scene, |checker, scene| checker.action(scene, action));
            scene.book.action(scene.now, action);
            if found.is_some() {
                return found;
            }
        }
        let found = self.each(scene, |checker, scene| checker.settled(scene));
        if found.is_some() || !self.invariants {
            return found;
        }
        let what = scene.core.check().err()?;
        Some(Violation { checker: INVARIANTS, at: scene.now, what })
    }

    /// Lets all of them look at an answer or a delivery that nothing holds back any more.
    pub fn released(&mut self, scene: &mut CheckContext<'_>, action: &Action) -> Option<Violation> {
        self.each(scene, |checker, scene| checker.released(scene, action))
    }

    /// Tells all of them that the core is no more.
    pub fn crashed(&mut self, ledger: &SimLedger) {
        for checker in &mut self.list {
            checker.crashed(ledger);
        }
    }

    /// Lets all of them look at a core that has taken up what the ledger has.
    pub fn restored(&mut self, scene: &mut CheckContext<'_>) -> Option<Violation> {
        self.each(scene, |checker, scene| checker.restored(scene))
    }

    /// Lets all of them look at what is left in the end.
    pub fn ended(&mut self, scene: &mut CheckContext<'_>) -> Option<Violation> {
        self.each(scene, |checker, scene| checker.ended(scene))
    }

    /// Says that the world does not come to its end, unless nobody is interested.
    pub fn stuck(&self, at: Time, what: String) -> Option<Violation> {
        let interested = self.list.iter().any(|checker| checker.name() == PROGRESS);
        interested.then_some(Violation { checker: PROGRESS, at, what })
    }

    fn each(
        &mut self,
        scene: &CheckContext<'_>,
        look: impl Fn(&mut dyn Checker, &CheckContext<'_>) -> CheckVerdict,
    ) -> Option<Violation> {
        for checker in &mut self.list {
            if let Err(what) = look(checker.as_mut(), scene) {
                return Some(Violation { checker: checker.name(), at: scene.now, what });
            }
        }
        None
    }
}
