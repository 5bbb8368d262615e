//! The plan under test, with an optional bug.

use rollway_core::explore::{Plan, PlanAction, PlanConfig, PlanInput, PlanProgress};

#[derive(Clone, Copy, Debug)]
pub(crate) enum ExploreBug {
    Config(fn(&mut PlanConfig)),
    /// Changes the saved progress at a start.
    Progress(fn(&mut PlanProgress)),
    /// Changes or drops an input.
    Input(fn(&Plan, PlanInput) -> Option<PlanInput>),
    /// Changes the actions after an input.
    Actions(fn(Option<&PlanInput>, &mut Vec<PlanAction>)),
    EditAction(fn(&mut PlanAction)),
    World(Around),
}

/// Bugs of the world around the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Around {
    /// The synchronizer never learns the time.
    NoClock,
    /// Experiences are delivered again after a crash.
    DeliveredAgain,
    /// Explorers wait longer than their timeout.
    LongTimeout,
    /// A failed trainer counts as done.
    FailureIsEnd,
}

/// A plan, with an optional bug.
#[derive(Debug)]
pub(crate) struct Subject {
    plan: Plan,
    bug: Option<ExploreBug>,
}

impl Subject {
    pub(crate) fn new(
        mut plan_config: PlanConfig,
        mut checkpoint: PlanProgress,
        bug: Option<ExploreBug>,
    ) -> Self {
        match bug {
            Some(ExploreBug::Config(change)) => change(&mut plan_config),
            Some(ExploreBug::Progress(change)) => change(&mut checkpoint),
            _ => {}
        }
        Self { plan: Plan::new(plan_config, checkpoint), bug }
    }

    pub(crate) const fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(crate) fn apply(&mut self, input: Option<PlanInput>) -> Vec<PlanAction> {
        let applied = match (self.bug, input.clone()) {
            (Some(ExploreBug::Input(change)), Some(input)) => change(&self.plan, input),
            (_, input) => input,
        };
        if let Some(applied) = applied {
            self.plan.apply(applied);
        }
        let mut actions = self.plan.actions();
        match self.bug {
            Some(ExploreBug::Actions(change)) => change(input.as_ref(), &mut actions),
            Some(ExploreBug::EditAction(edit)) => actions.iter_mut().for_each(edit),
            _ => {}
        }
        actions
    }
}
