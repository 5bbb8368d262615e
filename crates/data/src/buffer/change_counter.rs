//! Counter of changes on which threads of this process wait.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};

#[derive(Debug, Default)]
pub(super) struct ChangeCounter {
    count: Mutex<u64>,
    changed: Condvar,
}

impl ChangeCounter {
    pub(super) fn increment(&self) {
        *self.count.lock() += 1;
        self.changed.notify_all();
    }

    pub(super) fn count(&self) -> u64 {
        *self.count.lock()
    }

    /// Waits while the count is `seen`. Returns whether it has changed.
    pub(super) fn wait(&self, seen: u64, until: Instant) -> bool {
        let mut count = self.count.lock();
        self.changed.wait_while_until(&mut count, |count| *count == seen, until);
        *count != seen
    }
}
