//! The number of the last acknowledged batch, kept beside the index.
//!
//! A damaged or missing write-ahead log makes SQLite return to an earlier state without an error.
//! This file tells such an index from a complete one, so that acknowledged data is never taken for
//! the rest of a crashed writer.

use std::path::Path;

use rollway_base::NumberFile;

use super::IoContext;
use crate::buffer::{BufferError, Result};

const NAME: &str = "last";

pub(super) struct LastBatch(NumberFile);

impl LastBatch {
    pub(super) fn open(folder: &Path, storage: &str) -> Result<Self> {
        Ok(Self(NumberFile::open(&folder.join(NAME)).at(storage)?))
    }

    /// Records a batch.
    pub(super) fn set(&self, number: u64) {
        if let Err(error) = self.0.set(number) {
            tracing::warn!(%error, "last batch not recorded; a damaged index may stay unnoticed");
        }
    }

    /// Refuses an index whose last batch is older than the recorded one.
    pub(super) fn check(&self, indexed: u64, storage: &str, folder: &Path) -> Result<()> {
        // An unreadable record says nothing.
        let recorded = self.0.get().unwrap_or(0);
        if recorded <= indexed {
            return Ok(());
        }
        let folder = folder.display();
        Err(BufferError::damaged(
            storage,
            format!(
                "its index ends with batch {indexed}, but batch {recorded} was acknowledged: \
                 index.sqlite or index.sqlite-wal in {folder} is damaged or missing; restore \
                 them, or remove {folder} to index the data again (its readers then begin with \
                 the first sample)"
            ),
        ))
    }
}
