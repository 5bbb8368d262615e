//! Compaction: what still matters is copied to the end of the log, then everything before the
//! copies is removed.
//!
//! It goes on beside whoever appends, and a process may die at any point of it. Until the first
//! segment is named anew, which happens at once or not at all, everything is there, and some of it
//! twice, which recovery does not mind. A record is copied under the lock under which batches end,
//! so that no copy follows the end of its batch: otherwise a later compaction could remove the end
//! and keep the copy, and the batch would rise again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::error::LedgerError;
use super::record;
use super::{Ledger, LedgerShared};
use crate::log::{FramePart, LogError};

/// Copies in memory before they are written.
const UNSYNCED: u64 = 8 << 20;

impl Ledger {
    /// Copies what matters and removes the rest. It happens by itself when there is enough to
    /// remove; blocks.
    pub fn compact(&self) -> Result<(), LedgerError> {
        let busy = std::mem::replace(&mut self.inner.book().compacting, true);
        if busy { Ok(()) } else { self.inner.compact() }
    }

    /// Begins to compact if there is more to remove than to keep.
    pub(super) fn compact_if_worth_it(&self, book: &mut super::LiveRecords) {
        // Whoever compacts may be holding the segments while it waits for the disk.
        if book.compacting {
            return;
        }
        let log = &self.inner.log;
        let garbage = (log.end() - log.first()).saturating_sub(book.live_bytes);
        let worth = garbage > book.live_bytes.max(self.inner.options.compact_bytes_min);
        // While much waits to be written there is no hurry to write more.
        if !worth || log.behind() {
            return;
        }
        let inner = Arc::clone(&self.inner);
        let thread = std::thread::Builder::new().name("rollway-compact".into());
        let started = thread.spawn(move || {
            if let Err(error) = inner.compact() {
                tracing::warn!(%error, "the ledger could not be compacted; it is tried again");
            }
        });
        match started {
            Ok(thread) => {
                book.compacting = true;
                *self.compactor() = Some(thread);
            }
            Err(error) => tracing::warn!(%error, "no thread to compact the ledger"),
        }
    }
}

impl LedgerShared {
    /// Compacts; whoever calls has set `compacting`.
    fn compact(&self) -> Result<(), LedgerError> {
        let done = self.copy_and_remove();
        self.book().compacting = false;
        done
    }

    fn copy_and_remove(&self) -> Result<(), LedgerError> {
        // While the disk is full this fails, and nothing is copied into memory for nothing.
        self.log.sync()?;
        let until = {
            let book = self.book();
            self.log.rotate();
            let until = self.log.end();
            let mut state = Vec::new();
            record::put_state(&mut state, book.state);
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
        // It was read when the ledger was opened, or written since.
        let Ok((kind, life)) = record::peek(bytes) else { return Ok(()) };
        {
            let book = self.book();
            let matters = match kind {
                record::SUBMITTED | record::RUN_ENDED | record::NOTED => {
                    book.active.contains_key(&life)
                }
                record::BATCH_ENDED => book.has_result(life),
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
