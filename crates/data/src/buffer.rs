//! Buffers: storage of experiences between writers and the trainer.
//!
//! A [`Buffer`] is opened from an address; its [`ExperienceWriter`]s take [`WriteBatch`]es, its
//! [`ExperienceReader`]s return [`Sample`]s. Acknowledged writes are neither lost nor duplicated;
//! samples are kept until the reader acknowledges them, where possible. A backend is one module
//! here and one line in [`open`].

mod address;
mod change_counter;
mod error;
mod files;
mod jsonl;
mod owner;
mod parquet;
mod postgres;
mod process_queues;
pub mod queue;
pub mod sql;
mod sqlite;

use std::sync::Arc;
use std::time::Duration;

pub use rollway_base::{BufferAddressError, BufferKind, BufferStorage};

pub use self::address::BufferAddress;
pub use self::error::BufferError;
pub use self::jsonl::JsonlBuffer;
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

    /// Returns the interrupt of this writer. `None`: it never waits for room.
    fn interrupt(&self) -> Option<WriteInterrupt> {
        None
    }
}

/// Ends the current wait of a writer for room, and all later ones: such writes fail. May be called
/// from any thread.
pub type WriteInterrupt = Arc<dyn Fn() + Send + Sync>;

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

/// Options of all kinds of buffers; irrelevant ones are ignored.
#[derive(Clone, Debug, Default)]
pub struct BufferOptions {
    pub queue: queue::QueueOptions,
    pub sql: sql::SqlOptions,
    /// Owner of a database table or of files. `None`: ownership is not checked.
    pub owner: Option<BufferOwner>,
}

/// Opens a buffer, creating it if absent. Blocks.
///
/// A queue exists once per process: while it is in use, opening its name, or its folder, returns
/// the same queue and ignores the options.
pub fn open(address: &BufferAddress, options: &BufferOptions) -> Result<Arc<dyn Buffer>> {
    let location = address.location();
    match address.kind() {
        BufferKind::Sqlite => table_of(SqliteBuffer::open(location, options.sql.clone())?, options),
        BufferKind::Postgres => {
            let url = BufferKind::Postgres.address(location);
            table_of(PostgresBuffer::open(&url, options.sql.clone())?, options)
        }
        BufferKind::JsonLines => files_of(JsonlBuffer::open(location)?, options),
        BufferKind::Parquet => files_of(ParquetBuffer::open(location)?, options),
        BufferKind::Queue => Ok(Arc::new(process_queues::open(location, &options.queue)?)),
    }
}

fn table_of<D: sql::SqlDatabase>(
    buffer: sql::SqlBuffer<D>,
    options: &BufferOptions,
) -> Result<Arc<dyn Buffer>> {
    options.owner.as_ref().map_or(Ok(()), |owner| sql::claim(&buffer, owner))?;
    Ok(Arc::new(buffer))
}

fn files_of<S: files::FileStore>(
    buffer: files::FileBuffer<S>,
    options: &BufferOptions,
) -> Result<Arc<dyn Buffer>> {
    options.owner.as_ref().map_or(Ok(()), |owner| files::claim(&buffer, owner))?;
    Ok(Arc::new(buffer))
}

/// Returns the table of a buffer: its name without the suffix `_buffer`, other characters replaced
/// by `_`. So `experience_buffer` is stored in `experience`, the default table.
pub fn table(name: &str) -> String {
    let name = name.strip_suffix("_buffer").filter(|name| !name.is_empty()).unwrap_or(name);
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    let table: String = name.chars().map(plain).collect();
    if table.starts_with(|first: char| first.is_ascii_digit()) {
        format!("_{table}")
    } else {
        table
    }
}
