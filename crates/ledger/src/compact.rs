//! Compaction: copies live records to the end of the log, then removes everything before the
//! copies.
//!
//! It runs beside appends and may be interrupted at any point. Nothing is missing until `start` is
//! replaced atomically, and recovery ignores duplicates. Records are copied under the lock under
//! which batches end, so that no copy follows the end of its batch: a later compaction could remove
//! the end, keep the copy and so revive the batch.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::error::LedgerError;
use super::record;
use super::{Ledger, LedgerShared};
use crate::log::{FramePart, LogError};

/// Maximum bytes of copies in memory before they are synced.
const UNSYNCED: u64 = 8 << 20;

impl Ledger {
    /// Copies live records and removes the rest. Runs automatically when enough can be removed;
    /// blocks.
    pub fn compact(&self) -> Result<(), LedgerError> {
        let busy = std::mem::replace(&mut self.inner.live.lock().compacting, true);
        if busy { Ok(()) } else { self.inner.compact() }
    }

    /// Starts compaction if more can be removed than is kept.
    pub(super) fn compact_if_worth_it(&self, live: &mut super::LiveRecords) {
        // The compacting thread may hold the segments while it waits for the disk.
        if live.compacting {
            return;
        }
        let log = &self.inner.log;
        let garbage = (log.end() - log.first()).saturating_sub(live.live_bytes);
        let is_worthwhile = garbage > live.live_bytes.max(self.inner.options.compact_bytes_min);
        // A log that is behind must not get more to write.
        if !is_worthwhile || log.is_behind() {
            return;
        }
        let inner = Arc::clone(&self.inner);
        let thread = std::thread::Builder::new().name("rollway-compact".into());
        let started = thread.spawn(move || {
            if let Err(error) = inner.compact() {
                tracing::warn!(%error, "cannot compact the ledger; retrying later");
            }
        });
        match started {
            Ok(thread) => {
                live.compacting = true;
                *self.compactor.lock() = Some(thread);
            }
            Err(error) => tracing::warn!(%error, "cannot start a thread to compact the ledger"),
        }
    }
}

impl LedgerShared {
    /// Compacts; the caller has set `compacting`.
    fn compact(&self) -> Result<(), LedgerError> {
        let done = self.copy_and_remove();
        self.live.lock().compacting = false;
        done
    }

    fn copy_and_remove(&self) -> Result<(), LedgerError> {
        // Fails while the disk is full, before anything is copied into memory.
        self.log.sync()?;
        let until = {
            let live = self.live.lock();
            self.log.rotate();
            let until = self.log.end();
            let mut state = Vec::new();
            record::put_state(&mut state, live.state);
            self.log.append(&[FramePart::Copy(&state)])?;
            until
        };
        self.log.sync()?;
        let mut failed = None;
        self.log.each(self.log.first(), &mut |position, bytes| {
            if position.offset < until && failed.is_none() {
                failed = self.copy(bytes).err();
            }
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        self.log.sync()?;
        self.log.remove_before(until)?;
        Ok(())
    }

    fn copy(&self, bytes: &[u8]) -> Result<(), LedgerError> {
        if self.closing.load(Ordering::Relaxed) {
            return Err(LogError::Closed.into());
        }
        // Every record was decoded at opening or written since.
        let Ok((kind, key)) = record::peek(bytes) else { return Ok(()) };
        {
            let live = self.live.lock();
            let matters = match kind {
                record::SUBMITTED | record::RUN_ENDED | record::NOTED => {
                    live.active.contains_key(&key)
                }
                record::BATCH_ENDED => live.has_result(key),
                _ => false,
            };
            if !matters {
                return Ok(());
            }
            self.log.append(&[FramePart::Copy(bytes)])?;
        }
        if self.log.unsynced_bytes() > UNSYNCED {
            self.log.sync()?;
        }
        Ok(())
    }
}
