//! What could not be traced, by name: said once when it begins, and in numbers at the end.

use std::sync::atomic::{AtomicU64, Ordering};

/// What could not be traced.
#[derive(Debug, Default)]
pub(super) struct Losses {
    tasks: AtomicU64,
    marks: AtomicU64,
    spans: AtomicU64,
    events: AtomicU64,
}

/// What was not traced of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UntracedCounts {
    /// Tasks that came faster than they can be traced; they are left out whole.
    pub tasks: u64,
    /// Facts that found the queue full.
    pub facts: u64,
    /// Spans that the collector did not get.
    pub spans: u64,
    /// Events that did not fit into the file, or could not be written.
    pub events: u64,
}

impl Losses {
    pub(super) fn tasks(&self, count: u64) {
        if count > 0 && self.tasks.fetch_add(count, Ordering::Relaxed) == 0 {
            tracing::warn!(
                "tasks come faster than they can be traced: some are left out of the trace, whole"
            );
        }
    }

    pub(super) fn marks(&self, count: usize) {
        if self.marks.fetch_add(count as u64, Ordering::Relaxed) == 0 {
            tracing::warn!("more happens than can be traced: the trace has gaps");
        }
    }

    pub(super) fn spans(&self, count: usize, why: &str) {
        if self.spans.fetch_add(count as u64, Ordering::Relaxed) == 0 {
            tracing::warn!(why, "spans do not reach the collector; the job goes on");
        }
    }

    pub(super) fn events(&self, count: u64, why: &str) {
        if self.events.fetch_add(count, Ordering::Relaxed) == 0 {
            tracing::warn!(why, "the trace file does not grow any more; the job goes on");
        }
    }

    pub(super) fn count(&self) -> UntracedCounts {
        UntracedCounts {
            tasks: self.tasks.load(Ordering::Relaxed),
            facts: self.marks.load(Ordering::Relaxed),
            spans: self.spans.load(Ordering::Relaxed),
            events: self.events.load(Ordering::Relaxed),
        }
    }

    /// Says what is missing, if anything is.
    pub(super) fn tell(&self) {
        let UntracedCounts { tasks, facts, spans, events } = self.count();
        if (tasks, facts, spans, events) != (0, 0, 0, 0) {
            tracing::warn!(tasks, facts, spans, events, "the trace does not have everything");
        }
    }
}
