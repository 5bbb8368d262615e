//! The plan under test, as it is or with a planted bug.

use std::fmt;

use rollway_core::explore::{Plan, PlanAction, PlanConfig, PlanInput, PlanProgress};

/// Where a bug sits.
#[derive(Clone, Copy)]
pub(crate) enum ExploreBug {
    /// In how the explorer is told to proceed.
    Told(fn(&mut PlanConfig)),
    Kept(fn(&mut PlanProgress)),
    /// In what it hears: nothing, something else, or more than happened.
    Hears(fn(&Plan, PlanInput) -> Vec<PlanInput>),
    /// In what it orders, with what it heard before.
    Says(fn(&Plan, Option<&PlanInput>, &mut Vec<PlanAction>)),
    /// In the world around it.
    Around(Around),
}

/// Bugs of the world around the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Around {
    /// Nobody tells the board what time it is.
    NoClock,
    /// Experiences are delivered again after a crash.
    DeliveredAgain,
    /// Explorers wait for longer than was agreed.
    Patient,
    /// A trainer that failed is taken for one that is done.
    FailureIsEnd,
}

impl fmt::Debug for ExploreBug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Told(_) => "Told",
            Self::Kept(_) => "Kept",
            Self::Hears(_) => "Hears",
            Self::Says(_) => "Says",
            Self::Around(_) => "Around",
        })
    }
}

/// A plan, as it is or with a bug.
#[derive(Debug)]
pub(crate) struct Subject {
    plan: Plan,
    bug: Option<ExploreBug>,
}

impl Subject {
    /// Returns the plan of an explorer that is where it says.
    pub(crate) fn new(
        mut pace: PlanConfig,
        mut kept: PlanProgress,
        bug: Option<ExploreBug>,
    ) -> Self {
        match bug {
            Some(ExploreBug::Told(tell)) => tell(&mut pace),
            Some(ExploreBug::Kept(keep)) => keep(&mut kept),
            _ => {}
        }
        Self { plan: Plan::new(pace, kept), bug }
    }

    /// Returns the plan itself.
    pub(crate) const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Tells a fact, if there is one, and returns what is ordered.
    pub(crate) fn apply(&mut self, fact: Option<PlanInput>) -> Vec<PlanAction> {
        let heard = match (self.bug, fact.clone()) {
            (_, None) => Vec::new(),
            (Some(ExploreBug::Hears(hear)), Some(fact)) => hear(&self.plan, fact),
            (_, Some(fact)) => vec![fact],
        };
        heard.into_iter().for_each(|fact| self.plan.apply(fact));
        let mut orders = self.plan.orders();
        if let Some(ExploreBug::Says(say)) = self.bug {
            say(&self.plan, fact.as_ref(), &mut orders);
        }
        orders
    }
}
