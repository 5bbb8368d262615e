//! Buffers: where experiences wait for the trainer.
//!
//! A [`Buffer`] is opened from an address; its [`ExperienceWriter`]s take [`WriteBatch`]s, its
//! [`ExperienceReader`]s return [`Sample`]s. What a writer has acknowledged is neither lost nor
//! doubled by writing it again; what a reader returns is kept until acknowledged, where possible.

mod address;
mod error;
mod files;
mod jsonl;
mod open;
mod parquet;
mod postgres;
mod process_queues;
pub mod queue;
pub mod sql;
mod sqlite;

use std::time::Duration;

pub use self::address::{BufferAddress, BufferAddressError};
pub use self::error::BufferError;
pub use self::jsonl::JsonlBuffer;
pub use self::open::{BufferOptions, open, table};
pub use self::parquet::ParquetBuffer;
pub use self::postgres::PostgresBuffer;
pub use self::queue::{ExperienceQueue, QueueUsage};
pub use self::sqlite::SqliteBuffer;
use crate::{Sample, WriteBatch};

/// What every access to a buffer returns.
pub type Result<T, E = BufferError> = std::result::Result<T, E>;

/// A place for experiences. Cheap to share; writers and readers are made from it.
pub trait Buffer: Send + Sync {
    /// Opens a writer. Writers are counted by name: data ends when every writer that was ever
    /// opened has been closed. A writer that died opens again under its name and is counted once.
    fn writer(&self, name: &str) -> Result<Box<dyn ExperienceWriter>>;

    /// Opens a reader. Readers of one name share one position.
    fn reader(&self, name: &str) -> Result<Box<dyn ExperienceReader>>;

    /// Returns how much it holds, if it knows without looking for long.
    fn usage(&self) -> Option<QueueUsage> {
        None
    }
}

/// Puts experiences into a buffer.
pub trait ExperienceWriter: Send {
    /// Stores a lot, whole or not at all. Samples whose ids are known are not stored again.
    fn write(&mut self, lot: &WriteBatch) -> Result<WriteResult>;

    /// Says that this writer brings no more.
    fn close(&mut self) -> Result<()>;
}

/// What became of a lot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteResult {
    /// Samples that are in the buffer now and were not before.
    pub stored: usize,
    /// Samples that the buffer knew already.
    pub known: usize,
    /// Samples that had to give way, these or older ones, by reason.
    pub dropped: std::collections::BTreeMap<&'static str, usize>,
}

/// Takes experiences out of a buffer.
pub trait ExperienceReader: Send {
    /// Waits for samples. Returns early when there are `ask.count` of them, short when time is up
    /// or data has ended, and loses nothing in either case. Acknowledges what was read before,
    /// unless `ask.keep` says otherwise.
    fn read(&mut self, ask: &ReadRequest) -> Result<ReadResult>;

    /// Returns where this reader stands, as text to be kept with the trainer's own state.
    fn position(&self) -> String;

    /// Goes back, or on, to a position: what was read after it is read again.
    fn seek(&mut self, position: &str) -> Result<()>;
}

/// What a reader wants.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    /// How many samples at most.
    pub count: usize,
    /// How long to wait for them.
    pub timeout: Duration,
    /// Samples of older versions are passed over and counted.
    pub min_model_version: u64,
    /// Keep what was read before as unacknowledged, so that a seek can return to it.
    pub keep: bool,
}

/// What a reader got.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadResult {
    /// The samples, `ask.count` at most.
    pub samples: Vec<Sample>,
    /// Samples that were passed over because they were too old.
    pub stale: usize,
    /// Why it is not more.
    pub end: ReadEnd,
}

/// Why a read returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadEnd {
    /// There were as many as asked for.
    Full,
    /// Time was up.
    TimedOut,
    /// There will be no more: every writer has closed and everything has been read.
    Finished,
}
