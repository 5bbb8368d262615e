//! Counts of what was not traced, with a warning at the first loss and at the end.

use std::sync::atomic::{AtomicU64, Ordering};

use rollway_telemetry::DropCounters;

/// Name of this observer in the counts of dropped items.
const OBSERVER: &str = "trace";

#[derive(Debug, Default)]
pub(super) struct Losses {
    tasks: AtomicU64,
    facts: AtomicU64,
    spans: AtomicU64,
    events: AtomicU64,
    drops: DropCounters,
}

/// Counts of what was not traced of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UntracedCounts {
    /// Tasks above the rate limit; none of their spans are traced.
    pub tasks: u64,
    /// Events dropped because the queue was full.
    pub facts: u64,
    /// Spans that did not reach the collector.
    pub spans: u64,
    /// Events that were not written to the file.
    pub events: u64,
}

impl Losses {
    /// Counts lost events and spans as `trace`. Tasks above the rate limit are not traced, but not
    /// dropped.
    pub(super) fn new(drops: &DropCounters) -> Self {
        drops.expect(OBSERVER);
        Self { drops: drops.clone(), ..Self::default() }
    }

    pub(super) fn tasks(&self, count: u64) {
        if count > 0 && self.tasks.fetch_add(count, Ordering::Relaxed) == 0 {
            tracing::warn!("more tasks than the trace limit: some are not traced");
        }
    }

    pub(super) fn events_lost(&self, count: usize) {
        self.drops.count(OBSERVER, count as u64);
        if self.facts.fetch_add(count as u64, Ordering::Relaxed) == 0 {
            tracing::warn!("trace queue full: the trace has gaps");
        }
    }

    pub(super) fn spans(&self, count: usize, reason: &str) {
        self.drops.count(OBSERVER, count as u64);
        if self.spans.fetch_add(count as u64, Ordering::Relaxed) == 0 {
            tracing::warn!(reason, "spans do not reach the collector; the job continues");
        }
    }

    pub(super) fn events(&self, count: u64, reason: &str) {
        self.drops.count(OBSERVER, count);
        if self.events.fetch_add(count, Ordering::Relaxed) == 0 {
            tracing::warn!(reason, "trace file truncated; the job continues");
        }
    }

    pub(super) fn count(&self) -> UntracedCounts {
        UntracedCounts {
            tasks: self.tasks.load(Ordering::Relaxed),
            facts: self.facts.load(Ordering::Relaxed),
            spans: self.spans.load(Ordering::Relaxed),
            events: self.events.load(Ordering::Relaxed),
        }
    }

    /// Logs what is missing.
    pub(super) fn log(&self) {
        let UntracedCounts { tasks, facts, spans, events } = self.count();
        if (tasks, facts, spans, events) != (0, 0, 0, 0) {
            tracing::warn!(tasks, facts, spans, events, "the trace is incomplete");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_events_and_spans_are_dropped_items_and_untraced_tasks_are_not() {
        let drops = DropCounters::default();
        let losses = Losses::new(&drops);
        assert_eq!(drops.read()[OBSERVER], 0);
        losses.tasks(100);
        losses.events_lost(1);
        losses.spans(2, "the collector is too slow");
        losses.events(4, "`trace.max_file_bytes` is reached");
        assert_eq!(drops.read()[OBSERVER], 7);
    }
}
