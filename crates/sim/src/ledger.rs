//! A model of the ledger that outlives the coordinator: records in order, of which a beginning is
//! safe, and what waits for the rest of them to be.

use std::collections::{BTreeSet, VecDeque};

use rollway_core::{Action, BatchKey, LedgerRecord};

/// The ledger, and what waits for it.
#[derive(Debug, Default)]
pub struct SimLedger {
    records: Vec<LedgerRecord>,
    safe: usize,
    /// How many will be when what is being written is.
    writing: Option<usize>,
    /// Answers and deliveries, each with the number of records that must be safe before.
    held: VecDeque<(usize, Action)>,
}

impl SimLedger {
    /// Adds a record.
    pub fn append(&mut self, record: LedgerRecord) {
        self.records.push(record);
    }

    /// Begins to make safe what is not; tells whether there is such, and nothing is being written.
    pub fn write(&mut self) -> bool {
        let begins = self.writing.is_none() && self.safe < self.records.len();
        if begins {
            self.writing = Some(self.records.len());
        }
        begins
    }

    /// What was being written is safe.
    pub fn written(&mut self) {
        self.safe = self.writing.take().unwrap_or(self.safe);
    }

    /// Holds an answer or a delivery back until all records before it are safe.
    pub fn hold(&mut self, action: Action) {
        self.held.push_back((self.records.len(), action));
    }

    /// Returns the next answer or delivery that has waited long enough.
    pub fn release(&mut self) -> Option<Action> {
        let safe = self.safe;
        self.held.pop_front_if(|(needs, _)| *needs <= safe).map(|(_, action)| action)
    }

    /// Tells whether nothing waits.
    pub fn idle(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns how many records are certainly safe, and how many there are.
    pub const fn reach(&self) -> (usize, usize) {
        (self.safe, self.records.len())
    }

    /// Whoever wrote it is no more: `left` records are found, and nothing waits any more.
    pub fn crash(&mut self, left: usize) {
        self.records.truncate(left);
        *self = Self { records: std::mem::take(&mut self.records), safe: left, ..Self::default() };
    }

    /// Returns all records.
    pub fn records(&self) -> &[LedgerRecord] {
        &self.records
    }

    /// Returns the batches that have ended, oldest end first.
    pub fn ended(&self) -> Vec<BatchKey> {
        let ended = |record: &LedgerRecord| {
            matches!(record, LedgerRecord::Closed(_)).then(|| record.batch())
        };
        self.records.iter().filter_map(ended).collect()
    }

    /// Returns what a new core is told: of batches that have ended, only that.
    pub fn durable_records(&self) -> Vec<LedgerRecord> {
        let ended: BTreeSet<BatchKey> = self.ended().into_iter().collect();
        let needed = |record: &&LedgerRecord| {
            matches!(record, LedgerRecord::Closed(_)) || !ended.contains(&record.batch())
        };
        self.records.iter().filter(needed).cloned().collect()
    }
}
