//! Errors of the ledger.

use std::path::PathBuf;
use std::sync::Arc;

use rollway_core::{BatchId, BatchKey, RunId, TaskId};

use crate::log::LogError;

/// Error of opening the ledger or of appending a record.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LedgerError {
    #[error(transparent)]
    Log(#[from] Arc<LogError>),
    /// A valid frame with a record that cannot be decoded.
    #[error(
        "the ledger in {} cannot be decoded at offset {offset}: {found}; open it with the release \
         that wrote it, or move the whole folder away to start over",
        dir.display()
    )]
    Record { dir: PathBuf, offset: u64, found: String },
    #[error(
        "no room for batch {batch} of {bytes} bytes: the ledger holds {live} of the {max} bytes of \
         `ledger.max_bytes`; finalize or abort other batches first, or raise the key"
    )]
    Full { batch: BatchId, bytes: u64, live: u64, max: u64 },
    #[error(
        "batch {batch} has {bytes} bytes of tasks, more than the limit of {max} per record; \
         submit it in parts"
    )]
    TooLarge { batch: BatchId, bytes: u64, max: u64 },
    #[error(
        "batch {batch} is refused: {bytes} bytes wait to be written to the ledger; submit it \
         again later"
    )]
    Behind { batch: BatchId, bytes: u64 },
    #[error("batch {batch} is in the ledger and has not ended")]
    AlreadyActive { batch: BatchId },
    #[error("batch {key} is not in the ledger, or has ended")]
    NotActive { key: BatchKey },
    #[error("batch {batch} has no run {run} of task {task}")]
    NoSuchRun { batch: BatchId, task: TaskId, run: RunId },
    #[error("run {run} of task {task} of batch {batch} has ended already")]
    EndedTwice { batch: BatchId, task: TaskId, run: RunId },
    #[error("batch {batch} is neither finalized nor aborted")]
    NotEnded { batch: BatchId },
    #[error("version {version} of the model is older than {newest}, which the ledger has recorded")]
    Version { version: u64, newest: u64 },
}

impl From<LogError> for LedgerError {
    fn from(error: LogError) -> Self {
        Self::Log(Arc::new(error))
    }
}
