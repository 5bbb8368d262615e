//! Every step is begun, delivered and finalized exactly once, in order; none is lost.

use std::collections::{BTreeMap, BTreeSet};

use rollway_core::explore::{Fact, Order};

use super::{Checker, Scene, Seen};
use crate::checkers::{Verdict, require};
use crate::explore::process::End;

/// Nothing twice, and nothing never.
#[derive(Debug, Default)]
pub(super) struct Once {
    /// The last steps that were told to be begun and finalized.
    told: BTreeMap<usize, (u64, u64)>,
    submitted: BTreeSet<(usize, u64)>,
    delivered: BTreeSet<(usize, u64)>,
}

impl Checker for Once {
    fn name(&self) -> &'static str {
        "once"
    }

    fn see(&mut self, scene: &Scene<'_>, seen: &Seen<'_>) -> Verdict {
        let at = scene.at;
        let (begun, finalized) = self.told.entry(at).or_default();
        match *seen {
            Seen::Ordered(Order::Begin(step)) => {
                require!(step == *begun + 1, "step {step} is begun after step {begun}");
            }
            Seen::Ordered(Order::Finalize(step)) => {
                require!(step == *finalized + 1, "step {step} is finalized after {finalized}");
                require!(step <= *begun, "step {step} is finalized and was not begun");
            }
            Seen::Told(Fact::Begun(step)) => *begun = *step,
            Seen::Told(Fact::Finalized { step, .. }) => *finalized = *step,
            Seen::Submitted { step } => {
                require!(self.submitted.insert((at, step)), "step {step} is submitted again");
            }
            Seen::Delivered { step } => {
                require!(self.delivered.insert((at, step)), "step {step} is delivered again");
            }
            Seen::Ended(End::Done) => {
                let count =
                    |set: &BTreeSet<(usize, u64)>| set.range((at, 0)..(at + 1, 0)).count() as u64;
                let (submitted, delivered) = (count(&self.submitted), count(&self.delivered));
                require!(submitted == *begun, "{submitted} steps submitted, {begun} begun");
                require!(delivered == *begun, "{delivered} of {begun} steps were delivered");
                require!(finalized == begun, "{finalized} of {begun} steps were finalized");
            }
            _ => {}
        }
        Ok(())
    }
}
