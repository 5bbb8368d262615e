//! Planned events by time; events at the same time keep the order in which they were planned.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use rollway_core::Time;

#[derive(Debug)]
pub struct EventQueue<E> {
    heap: BinaryHeap<Reverse<QueueEntry<E>>>,
    planned: u64,
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), planned: 0 }
    }
}

impl<E> EventQueue<E> {
    pub fn plan(&mut self, at: Time, event: E) {
        self.planned += 1;
        self.heap.push(Reverse(QueueEntry { at, serial: self.planned, event }));
    }

    pub fn next_at(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    /// Removes the next event.
    pub fn take(&mut self) -> Option<(Time, E)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }
}

#[derive(Debug)]
struct QueueEntry<E> {
    at: Time,
    serial: u64,
    event: E,
}

impl<E> Ord for QueueEntry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.serial).cmp(&(other.at, other.serial))
    }
}

impl<E> PartialOrd for QueueEntry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for QueueEntry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for QueueEntry<E> {}
