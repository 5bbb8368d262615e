//! Timers, ordered by time.

use std::collections::BTreeSet;

use crate::{DeadlineReason, Time};

/// All timers, earliest first. The owner of each keeps its time in an `Option<Time>`, so that a
/// timer is moved without a search.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timers(BTreeSet<(Time, DeadlineReason)>);

impl Timers {
    /// Moves a timer from the time in `owned` to `at`.
    pub(crate) fn set(
        &mut self,
        reason: DeadlineReason,
        owned: &mut Option<Time>,
        at: Option<Time>,
    ) {
        if *owned == at {
            return;
        }
        if let Some(old) = owned.take() {
            self.0.remove(&(old, reason));
        }
        if let Some(at) = at {
            self.0.insert((at, reason));
            *owned = Some(at);
        }
    }

    pub(crate) fn first(&self) -> Option<(Time, DeadlineReason)> {
        self.0.first().copied()
    }

    /// Removes the earliest timer if it is due. Its owner must clear its own copy.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<DeadlineReason> {
        let (at, reason) = self.first()?;
        if at > now {
            return None;
        }
        self.0.pop_first();
        Some(reason)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn contains(&self, reason: DeadlineReason, at: Time) -> bool {
        self.0.contains(&(at, reason))
    }
}
