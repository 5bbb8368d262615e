//! What the buffers in SQL databases have in common: the options, and the store behind both.
//!
//! `queries.rs` holds every statement, `session.rs` says what a database must be able to do,
//! `link.rs` keeps a session alive, `writer.rs` and `reader.rs` are the two ends.
//!
//! Experiences are rows whose ids rise in the order of the commits. They stay after they were read,
//! as a record and so that a reader can go back; who wants the room deletes rows. The keys of lots
//! stay, so that a lot is known even when its rows are gone.
//!
//! Rows are read in one of two ways. As a **log** ([`ReadOrder::Fifo`] without `reuse`) every
//! reader name has its own cursor: the id of the last row that it was given or passed over. As a
//! **pool** (anything else) rows carry a count of their uses, which all readers share.

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
use super::{BufferError, ExperienceReader, ExperienceWriter, Result};

/// How a buffer in an SQL database behaves.
#[derive(Clone, Debug, PartialEq)]
pub struct SqlOptions {
    /// The table of experiences; the names of the other tables begin with it. Lower-case letters,
    /// digits and `_`, 40 at most.
    pub table: String,
    /// What is read first.
    pub order: ReadOrder,
    /// Whether rows that were read may be read again while a writer is open, the least read first.
    pub reuse: bool,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long one transaction may take, and how long it waits for its turn. The time that a read
    /// waits for samples is not part of it.
    pub call_timeout: Duration,
    /// How often a transaction is tried again when the connection or the turn was lost. What took
    /// too long is not tried again.
    pub max_retry_times: u32,
    /// How long to wait before the last retry; the wait before an earlier one is half of the next.
    pub max_retry_interval: Duration,
    /// How often a waiting reader looks whether another process has changed an SQLite file.
    /// PostgreSQL tells its readers and needs no looking.
    pub poll_interval: Duration,
    /// How large the SQLite file, or the table in PostgreSQL with all that belongs to it, may grow;
    /// a lot beyond it is refused as [`BufferError::Full`]. PostgreSQL looks before each lot, and
    /// so overshoots by one.
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

/// What is read first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadOrder {
    /// The oldest. Without `reuse`, readers of different names each get everything. A position is
    /// the id of the last row that was given to this reader or passed over; after a seek, every
    /// later row comes again, in the same order.
    #[default]
    Fifo,
    /// The newest of those that were read least. There is one count for all readers, so that a row
    /// goes to one of them. A position is the number of the last claim of this reader; a seek gives
    /// back what readers of this name claimed later, and it comes again, but in an order that
    /// depends on what is newest then. With `reuse` only the last use of a row can be given back.
    NewestFirst,
}

/// A database with our tables in it; writers and readers share it.
#[derive(Debug)]
pub(super) struct SqlStore<D> {
    database: D,
    options: SqlOptions,
    queries: Queries,
}

impl<D: SqlDatabase> SqlStore<D> {
    /// Connects once, to make the tables or to see that they are ours.
    pub(super) fn open(database: D, options: SqlOptions) -> Result<Arc<Self>> {
        schema::check_name(&options.table, database.name())?;
        let queries = Queries::new(&options, &database.dialect());
        let store = Arc::new(Self { database, options, queries });
        schema::prepare(&mut ReconnectingSession::new(Arc::clone(&store)))?;
        Ok(store)
    }

    pub(super) fn writer(self: &Arc<Self>, name: &str) -> Result<Box<dyn ExperienceWriter>> {
        Ok(Box::new(writer::SqlWriter::open(ReconnectingSession::new(Arc::clone(self)), name)?))
    }

    pub(super) fn reader(self: &Arc<Self>, name: &str) -> Result<Box<dyn ExperienceReader>> {
        Ok(Box::new(reader::SqlReader::open(ReconnectingSession::new(Arc::clone(self)), name)?))
    }

    fn damaged(&self, message: String) -> BufferError {
        BufferError::Damaged { storage: self.database.name().into(), message }
    }

    fn unsupported(&self, message: String) -> BufferError {
        BufferError::Unsupported { storage: self.database.name().into(), message }
    }
}

/// Returns a number as databases keep it.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns the columns that are for people who look: the task as `batch/task`, the run, the suffix.
/// They are absent if the name is not one of ours.
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
    fn names_are_taken_apart_from_their_end() {
        assert_eq!(parts("7/a/b/3/0/00ff"), (Some("7/a/b"), Some(3), Some("00ff")));
        assert_eq!(parts("7/1/x/0/s"), (Some("7/1"), None, Some("s")));
        assert_eq!(parts("other/name"), (None, None, None));
    }
}
