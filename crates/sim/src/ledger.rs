//! Model of the ledger, which outlives the coordinator: records in order, a durable prefix, and
//! actions that wait for records.

use std::collections::{BTreeSet, VecDeque};

use rollway_core::{Action, BatchKey, LedgerRecord};

#[derive(Debug, Default)]
pub struct SimLedger {
    records: Vec<LedgerRecord>,
    safe: usize,
    /// Number of durable records after the current write.
    writing: Option<usize>,
    /// Responses and deliveries, each with the number of records that must be durable before.
    held: VecDeque<(usize, Action)>,
}

impl SimLedger {
    pub fn append(&mut self, record: LedgerRecord) {
        self.records.push(record);
    }

    /// Begins a write unless one is open. Returns whether it did.
    pub fn write(&mut self) -> bool {
        let begins = self.writing.is_none() && self.safe < self.records.len();
        if begins {
            self.writing = Some(self.records.len());
        }
        begins
    }

    pub fn written(&mut self) {
        self.safe = self.writing.take().unwrap_or(self.safe);
    }

    /// Holds a response or a delivery back until all earlier records are durable.
    pub fn hold(&mut self, action: Action) {
        self.held.push_back((self.records.len(), action));
    }

    /// Returns the next action that is released.
    pub fn release(&mut self) -> Option<Action> {
        let safe = self.safe;
        self.held.pop_front_if(|(needs, _)| *needs <= safe).map(|(_, action)| action)
    }

    /// Returns whether no action is held back.
    pub fn idle(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns the number of durable records, and of all records.
    pub const fn reach(&self) -> (usize, usize) {
        (self.safe, self.records.len())
    }

    /// Keeps the first `left` records after a crash, and drops all held actions.
    pub fn crash(&mut self, left: usize) {
        self.records.truncate(left);
        *self = Self { records: std::mem::take(&mut self.records), safe: left, ..Self::default() };
    }

    pub fn records(&self) -> &[LedgerRecord] {
        &self.records
    }

    /// Returns the closed batches, oldest first.
    pub fn ended(&self) -> Vec<BatchKey> {
        let ended = |record: &LedgerRecord| {
            matches!(record, LedgerRecord::Closed(_)).then(|| record.batch())
        };
        self.records.iter().filter_map(ended).collect()
    }

    /// Returns the records to restore: of closed batches only `Closed`.
    pub fn durable_records(&self) -> Vec<LedgerRecord> {
        let ended: BTreeSet<BatchKey> = self.ended().into_iter().collect();
        let needed = |record: &&LedgerRecord| {
            matches!(record, LedgerRecord::Closed(_)) || !ended.contains(&record.batch())
        };
        self.records.iter().filter(needed).cloned().collect()
    }
}
