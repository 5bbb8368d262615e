//! The sink: an idempotent store that remembers the origin of payloads.

use std::collections::BTreeMap;

use rollway_core::{BatchKey, PayloadId, TaskId};

pub type Origin = (BatchKey, TaskId, u32);

#[derive(Debug, Default)]
pub struct SimSink {
    stored: BTreeMap<Origin, PayloadId>,
    /// Runs with two different payloads.
    pub conflicts: Vec<Origin>,
}

impl SimSink {
    pub fn store(&mut self, origin: Origin, payload: PayloadId) {
        let stored = *self.stored.entry(origin).or_insert(payload);
        if stored != payload {
            self.conflicts.push(origin);
        }
    }

    /// Returns the number of stored payloads of a batch.
    pub fn count(&self, batch: BatchKey) -> u64 {
        let first = (batch, TaskId(0), 0);
        let last = (batch, TaskId(u32::MAX), u32::MAX);
        self.stored.range(first..=last).count() as u64
    }
}
