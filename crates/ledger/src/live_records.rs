//! Live records of an open ledger: active batches and kept results, with their sizes.

use std::collections::{HashMap, VecDeque};

use rollway_core::{BatchId, RunId, TaskId};

use super::error::LedgerError;
use super::record::LedgerCounters;

#[derive(Debug, Default)]
pub(super) struct LiveRecords {
    pub(super) state: LedgerCounters,
    /// Batches that have not ended, by key.
    pub(super) active: HashMap<u64, ActiveBatch>,
    /// Keys and bytes of the kept results, oldest first.
    pub(super) results: VecDeque<(u64, u64)>,
    pub(super) live_bytes: u64,
    pub(super) compacting: bool,
    /// Scratch buffer for encoding.
    pub(super) buffer: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct ActiveBatch {
    pub(super) batch: BatchId,
    pub(super) bytes: u64,
    runs: EndedRuns,
}

impl LiveRecords {
    pub(super) fn activate(&mut self, batch: BatchId, key: u64, bytes: u64, runs: EndedRuns) {
        self.active.insert(key, ActiveBatch { batch, bytes, runs });
        self.live_bytes += bytes;
    }

    /// Replaces all records of a batch by its result.
    pub(super) fn end(&mut self, key: u64, bytes: u64, results_kept: usize) {
        if let Some(active) = self.active.remove(&key) {
            self.live_bytes -= active.bytes;
            self.add_result(key, bytes, results_kept);
        }
    }

    pub(super) fn add_result(&mut self, key: u64, bytes: u64, results_kept: usize) {
        self.results.push_back((key, bytes));
        self.live_bytes += bytes;
        while self.results.len() > results_kept {
            self.live_bytes -= self.results.pop_front().map_or(0, |(_, bytes)| bytes);
        }
    }

    pub(super) fn has_result(&self, key: u64) -> bool {
        self.results.iter().any(|(other, _)| *other == key)
    }
}

impl ActiveBatch {
    /// Checks that a run exists and has not ended.
    pub(super) fn check(&self, task: TaskId, run: RunId) -> Result<(), LedgerError> {
        let batch = &self.batch;
        match self.runs.has_ended(task, run) {
            Some(false) => Ok(()),
            Some(true) => Err(LedgerError::EndedTwice { batch: batch.clone(), task, run }),
            None => Err(LedgerError::NoSuchRun { batch: batch.clone(), task, run }),
        }
    }

    pub(super) fn end_run(&mut self, task: TaskId, run: RunId, bytes: u64) {
        self.runs.end(task, run);
        self.bytes += bytes;
    }
}

/// Bit set of the ended runs of a batch.
#[derive(Debug)]
pub(super) struct EndedRuns {
    /// Number of runs before each task, then of all tasks.
    before: Vec<u64>,
    ended: Vec<u64>,
}

impl EndedRuns {
    pub(super) fn new(repeat_times: impl Iterator<Item = u32>) -> Self {
        let mut before = vec![0];
        let mut all = 0;
        for runs in repeat_times {
            all += u64::from(runs);
            before.push(all);
        }
        Self { before, ended: vec![0; all.div_ceil(64) as usize] }
    }

    /// Marks a run as ended. Returns false if there is no such run.
    pub(super) fn end(&mut self, task: TaskId, run: RunId) -> bool {
        let Some(at) = self.run_index(task, run) else { return false };
        self.ended[at / 64] |= 1 << (at % 64);
        true
    }

    fn has_ended(&self, task: TaskId, run: RunId) -> Option<bool> {
        self.run_index(task, run).map(|at| self.ended[at / 64] >> (at % 64) & 1 == 1)
    }

    fn run_index(&self, task: TaskId, run: RunId) -> Option<usize> {
        let [first, next] = *self.before.get(task.0 as usize..)?.first_chunk()?;
        let at = first + u64::from(run.0);
        (at < next).then_some(at as usize)
    }
}
