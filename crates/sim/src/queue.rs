//! Planned events by time; events at the same time keep the order in which they were planned.

use std::collections::BTreeMap;

use rollway_core::Time;

#[derive(Debug)]
pub struct EventQueue<E> {
    events: BTreeMap<(Time, u64), E>,
    planned: u64,
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self { events: BTreeMap::new(), planned: 0 }
    }
}

impl<E> EventQueue<E> {
    pub fn plan(&mut self, at: Time, event: E) {
        self.planned += 1;
        self.events.insert((at, self.planned), event);
    }

    pub fn next_at(&self) -> Option<Time> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    /// Removes the next event.
    pub fn take(&mut self) -> Option<(Time, E)> {
        self.events.pop_first().map(|((at, _), event)| (at, event))
    }
}
