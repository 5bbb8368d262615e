//! Where experiences go: a store that takes the same results twice as once, and remembers who sent
//! what.

use std::collections::BTreeMap;

use rollway_core::{BatchKey, PayloadId, TaskId};

/// Which run of which task of which batch.
pub type Origin = (BatchKey, TaskId, u32);

/// The store: what it has for every run of every task of every batch.
#[derive(Debug, Default)]
pub struct SimSink {
    stored: BTreeMap<Origin, PayloadId>,
    /// Runs for which it was given two different payloads.
    pub conflicts: Vec<Origin>,
}

impl SimSink {
    /// Stores one payload under the run it comes from.
    pub fn store(&mut self, origin: Origin, payload: PayloadId) {
        let stored = *self.stored.entry(origin).or_insert(payload);
        if stored != payload {
            self.conflicts.push(origin);
        }
    }

    /// Tells whether a payload is stored.
    pub fn has(&self, origin: Origin, payload: PayloadId) -> bool {
        self.stored.get(&origin) == Some(&payload)
    }

    /// Returns how many payloads of a batch are stored.
    pub fn count(&self, batch: BatchKey) -> u64 {
        let first = (batch, TaskId(0), 0);
        let last = (batch, TaskId(u32::MAX), u32::MAX);
        self.stored.range(first..=last).count() as u64
    }
}
