//! Bounded queue to the trace thread, which takes many events at once: waking it for each event
//! would cost more than the event.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::event::TraceEvent;
use parking_lot::{Condvar, Mutex};

/// Maximum number of queued events. Above half no further task is traced, so that traced ones have
/// the other half.
pub(super) const QUEUE_CAPACITY: usize = 65_536;

/// Time in which events are gathered.
const BATCH_DELAY: Duration = Duration::from_millis(200);

/// Number of events that are taken at once without further delay.
const BATCH_SIZE: usize = QUEUE_CAPACITY / 8;

#[derive(Debug, Default)]
pub(super) struct TraceQueue {
    inner: Mutex<QueueInner>,
    wake: Condvar,
    /// Number of queued events, with those that the thread has taken and not processed.
    waiting: AtomicUsize,
}

#[derive(Debug, Default)]
struct QueueInner {
    events: Vec<TraceEvent>,
    is_closed: bool,
}

impl TraceQueue {
    /// Returns whether more tasks can be traced.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) < QUEUE_CAPACITY / 2
    }

    /// Appends events if all fit; returns the number of dropped events.
    pub(super) fn push(&self, events: Vec<TraceEvent>) -> usize {
        let count = events.len();
        let mut inner = self.inner.lock();
        if inner.is_closed {
            return 0;
        }
        if self.waiting.fetch_add(count, Ordering::Relaxed) + count > QUEUE_CAPACITY {
            self.waiting.fetch_sub(count, Ordering::Relaxed);
            return count;
        }
        let before = inner.events.len();
        inner.events.extend(events);
        let after = inner.events.len();
        drop(inner);
        if (before == 0 && after > 0) || (before < BATCH_SIZE && after >= BATCH_SIZE) {
            self.wake.notify_one();
        }
        0
    }

    /// Waits for events and replaces the processed ones. `false`: closed and empty.
    pub(super) fn take(&self, events: &mut Vec<TraceEvent>) -> bool {
        self.waiting.fetch_sub(events.len(), Ordering::Relaxed);
        events.clear();
        events.shrink_to(BATCH_SIZE);
        let idle = |inner: &mut QueueInner| inner.events.is_empty() && !inner.is_closed;
        let mut inner = self.inner.lock();
        self.wake.wait_while(&mut inner, idle);
        let few = |inner: &mut QueueInner| inner.events.len() < BATCH_SIZE && !inner.is_closed;
        self.wake.wait_while_for(&mut inner, few, BATCH_DELAY);
        std::mem::swap(&mut inner.events, events);
        !events.is_empty()
    }

    /// Closes the queue; returns whether it was open.
    pub(super) fn close(&self) -> bool {
        let was_closed = std::mem::replace(&mut self.inner.lock().is_closed, true);
        self.wake.notify_all();
        !was_closed
    }

    pub(super) fn is_closed(&self) -> bool {
        self.inner.lock().is_closed
    }
}
