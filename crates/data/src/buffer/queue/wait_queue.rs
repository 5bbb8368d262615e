//! FIFO queue of waiting threads; only the first is woken.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, MutexGuard};

/// Part of the state that a mutex guards; the condition variables belong to threads that wait on
/// that mutex.
#[derive(Debug, Default)]
pub(super) struct WaitQueue {
    waiting: VecDeque<(u64, Arc<Condvar>)>,
    tickets: u64,
}

impl WaitQueue {
    /// Appends a waiter; returns its ticket.
    pub(super) fn join(&mut self, wakeup: &Arc<Condvar>) -> u64 {
        self.tickets += 1;
        self.waiting.push_back((self.tickets, Arc::clone(wakeup)));
        self.tickets
    }

    pub(super) fn leave(&mut self, ticket: u64) {
        self.waiting.retain(|(other, _)| *other != ticket);
        self.call();
    }

    /// Returns whether this ticket is first.
    pub(super) fn is_first(&self, ticket: u64) -> bool {
        self.waiting.front().is_some_and(|(first, _)| *first == ticket)
    }

    pub(super) fn call(&self) {
        if let Some((_, wakeup)) = self.waiting.front() {
            wakeup.notify_one();
        }
    }

    pub(super) fn call_all(&self) {
        for (_, wakeup) in &self.waiting {
            wakeup.notify_one();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// End of a wait. `None`: beyond the range of the clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitDeadline(Option<Instant>);

impl WaitDeadline {
    pub(super) fn after(timeout: Duration) -> Self {
        Self(Instant::now().checked_add(timeout))
    }

    pub(super) fn is_past(self) -> bool {
        self.0.is_some_and(|at| at <= Instant::now())
    }

    /// Waits until notified, until the deadline or for `most`.
    pub(super) fn wait<T>(
        self,
        wakeup: &Condvar,
        guard: &mut MutexGuard<'_, T>,
        most: Option<Duration>,
    ) {
        let left = self.0.map(|at| at.saturating_duration_since(Instant::now()));
        match left.into_iter().chain(most).min() {
            Some(time) => drop(wakeup.wait_for(guard, time)),
            None => wakeup.wait(guard),
        }
    }
}
