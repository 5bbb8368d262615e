//! The ledger of a coordinator and the segment log below it.
//!
//! Owns the durable format of batches, runs and results; knows nothing of buffers, pipelines and
//! scheduling. Blocks, and starts only its own threads. A record is appended when its event happens
//! and may be acknowledged after a later [`commit`](Ledger::commit). Compaction removes the records
//! of ended batches.
//!
//! # Bounds
//!
//! [`LedgerOptions::bytes_max`] is enforced by [`admits`](Ledger::admits), which refuses batches
//! that would not fit. The end of a run is always accepted: its payload is also in the
//! coordinator's memory, which has its own budget. So the records of active batches take at most
//! `bytes_max` plus that budget, the disk at most twice that, and once more during compaction.

mod codec;
mod compact;
mod error;
mod live_records;
pub mod log;
mod record;
mod recover;
mod result;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rollway_core::{BatchId, BatchState, RunEnd, RunOutput};

pub use self::error::LedgerError;
use self::live_records::{EndedRuns, LiveRecords};
pub use self::record::{BatchMark, LedgerEntry, TaskEntry};
use self::record::{put_batch_ended, put_noted, put_run_ended, put_state, put_submitted};
use self::recover::LedgerRecovery;
pub use self::recover::{RecoveredBatch, RecoveredLedger};
use crate::log::{DurableCallback, FramePart, LogError, SegmentLog};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerOptions {
    /// Job name. Opening the ledger of another job fails.
    pub job: String,
    /// Batches are refused when live records would exceed this.
    pub bytes_max: u64,
    /// Number of most recently ended batches whose results are kept.
    pub results_kept: usize,
    /// Compaction starts when garbage exceeds both the live bytes and this.
    pub compact_bytes_min: u64,
    pub segment_bytes: u64,
    /// Batches are refused while this many bytes are unsynced.
    pub unsynced_bytes: u64,
}

impl LedgerOptions {
    /// Returns the default limits.
    pub fn new(job: impl Into<String>) -> Self {
        let log = log::LogOptions::new("ledger", job);
        Self {
            job: log.identity,
            bytes_max: 64 << 30,
            results_kept: 64,
            compact_bytes_min: log.segment_bytes,
            segment_bytes: log.segment_bytes,
            unsynced_bytes: log.unsynced_bytes,
        }
    }
}

/// An open ledger.
#[derive(Debug)]
pub struct Ledger {
    inner: Arc<LedgerShared>,
    compactor: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct LedgerShared {
    options: LedgerOptions,
    log: SegmentLog,
    live: Mutex<LiveRecords>,
    closing: AtomicBool,
}

impl Ledger {
    /// Opens the ledger in a folder, which is created if absent, and returns its content. A tail
    /// torn by a crash was never acknowledged; it is cut off and reported. Any other damage is an
    /// error. Blocks; the payloads of active batches are in memory once.
    pub fn open(
        dir: &Path,
        options: LedgerOptions,
    ) -> Result<(Self, RecoveredLedger), LedgerError> {
        let mut recovery = LedgerRecovery::new(options.results_kept);
        let log = log::LogOptions {
            segment_bytes: options.segment_bytes,
            unsynced_bytes: options.unsynced_bytes,
            ..log::LogOptions::new("ledger", &*options.job)
        };
        let mut visit = |position, bytes: &[u8]| recovery.visit(position, bytes);
        let (log, torn) = SegmentLog::open(dir, log, &mut visit)?;
        let wrong =
            |(offset, found)| LedgerError::Record { dir: PathBuf::from(dir), offset, found };
        if let Some(error) = recovery.error.take() {
            return Err(wrong(error));
        }
        let (recovered, live) = recovery.finish().map_err(|found| wrong((log.end(), found)))?;
        let epoch = recovered.epoch + 1;
        let recovered = RecoveredLedger { torn, epoch, ..recovered };
        let live = Mutex::new(LiveRecords {
            state: record::LedgerCounters { epoch, ..live.state },
            ..live
        });
        let inner = Arc::new(LedgerShared { options, log, live, closing: AtomicBool::new(false) });
        let ledger = Self { inner, compactor: Mutex::new(None) };
        // Numbers of this epoch must never be reused.
        let mut state = Vec::new();
        put_state(&mut state, ledger.inner.live.lock().state);
        ledger.inner.log.append(&[FramePart::Copy(&state)])?;
        ledger.sync()?;
        Ok((ledger, recovered))
    }

    /// Checks whether a batch with this many bytes of tasks fits. Records of an admitted batch are
    /// always accepted.
    pub fn admits(&self, batch: &BatchId, bytes: u64) -> Result<(), LedgerError> {
        let batch = || batch.clone();
        if self.inner.log.is_behind() {
            let bytes = self.unsynced_bytes();
            return Err(LedgerError::Behind { batch: batch(), bytes });
        }
        let max = self.inner.log.frame_bytes_max();
        if bytes > max {
            return Err(LedgerError::TooLarge { batch: batch(), bytes, max });
        }
        let (live, max) = (self.live_bytes(), self.inner.options.bytes_max);
        if live.saturating_add(bytes) > max {
            return Err(LedgerError::Full { batch: batch(), bytes, live, max });
        }
        Ok(())
    }

