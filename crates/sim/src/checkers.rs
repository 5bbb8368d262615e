//! Guarantees of the core. One type per guarantee; each sees every input and action in order, the
//! state of the core, the reference model and the real state of the world.

mod counters;
mod deadlines;
mod dispatch_order;
mod durability;
mod fencing;
mod finalization;
mod isolation;
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

/// Returns an error unless a condition holds.
macro_rules! require {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}
pub(crate) use require;

/// Result of a check; an error describes the violation.
pub type CheckVerdict = Result<(), String>;

#[derive(Debug)]
pub struct CheckContext<'a> {
    pub now: Time,
    pub input: &'a Input,
    pub actions: &'a [Action],
    /// True if the core did not ignore the input.
    pub accepted: bool,
    /// The core after the step.
    pub core: &'a Core,
    /// The reference model, up to the event that is being checked.
    pub model: &'a mut ReferenceModel,
    /// The runners as they really are, before the actions are performed.
    pub processes: &'a Processes,
    pub sink: &'a SimSink,
}

/// One guarantee.
pub trait Checker: fmt::Debug {
    /// Checks the input, before the model has it.
    fn input(&mut self, _ctx: &CheckContext<'_>) -> CheckVerdict {
        Ok(())
    }

    /// Checks one action; the model has all earlier ones.
    fn action(&mut self, _ctx: &CheckContext<'_>, _action: &Action) -> CheckVerdict {
        Ok(())
    }

    /// Checks the state after a step.
    fn settled(&mut self, _ctx: &CheckContext<'_>) -> CheckVerdict {
        Ok(())
    }

    /// Checks a response or a delivery that the ledger has released.
    fn released(&mut self, _ctx: &CheckContext<'_>, _action: &Action) -> CheckVerdict {
        Ok(())
    }

    /// Resets the state after a crash of the core; the ledger has these records.
    fn crashed(&mut self, _ledger: &SimLedger) {}

    fn restored(&mut self, _ctx: &CheckContext<'_>) -> CheckVerdict {
        Ok(())
    }

    fn ended(&mut self, _ctx: &CheckContext<'_>) -> CheckVerdict {
        Ok(())
    }

    /// Checks a world that does not end.
    fn stuck(&self, _model: &ReferenceModel) -> CheckVerdict {
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub checker: &'static str,
    pub at: Time,
    pub what: String,
}

impl Violation {
    /// Returns whether an expected event is missing, as opposed to a wrong event.
    pub fn is_liveness(&self) -> bool {
        [PROGRESS, FINALIZATION].contains(&self.checker)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {}", self.checker, self.at, self.what)
    }
}

/// Name of the checker of progress.
pub const PROGRESS: &str = "progress";

/// Name of the checker of the end of batches.
pub const FINALIZATION: &str = "finalization";

/// Name under which contradictions inside the core are reported.
pub const INVARIANTS: &str = "invariants";

#[derive(Debug)]
pub struct Checkers {
    list: Vec<(&'static str, Box<dyn Checker>)>,
    /// True if the core checks itself as well.
    invariants: bool,
}

impl Checkers {
    pub fn all() -> Self {
        let list: Vec<(&'static str, Box<dyn Checker>)> = vec![
            ("fencing", Box::new(fencing::Fencing)),
            ("runner_states", Box::new(runner_states::RunnerStatesChecker::default())),
            ("run_conservation", Box::new(run_conservation::RunConservationChecker::default())),
            ("counters", Box::new(counters::CountersChecker::default())),
            ("responses", Box::new(responses::ResponsesChecker::default())),
            ("wait_outcomes", Box::new(wait_outcomes::WaitOutcomesChecker)),
            ("refusals", Box::new(refusals::Refusals)),
            ("reasons", Box::new(reasons::Reasons)),
            ("dispatch_order", Box::new(dispatch_order::DispatchOrderChecker)),
            (FINALIZATION, Box::new(finalization::FinalizationChecker::default())),
            ("payload_safety", Box::new(payload_safety::PayloadSafetyChecker::default())),
            ("retries", Box::new(retries::Retries)),
            ("isolation", Box::new(isolation::Isolation)),
            ("limits", Box::new(limits::LimitsChecker::default())),
            ("deadlines", Box::new(deadlines::DeadlinesChecker)),
            ("scaling", Box::new(scaling::Scaling::default())),
            ("durability", Box::new(durability::DurabilityChecker::default())),
            (PROGRESS, Box::new(progress::Progress)),
        ];
        Self { list, invariants: true }
    }

    pub fn only(name: &str) -> Self {
        let mut checkers = Self::all();
        checkers.list.retain(|(checker, _)| *checker == name);
        checkers.invariants = name == INVARIANTS;
        checkers
    }

    pub const fn none() -> Self {
        Self { list: Vec::new(), invariants: false }
    }

    pub fn names() -> Vec<&'static str> {
        Self::all().list.iter().map(|(name, _)| *name).collect()
    }

    /// Checks one step and updates the model.
    pub fn observe(&mut self, ctx: &mut CheckContext<'_>) -> Option<Violation> {
        let found = self.each(ctx, |checker, ctx| checker.input(ctx));
        ctx.model.input(ctx.now, ctx.input, ctx.actions, ctx.accepted);
        if found.is_some() {
            return found;
        }
        for action in ctx.actions {
            let found = self.each(ctx, |checker, ctx| checker.action(ctx, action));
            ctx.model.action(ctx.now, action);
            if found.is_some() {
                return found;
            }
        }
        let found = self.each(ctx, |checker, ctx| checker.settled(ctx));
        if found.is_some() || !self.invariants {
            return found;
        }
        let what = ctx.core.check().err()?;
        Some(Violation { checker: INVARIANTS, at: ctx.now, what })
    }

    /// Checks a response or a delivery that the ledger has released.
    pub fn released(&mut self, ctx: &mut CheckContext<'_>, action: &Action) -> Option<Violation> {
        self.each(ctx, |checker, ctx| checker.released(ctx, action))
    }

    pub fn crashed(&mut self, ledger: &SimLedger) {
        for (_, checker) in &mut self.list {
            checker.crashed(ledger);
        }
    }

    pub fn restored(&mut self, ctx: &mut CheckContext<'_>) -> Option<Violation> {
        self.each(ctx, |checker, ctx| checker.restored(ctx))
    }

    pub fn ended(&mut self, ctx: &mut CheckContext<'_>) -> Option<Violation> {
        self.each(ctx, |checker, ctx| checker.ended(ctx))
    }

    /// Returns a violation for a world that does not end: of a checker that knows the cause, else
    /// of progress, if it is checked.
    pub fn stuck(&self, at: Time, model: &ReferenceModel, what: String) -> Option<Violation> {
        for (checker, it) in &self.list {
            if let Err(what) = it.stuck(model) {
                return Some(Violation { checker, at, what });
            }
        }
        let checked = self.list.iter().any(|(name, _)| *name == PROGRESS);
        checked.then_some(Violation { checker: PROGRESS, at, what })
    }

    fn each(
        &mut self,
        ctx: &CheckContext<'_>,
        check: impl Fn(&mut dyn Checker, &CheckContext<'_>) -> CheckVerdict,
    ) -> Option<Violation> {
        for (name, checker) in &mut self.list {
            if let Err(what) = check(checker.as_mut(), ctx) {
                return Some(Violation { checker: name, at: ctx.now, what });
            }
        }
        None
    }
}
