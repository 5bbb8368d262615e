//! What a ledger holds when it is opened.
//!
//! Records may stand in the log twice, since compaction copies them before it removes what it has
//! copied; and the end of a run may stand before the copy of the batch it belongs to. So records
//! are gathered by life, run and end, whatever their order. Only one order is sure: no record of a
//! life follows the record that ends it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use rollway_core::{BatchId, BatchKey, BatchResult, BatchType, RunEnd, RunId, RunOutput, TaskId};

use super::live_records::{EndedRuns, LiveRecords};
use super::record::{self, BatchMark, DecodedEntry, LedgerCounters, TaskEntry};
use crate::log::{LogPosition, TornTail};

/// What survived.
#[derive(Debug, Default)]
pub struct RecoveredLedger {
    /// The batches that have not ended, in the order of submission.
    pub batches: Vec<RecoveredBatch>,
    /// The results of the last batches that have, in the order of their ends.
    pub results: Vec<(BatchId, Arc<BatchResult>)>,
    /// The highest version of the model that was seen.
    pub version: u64,
    /// How often the ledger has been opened, this time included.
    pub epoch: u64,
    /// What a crash left behind and was cut off; nobody was ever told that it was safe.
    pub torn: Option<TornTail>,
}

/// A batch that has not ended.
#[derive(Clone, Debug, PartialEq)]
pub struct RecoveredBatch {
    /// Its name.
    pub batch: BatchId,
    pub key: BatchKey,
    /// Whether it is trained on.
    pub kind: BatchType,
    /// How many of its tasks are enough.
    pub min_wait_num: Option<u32>,
    /// Its tasks; their places are their ids.
    pub tasks: Vec<TaskEntry>,
    /// The runs that have ended, by task and run. All others are to be done.
    pub ended: Vec<(TaskId, RunId, RunEnd<RunOutput<Bytes>>)>,
    /// What else happened to it, in the order in which it can have happened.
    pub notes: Vec<BatchMark>,
}

/// The records of one life.
#[derive(Debug, Default)]
struct BatchRecords {
    batch: Option<RecoveredBatch>,
    runs: BTreeMap<(TaskId, RunId), RunEnd<RunOutput<Bytes>>>,
    /// By the order in which they can happen.
    notes: BTreeMap<u8, BatchMark>,
    bytes: u64,
}

/// Records on their way to what they mean.
#[derive(Debug, Default)]
pub(super) struct LedgerRecovery {
    results_kept: usize,
    state: LedgerCounters,
    lives: BTreeMap<u64, BatchRecords>,
    results: BTreeMap<u64, (u64, u64, Arc<BatchResult>)>,
    /// The first record that makes no sense.
    pub(super) error: Option<(u64, String)>,
}

impl LedgerRecovery {
    pub(super) fn new(results_kept: usize) -> Self {
        Self { results_kept, ..Self::default() }
    }

    /// Takes in a record.
    pub(super) fn visit(&mut self, position: LogPosition, bytes: &[u8]) {
        if self.error.is_some() {
            return;
        }
        match record::read(bytes) {
            Ok(record) => self.take(record, position.end() - position.offset),
            Err(found) => self.error = Some((position.offset, found)),
        }
    }

    fn take(&mut self, record: DecodedEntry, bytes: u64) {
        match record {
            DecodedEntry::Submitted { life, batch, kind, min_wait_num, tasks } => {
                let entry = self.lives.entry(life).or_default();
                if entry.batch.is_none() {
                    let (key, ended, notes) = (BatchKey(life), Vec::new(), Vec::new());
                    let batch =
                        RecoveredBatch { key, batch, kind, min_wait_num, tasks, ended, notes };
                    entry.batch = Some(batch);
                    entry.bytes += bytes;
                }
            }
            DecodedEntry::RunEnded { life, task, run, end } => {
                let entry = self.lives.entry(life).or_default();
                if let std::collections::btree_map::Entry::Vacant(vacant) =
                    entry.runs.entry((task, run))
                {
                    vacant.insert(end);
                    entry.bytes += bytes;
                }
            }
            DecodedEntry::Noted { life, note } => {
                let entry = self.lives.entry(life).or_default();
                let order = match note {
                    BatchMark::Cut { .. } => 0,
                    BatchMark::Offered => 1,
                    BatchMark::GivenUp(_) => 2,
                };
                if entry.notes.insert(order, note).is_none() {
                    entry.bytes += bytes;
                }
            }
            DecodedEntry::BatchEnded { life, end, result } => {
                self.state.ends = self.state.ends.max(end);
                self.lives.remove(&life);
                self.results.insert(end, (life, bytes, result));
                while self.results.len() > self.results_kept {
                    self.results.pop_first();
                }
            }
            DecodedEntry::State(state) => {
                self.state.version = self.state.version.max(state.version);
                self.state.epoch = self.state.epoch.max(state.epoch);
                self.state.ends = self.state.ends.max(state.ends);
            }
        }
    }

    /// Returns what the records mean, and the book to go on with; or what is wrong with them.
    pub(super) fn finish(self) -> Result<(RecoveredLedger, LiveRecords), String> {
        let mut book = LiveRecords { state: self.state, ..LiveRecords::default() };
        let LedgerCounters { version, epoch, .. } = self.state;
        let mut recovered = RecoveredLedger { version, epoch, ..RecoveredLedger::default() };
        for (_, (life, bytes, result)) in self.results {
            book.keep(life, bytes, self.results_kept);
            recovered.results.push((result.batch.clone(), result));
        }
        for (number, life) in self.lives {
            let Some(mut batch) = life.batch else {
                return Err(format!(
                    "something happened to batch {number}, and nobody submitted it"
                ));
            };
            let mut runs = EndedRuns::new(batch.tasks.iter().map(|task| task.repeat_times));
            for ((task, run), end) in life.runs {
                if !runs.end(task, run) {
                    let name = &batch.batch;
                    return Err(format!("batch {name} has no run {run} of task {task}"));
                }
                batch.ended.push((task, run, end));
            }
            batch.notes.extend(life.notes.into_values());
            if book.active.values().any(|other| other.batch == batch.batch) {
                return Err(format!("batch {} lives twice", batch.batch));
            }
            book.activate(batch.batch.clone(), number, life.bytes, runs);
            recovered.batches.push(batch);
        }
        Ok((recovered, book))
    }
}
