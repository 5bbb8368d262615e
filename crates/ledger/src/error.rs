//! What can go wrong with a ledger.

use std::path::PathBuf;
use std::sync::Arc;

use rollway_core::{BatchId, BatchKey, RunId, TaskId};

use crate::log::LogError;

/// Why the ledger could not be opened, or would not take a record.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LedgerError {
    /// The log below it has trouble.
    #[error(transparent)]
    Log(#[from] Arc<LogError>),
    /// A record is whole and still makes no sense.
    #[error(
        "the ledger in {} cannot be understood at offset {offset}: {found}; open it with the \
         program that wrote it, or move the whole folder away to begin anew",
        dir.display()
    )]
    Record {
        /// The folder of the ledger.
        dir: PathBuf,
        /// Where the record stands in the log.
        offset: u64,
        /// What is wrong with it.
        found: String,
    },
    /// There is no room for another batch.
    #[error(
        "no room for batch {batch} of {bytes} bytes: the ledger holds {live} of bytes_max = {max}; \
         finalize or abort other batches first, or raise bytes_max"
    )]
    Full {
        batch: BatchId,
        /// How large its record is.
        bytes: u64,
        live: u64,
        /// How much may be.
        max: u64,
    },
    /// The batch does not fit into one record.
    #[error(
        "batch {batch} has {bytes} bytes of tasks, and a record may have {max}; submit it in parts"
    )]
    TooLarge {
        batch: BatchId,
        /// How large its tasks are.
        bytes: u64,
        /// How large they may be.
        max: u64,
    },
    /// The disk does not keep up.
    #[error(
        "batch {batch} is not taken now: {bytes} bytes wait to be written to the disk; submit it \
         again when the ledger has caught up"
    )]
    Behind {
        batch: BatchId,
        /// How much waits.
        bytes: u64,
    },
    /// The id belongs to a batch that has not ended.
    #[error("batch {batch} is in the ledger and has not ended")]
    AlreadyActive { batch: BatchId },
    /// No batch of that key is active.
    #[error("batch {key} is not in the ledger, or has ended")]
    NotActive { key: BatchKey },
    /// The batch has no such run.
    #[error("batch {batch} has no run {run} of task {task}")]
    NoSuchRun { batch: BatchId, task: TaskId, run: RunId },
    /// A run ends once.
    #[error("run {run} of task {task} of batch {batch} has ended already")]
    EndedTwice { batch: BatchId, task: TaskId, run: RunId },
    /// The result is not that of a batch that has ended.
    #[error("batch {batch} is neither finalized nor aborted")]
    NotEnded { batch: BatchId },
    /// Versions do not go backwards.
    #[error("version {version} of the model is older than {newest}, which the ledger has seen")]
    Version {
        /// The version that was given.
        version: u64,
        /// The newest that was seen.
        newest: u64,
    },
}

impl From<LogError> for LedgerError {
    fn from(error: LogError) -> Self {
        Self::Log(Arc::new(error))
    }
}