    /// Appends a record in memory without blocking on the disk. A refused record has no effect.
    pub fn append(&self, record: LedgerEntry<'_>) -> Result<(), LedgerError> {
        let mut live = self.inner.live.lock();
        let live = &mut *live;
        let mut buffer = std::mem::take(&mut live.buffer);
        buffer.clear();
        let done = self.append_to(live, &mut buffer, record);
        live.buffer = buffer;
        done
    }

    fn append_to(
        &self,
        live: &mut LiveRecords,
        buffer: &mut Vec<u8>,
        record: LedgerEntry<'_>,
    ) -> Result<(), LedgerError> {
        let not_active = |key| LedgerError::NotActive { key };
        match record {
            LedgerEntry::Submitted { key, batch, kind, min_wait_num, tasks } => {
                if live.active.contains_key(&key.0)
                    || live.active.values().any(|other| other.batch == *batch)
                {
                    return Err(LedgerError::AlreadyActive { batch: batch.clone() });
                }
                let parts = put_submitted(buffer, key.0, (batch, kind, min_wait_num), tasks);
                let bytes = self.write(buffer, &parts)?;
                let runs = EndedRuns::new(tasks.iter().map(|task| task.repeat_times));
                live.activate(batch.clone(), key.0, bytes, runs);
            }
            LedgerEntry::RunEnded { key, task, run, end } => {
                let active = live.active.get_mut(&key.0).ok_or_else(|| not_active(key))?;
                active.check(task, run)?;
                put_run_ended(buffer, key.0, (task, run), end);
                let bytes = match end {
                    RunEnd::Succeeded(RunOutput { payload: Some(payload), .. }) => {
                        self.write(buffer, &[FramePart::Share(payload)])?
                    }
                    _ => self.write(buffer, &[])?,
                };
                active.end_run(task, run, bytes);
                live.live_bytes += bytes;
            }
            LedgerEntry::Noted { key, note } => {
                let active = live.active.get_mut(&key.0).ok_or_else(|| not_active(key))?;
                put_noted(buffer, key.0, note);
                let bytes = self.write(buffer, &[])?;
                active.bytes += bytes;
                live.live_bytes += bytes;
            }
            LedgerEntry::BatchEnded(result) => {
                if !matches!(result.state, BatchState::Finalized | BatchState::Aborted) {
                    return Err(LedgerError::NotEnded { batch: result.batch.clone() });
                }
                if !live.active.contains_key(&result.key.0) {
                    return Err(not_active(result.key));
                }
                let end = live.state.ends + 1;
                put_batch_ended(buffer, result.key.0, end, result);
                let bytes = self.write(buffer, &[])?;
                live.state.ends = end;
                live.end(result.key.0, bytes, self.inner.options.results_kept);
                self.compact_if_worth_it(live);
            }
            LedgerEntry::Version(version) => {
                let newest = live.state.version;
                if version < newest {
                    return Err(LedgerError::Version { version, newest });
                }
                if version > newest {
                    put_state(buffer, record::LedgerCounters { version, ..live.state });
                    self.write(buffer, &[])?;
                    live.state.version = version;
                    self.compact_if_worth_it(live);
                }
            }
        }
        Ok(())
    }

    /// Calls `then` from a thread of the ledger, in the order of calls, once everything appended
    /// before is durable; see [`SegmentLog::commit`].
    pub fn commit(&self, then: DurableCallback) {
        self.inner.log.commit(then);
    }

    /// Waits until everything appended before is durable.
    pub fn sync(&self) -> Result<(), Arc<LogError>> {
        self.inner.log.sync()
    }

    pub fn unsynced_bytes(&self) -> u64 {
        self.inner.log.unsynced_bytes()
    }

    /// Returns the bytes of live records.
    pub fn live_bytes(&self) -> u64 {
        self.inner.live.lock().live_bytes
    }

    /// Returns the bytes of all records, live or not.
    pub fn bytes(&self) -> u64 {
        self.inner.log.end() - self.inner.log.first()
    }

    fn write(&self, head: &[u8], rest: &[FramePart<'_>]) -> Result<u64, LedgerError> {
        let position = match rest {
            [] => self.inner.log.append(&[FramePart::Copy(head)])?,
            [FramePart::Share(payload)] => {
                self.inner.log.append(&[FramePart::Copy(head), FramePart::Share(payload)])?
            }
            rest => {
                let mut parts = Vec::with_capacity(rest.len() + 1);
                parts.push(FramePart::Copy(head));
                parts.extend_from_slice(rest);
                self.inner.log.append(&parts)?
            }
        };
        Ok(position.end() - position.offset)
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.inner.closing.store(true, Ordering::Relaxed);
        if let Some(compactor) = self.compactor.lock().take() {
            // A panic of the thread was logged already.
            let _ = compactor.join();
        }
    }
}
