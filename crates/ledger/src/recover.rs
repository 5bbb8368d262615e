//! Recovery of a ledger's content at opening.
//!
//! Compaction copies records before it removes the originals, so a record may occur twice, and the
//! end of a run may precede the copy of its batch. Records are therefore collected by batch key in
//! any order. One order is guaranteed: no record of a batch follows its end.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use rollway_core::{BatchId, BatchKey, BatchResult, BatchType, RunEnd, RunId, RunOutput, TaskId};

use super::live_records::{EndedRuns, LiveRecords};
use super::record::{self, BatchMark, DecodedEntry, LedgerCounters, TaskEntry};
use crate::log::{LogPosition, TornTail};

/// Content of a ledger at opening.
#[derive(Debug, Default)]
pub struct RecoveredLedger {
    /// Active batches in the order of submission.
    pub batches: Vec<RecoveredBatch>,
    /// Results of the last ended batches, in the order of their ends.
    pub results: Vec<(BatchId, Arc<BatchResult>)>,
    /// Newest model version.
    pub version: u64,
    /// Number of times the ledger has been opened, including this one.
    pub epoch: u64,
    /// Unacknowledged tail that a crash left and opening cut off.
    pub torn: Option<TornTail>,
}

/// An active batch.
#[derive(Clone, Debug, PartialEq)]
pub struct RecoveredBatch {
    pub batch: BatchId,
    pub key: BatchKey,
    pub kind: BatchType,
    /// Number of tasks that suffice.
    pub min_wait_num: Option<u32>,
    /// Tasks; their indices are their ids.
    pub tasks: Vec<TaskEntry>,
    /// Runs that ended, by task and run; all others are to be executed.
    pub ended: Vec<(TaskId, RunId, RunEnd<RunOutput<Bytes>>)>,
    /// Marks in the order in which they can occur.
    pub notes: Vec<BatchMark>,
}

/// Records of one batch key.
#[derive(Debug, Default)]
struct BatchRecords {
    batch: Option<RecoveredBatch>,
    runs: BTreeMap<(TaskId, RunId), RunEnd<RunOutput<Bytes>>>,
    /// By the order in which they can occur.
    notes: BTreeMap<u8, BatchMark>,
    bytes: u64,
}

/// Collects records into [`RecoveredLedger`].
#[derive(Debug, Default)]
pub(super) struct LedgerRecovery {
    results_kept: usize,
    state: LedgerCounters,
    batches: BTreeMap<u64, BatchRecords>,
    results: BTreeMap<u64, (u64, u64, Arc<BatchResult>)>,
    /// Offset and description of the first undecodable record.
    pub(super) error: Option<(u64, String)>,
}

impl LedgerRecovery {
    pub(super) fn new(results_kept: usize) -> Self {
        Self { results_kept, ..Self::default() }
    }

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
            DecodedEntry::Submitted { key, batch, kind, min_wait_num, tasks } => {
                let entry = self.batches.entry(key).or_default();
                if entry.batch.is_none() {
                    let (key, ended, notes) = (BatchKey(key), Vec::new(), Vec::new());
                    let batch =
                        RecoveredBatch { key, batch, kind, min_wait_num, tasks, ended, notes };
                    entry.batch = Some(batch);
                    entry.bytes += bytes;
                }
            }
            DecodedEntry::RunEnded { key, task, run, end } => {
                let entry = self.batches.entry(key).or_default();
                if let std::collections::btree_map::Entry::Vacant(vacant) =
                    entry.runs.entry((task, run))
                {
                    vacant.insert(end);
                    entry.bytes += bytes;
                }
            }
            DecodedEntry::Noted { key, note } => {
                let entry = self.batches.entry(key).or_default();
                let order = match note {
                    BatchMark::Truncated { .. } => 0,
                    BatchMark::DeliveryStarted => 1,
                    BatchMark::Aborting(_) => 2,
                };
                if entry.notes.insert(order, note).is_none() {
                    entry.bytes += bytes;
                }
            }
            DecodedEntry::BatchEnded { key, end, result } => {
                self.state.ends = self.state.ends.max(end);
                self.batches.remove(&key);
                self.results.insert(end, (key, bytes, result));
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

    /// Returns the content and the live records, or a description of the inconsistency.
    pub(super) fn finish(self) -> Result<(RecoveredLedger, LiveRecords), String> {
        let mut live = LiveRecords { state: self.state, ..LiveRecords::default() };
        let LedgerCounters { version, epoch, .. } = self.state;
        let mut recovered = RecoveredLedger { version, epoch, ..RecoveredLedger::default() };
        for (_, (key, bytes, result)) in self.results {
            live.add_result(key, bytes, self.results_kept);
            recovered.results.push((result.batch.clone(), result));
        }
        for (key, records) in self.batches {
            let Some(mut batch) = records.batch else {
                return Err(format!("batch key {key} has records but no submission"));
            };
            let mut runs = EndedRuns::new(batch.tasks.iter().map(|task| task.repeat_times));
            for ((task, run), end) in records.runs {
                if !runs.end(task, run) {
                    let name = &batch.batch;
                    return Err(format!("batch {name} has no run {run} of task {task}"));
                }
                batch.ended.push((task, run, end));
            }
            batch.notes.extend(records.notes.into_values());
            if live.active.values().any(|other| other.batch == batch.batch) {
                return Err(format!("batch {} is active twice", batch.batch));
            }
            live.activate(batch.batch.clone(), key, records.bytes, runs);
            recovered.batches.push(batch);
        }
        Ok((recovered, live))
    }
}
