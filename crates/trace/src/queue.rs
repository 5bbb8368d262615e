//! Marks on their way to the thread that traces. It takes many at once: to wake it for every one
//! would cost more than the mark.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::event::TraceEvent;
use parking_lot::{Condvar, Mutex};

/// How many marks may wait for the thread. No task is begun to be traced once half are there, so
/// that those that were have the other half.
pub(super) const QUEUE_CAPACITY: usize = 65_536;

/// How long marks may wait, so that many are taken at once.
const BATCH_DELAY: Duration = Duration::from_millis(200);

/// From how many on they do not wait any longer.
const BATCH_SIZE: usize = QUEUE_CAPACITY / 8;

/// Marks that wait.
#[derive(Debug, Default)]
pub(super) struct TraceQueue {
    inner: Mutex<QueueInner>,
    wake: Condvar,
    /// How many marks there are, with those that the thread has taken and is at.
    waiting: AtomicUsize,
}

#[derive(Debug, Default)]
struct QueueInner {
    marks: Vec<TraceEvent>,
    is_closed: bool,
}

impl TraceQueue {
    /// Tells whether there is room for more tasks.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) < QUEUE_CAPACITY / 2
    }

    /// Puts marks behind the others, if there is room for them; returns how many were left out.
    pub(super) fn push(&self, marks: Vec<TraceEvent>) -> usize {
        let count = marks.len();
        let mut inner = self.inner.lock();
        // Nobody traces any more.
        if inner.is_closed {
            return 0;
        }
        if self.waiting.fetch_add(count, Ordering::Relaxed) + count > QUEUE_CAPACITY {
            self.waiting.fetch_sub(count, Ordering::Relaxed);
            return count;
        }
        let before = inner.marks.len();
        inner.marks.extend(marks);
        let after = inner.marks.len();
        drop(inner);
        if (before == 0 && after > 0) || (before < BATCH_SIZE && after >= BATCH_SIZE) {
            self.wake.notify_one();
        }
        0
    }

    /// Waits for marks and takes all in place of those that were taken last. False: there are no
    /// more.
    pub(super) fn take(&self, marks: &mut Vec<TraceEvent>) -> bool {
        self.waiting.fetch_sub(marks.len(), Ordering::Relaxed);
        marks.clear();
        marks.shrink_to(BATCH_SIZE);
        let idle = |inner: &mut QueueInner| inner.marks.is_empty() && !inner.is_closed;
        let mut inner = self.inner.lock();
        self.wake.wait_while(&mut inner, idle);
        // More is sure to come.
        let few = |inner: &mut QueueInner| inner.marks.len() < BATCH_SIZE && !inner.is_closed;
        self.wake.wait_while_for(&mut inner, few, BATCH_DELAY);
        std::mem::swap(&mut inner.marks, marks);
        !marks.is_empty()
    }

    /// Lets nothing more in; tells whether that is new.
    pub(super) fn close(&self) -> bool {
        let was_closed = std::mem::replace(&mut self.inner.lock().is_closed, true);
        self.wake.notify_all();
        !was_closed
    }

    pub(super) fn is_closed(&self) -> bool {
        self.inner.lock().is_closed
    }
}
