//! The number of the last acknowledged batch, kept beside the index.
//!
//! A damaged or missing write-ahead log makes SQLite return to an earlier state without an error.
//! This file tells such an index from a complete one, so that acknowledged data is never taken for
//! the rest of a crashed writer.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::IoContext;
use crate::buffer::{BufferError, Result};

const NAME: &str = "last";

pub(super) struct LastBatch {
    file: File,
}

impl LastBatch {
    pub(super) fn open(folder: &Path, storage: &str) -> Result<Self> {
        let mut options = File::options();
        options.create(true).truncate(false).read(true).write(true);
        Ok(Self { file: options.open(folder.join(NAME)).at(storage)? })
    }

    /// Records a batch. Not synced: the index is, and this file only has to survive the process.
    pub(super) fn set(&self, number: u64) {
        if let Err(error) = self.file.write_all_at(record(number).as_bytes(), 0) {
            tracing::warn!(%error, "last batch not recorded; a damaged index may stay unnoticed");
        }
    }

    /// Refuses an index whose last batch is older than the recorded one.
    pub(super) fn check(&mut self, indexed: u64, storage: &str, folder: &Path) -> Result<()> {
        let mut text = String::new();
        // An unreadable record says nothing.
        let _ = (&mut self.file).take(64).read_to_string(&mut text);
        let number = text.split(' ').next().and_then(|number| number.parse().ok());
        let recorded = number.filter(|number| text == record(*number)).unwrap_or(0);
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

/// Returns the content of the file: the number, twice, so that a changed byte is noticed.
fn record(number: u64) -> String {
    format!("{number:020} {number:020}\n")
}
