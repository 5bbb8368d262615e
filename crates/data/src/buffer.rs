//! Buffers: storage of experiences between writers and the trainer.
//!
//! A [`Buffer`] is opened from an address; its [`ExperienceWriter`]s take [`WriteBatch`]es, its
//! [`ExperienceReader`]s return [`Sample`]s. Acknowledged writes are neither lost nor duplicated;
//! samples are kept until the reader acknowledges them, where possible.

mod address;
mod change_counter;
mod error;
mod files;
mod jsonl;
mod open;
mod owner;
mod parquet;
mod postgres;
mod process_queues;
pub mod queue;
pub mod sql;
mod sqlite;

use std::time::Duration;

pub use self::address::{BufferAddress, BufferAddressError, BufferStorage};
pub use self::error::BufferError;
pub use self::jsonl::JsonlBuffer;
pub use self::open::{BufferOptions, open, table};
pub use self::owner::BufferOwner;
pub use self::parquet::ParquetBuffer;
pub use self::postgres::PostgresBuffer;
pub use self::queue::{ExperienceQueue, QueueUsage};
pub use self::sqlite::SqliteBuffer;
use crate::{Sample, WriteBatch};

pub type Result<T, E = BufferError> = std::result::Result<T, E>;

/// A store of experiences. Cheap to share.
pub trait Buffer: Send + Sync {
    /// Opens a writer. Writers are counted by name: data ends when every writer ever opened has
    /// closed. A restarted writer reopens under its name and counts once.
    fn writer(&self, name: &str) -> Result<Box<dyn ExperienceWriter>>;

    /// Opens a reader. Readers of one name share one position.
    fn reader(&self, name: &str) -> Result<Box<dyn ExperienceReader>>;

    /// Returns the fill level. `None`: not known cheaply.
    fn usage(&self) -> Option<QueueUsage> {
        None
    }
}

pub trait ExperienceWriter: Send {
    /// Stores a batch atomically. Samples with known ids are not stored again.
    fn write(&mut self, batch: &WriteBatch) -> Result<WriteResult>;

    /// Declares that this writer writes no more.
    fn close(&mut self) -> Result<()>;
}

/// Outcome of a write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteResult {
    /// Samples newly stored.
    pub stored: usize,
    /// Samples that were stored before.
    pub known: usize,
    /// Samples dropped for lack of room, new or old, by reason.
    pub dropped: std::collections::BTreeMap<&'static str, usize>,
}

pub trait ExperienceReader: Send {
    /// Waits for samples. Returns when `request.count` are available, or with fewer at the timeout
    /// or at the end of data; loses nothing in either case. Acknowledges earlier reads unless
    /// `request.keep`.
    fn read(&mut self, request: &ReadRequest) -> Result<ReadResult>;

    /// Returns the position of this reader, to be saved with the trainer's state.
    fn position(&self) -> String;

    /// Moves to a position; samples behind it are read again.
    fn seek(&mut self, position: &str) -> Result<()>;
}

#[derive(Clone, Debug)]
pub struct ReadRequest {
    /// Maximum number of samples.
    pub count: usize,
    pub timeout: Duration,
    /// Samples of older versions are skipped and counted.
    pub min_model_version: u64,
    /// Leaves earlier reads unacknowledged, so that a seek can return to them.
    pub keep: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ReadResult {
    pub samples: Vec<Sample>,
    /// Samples skipped as too old.
    pub stale: usize,
    pub end: ReadEnd,
}

/// Reason why a read returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadEnd {
    /// The requested number is reached.
    Full,
    TimedOut,
    /// Every writer has closed and everything has been read.
    Finished,
}
