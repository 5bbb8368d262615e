//! Which instants matter, and for what.

use std::collections::BTreeSet;

use crate::scheduler::view::DeadlineReason;
use crate::time::Time;

/// All timers, earliest first. Each has an owner that remembers when it is set, in an
/// `Option<Time>` of its own: so that a timer is moved without being searched for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timers(BTreeSet<(Time, DeadlineReason)>);

impl Timers {
    /// Moves a timer from where its owner has it to `at`.
    pub(crate) fn set(&mut self, why: DeadlineReason, owned: &mut Option<Time>, at: Option<Time>) {
        if *owned == at {
            return;
        }
        if let Some(old) = owned.take() {
            self.0.remove(&(old, why));
        }
        if let Some(at) = at {
            self.0.insert((at, why));
            *owned = Some(at);
        }
    }

    /// Returns the earliest.
    pub(crate) fn first(&self) -> Option<(Time, DeadlineReason)> {
        self.0.first().copied()
    }

    /// Takes the earliest out if it is due. Its owner still believes it to be set.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<DeadlineReason> {
        let (at, why) = self.first()?;
        if at > now {
            return None;
        }
        self.0.pop_first();
        Some(why)
    }

    /// Returns how many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Tells whether this one is set.
    pub(crate) fn contains(&self, why: DeadlineReason, at: Time) -> bool {
        self.0.contains(&(at, why))
    }
}
