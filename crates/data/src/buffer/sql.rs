//! Store shared by the SQL buffers.
//!
//! `queries.rs` holds all statements, `session.rs` the interface of a database, `reconnect.rs`
//! keeps a session alive.
//!
//! Experiences are rows whose ids rise in commit order. Rows stay after they were read, so that a
//! reader can seek back; users may delete them. Write-batch keys stay, so that a batch is
//! recognized after its rows are deleted.
//!
//! Rows are read in one of two modes. As a **log** ([`ReadOrder::Fifo`] without `reuse`) every
//! reader name has a cursor: the id of the last row returned or skipped. As a **pool** (otherwise)
//! rows carry a use count shared by all readers.

mod queries;
mod reader;
mod reconnect;
mod schema;
mod session;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use self::queries::Queries;
use self::reconnect::ReconnectingSession;
pub(super) use self::session::{
    Session, SqlCell, SqlDatabase, SqlDialect, SqlError, SqlValue, TransactionId,
};
use super::{Buffer, BufferError, BufferOwner, ExperienceReader, ExperienceWriter, Result};

#[derive(Clone, Debug, PartialEq)]
pub struct SqlOptions {
    /// Table of experiences and prefix of the other tables: lower-case letters, digits and `_`, 40
    /// at most.
    pub table: String,
    pub order: ReadOrder,
    /// Reads rows again while a writer is open, the least read first.
    pub reuse: bool,
    pub connect_timeout: Duration,
    /// Limit of one transaction, including the wait for its turn but not the wait of a read for
    /// samples.
    pub call_timeout: Duration,
    /// Maximum retries after a lost connection or a conflict. Timeouts are not retried.
    pub max_retry_times: u32,
    /// Wait before the last retry; each earlier wait is half of the next.
    pub max_retry_interval: Duration,
    /// Interval at which a waiting SQLite reader checks for changes by other processes. PostgreSQL
    /// notifies its readers.
    pub poll_interval: Duration,
    /// Maximum size of the SQLite file or of the PostgreSQL table with its indexes; larger batches
    /// get [`BufferError::Full`]. PostgreSQL checks before each batch and may overshoot by one.
    pub max_bytes: Option<u64>,
}

impl Default for SqlOptions {
    fn default() -> Self {
        Self {
            table: "experience".into(),
            order: ReadOrder::default(),
            reuse: false,
            connect_timeout: Duration::from_secs(10),
            call_timeout: Duration::from_secs(60),
            max_retry_times: 3,
            max_retry_interval: Duration::from_secs(1),
            poll_interval: Duration::from_millis(50),
            max_bytes: None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadOrder {
    /// Oldest first. Without `reuse`, each reader name gets everything. A position is the id of the
    /// last row returned or skipped; a seek repeats later rows in the same order.
    #[default]
    Fifo,
    /// Newest of the least read rows first. Use counts are shared, so a row goes to one reader. A
    /// position is the number of the reader's last claim; a seek takes back later claims of this
    /// name, which are read again in the order that is newest then. With `reuse` only the last use
    /// of a row can be taken back.
    NewestFirst,
}

/// A buffer in a database.
#[derive(Debug)]
pub struct SqlBuffer<D>(Arc<SqlStore<D>>);

/// Connects once to create or check the tables.
pub(super) fn open<D: SqlDatabase>(database: D, options: SqlOptions) -> Result<SqlBuffer<D>> {
    schema::check_name(&options.table, database.name())?;
    let queries = Queries::new(&options, &database.dialect());
    let store = Arc::new(SqlStore { database, options, queries });
    schema::prepare(&mut ReconnectingSession::new(Arc::clone(&store)))?;
    Ok(SqlBuffer(store))
}

/// Records the owner of the table, or refuses one with another owner.
pub(super) fn claim<D: SqlDatabase>(buffer: &SqlBuffer<D>, owner: &BufferOwner) -> Result<()> {
    schema::claim(&mut ReconnectingSession::new(Arc::clone(&buffer.0)), owner)
}

impl<D: SqlDatabase> Buffer for SqlBuffer<D> {
    fn writer(&self, name: &str) -> Result<Box<dyn ExperienceWriter>> {
        Ok(Box::new(writer::SqlWriter::open(ReconnectingSession::new(Arc::clone(&self.0)), name)?))
    }

    fn reader(&self, name: &str) -> Result<Box<dyn ExperienceReader>> {
        Ok(Box::new(reader::SqlReader::open(ReconnectingSession::new(Arc::clone(&self.0)), name)?))
    }
}

/// A database with the tables of a buffer, shared by writers and readers.
#[derive(Debug)]
struct SqlStore<D> {
    database: D,
    options: SqlOptions,
    queries: Queries,
}

impl<D: SqlDatabase> SqlStore<D> {
    fn damaged(&self, message: impl Into<String>) -> BufferError {
        BufferError::damaged(self.database.name(), message)
    }

    fn unsupported(&self, message: impl Into<String>) -> BufferError {
        BufferError::unsupported(self.database.name(), message)
    }
}

/// Converts to the signed integers of databases.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Splits an id into informational columns: task as `batch/task`, run and suffix. `None` for
/// foreign ids.
pub(super) fn parts(uid: &str) -> (Option<&str>, Option<i64>, Option<&str>) {
    let mut from_end = uid.rsplitn(4, '/');
    let suffix = from_end.next();
    let run = from_end.nth(1).and_then(|run| run.parse().ok());
    match from_end.next() {
        Some(task) => (Some(task), run, suffix),
        None => (None, None, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_split_from_their_end() {
        assert_eq!(parts("7/a/b/3/0/00ff"), (Some("7/a/b"), Some(3), Some("00ff")));
        assert_eq!(parts("7/1/x/0/s"), (Some("7/1"), None, Some("s")));
        assert_eq!(parts("other/name"), (None, None, None));
    }
}
