//! Interface of a database, implemented by `sqlite.rs` and `postgres.rs`.

use std::time::Instant;

use super::super::BufferError;
use super::SqlOptions;
use crate::Sample;

pub(in super::super) trait SqlDatabase:
    std::fmt::Debug + Send + Sync + 'static
{
    type SqlSession: Session;

    /// Returns the address without secrets.
    fn name(&self) -> &str;

    fn dialect(&self) -> SqlDialect;

    fn connect(&self, options: &SqlOptions) -> Result<Self::SqlSession, SqlError>;
}

/// SQL fragments that differ between databases.
#[derive(Clone, Debug)]
pub(in super::super) struct SqlDialect {
    /// Type of an auto-increment key that is never reused.
    pub(in super::super) serial: &'static str,
    /// Type of a timestamp with the insertion time as default.
    pub(in super::super) time: &'static str,
    pub(in super::super) bytes: &'static str,
    /// Query: number of existing tables among `$1`, a comma-separated list.
    pub(in super::super) existing: &'static str,
    /// Suffix of a SELECT that locks its rows until the commit.
    pub(in super::super) for_update: &'static str,
    /// Further statements for a new table `{experience}`.
    pub(in super::super) tune: &'static str,
    /// Query: bytes of `{experience}` and its indexes. `None`: the database enforces `max_bytes`.
    pub(in super::super) size: Option<&'static str>,
}

/// One connection. Parameters are written `$1`, `$2`, … in every database.
pub(in super::super) trait Session: Send {
    /// Sets the deadline of the following statements.
    fn limit(&mut self, deadline: Instant);

    fn begin(&mut self) -> Result<(), SqlError>;

    /// Commits. With a token the outcome is unknown until [`settled`](Self::settled) tells it;
    /// without one nothing has changed.
    fn commit(&mut self) -> Result<(), (SqlError, Option<TransactionId>)>;

    fn rollback(&mut self) -> Result<(), SqlError>;

    /// Returns whether a transaction of an earlier session was committed.
    fn settled(&mut self, token: &TransactionId) -> Result<bool, SqlError>;

    /// Returns the number of changed rows.
    fn execute(&mut self, sql: &str, values: &[SqlValue<'_>]) -> Result<usize, SqlError>;

    fn query(&mut self, sql: &str, values: &[SqlValue<'_>]) -> Result<Vec<Vec<SqlCell>>, SqlError>;

    /// Locks out other transactions that call it until this one ends.
    fn lock(&mut self) -> Result<(), SqlError>;

    /// Inserts samples with new ids and returns their number.
    ///
    /// Invariant: ids become visible in rising order, so that no cursor skips a row that is yet to
    /// come.
    fn insert(&mut self, samples: &[Sample]) -> Result<usize, SqlError>;

    /// Wakes waiting readers at the commit.
    fn announce(&mut self) -> Result<(), SqlError>;

    /// Remembers the state of the database: a later change ends the next wait.
    fn mark(&mut self) -> Result<(), SqlError>;

    fn wait(&mut self, until: Instant) -> Result<(), SqlError>;
}

#[derive(Clone, Copy, Debug)]
pub(in super::super) enum SqlValue<'a> {
    Int(i64),
    Text(&'a str),
}

#[derive(Debug)]
pub(in super::super) enum SqlCell {
    Null,
    Int(i64),
    Real(f64),
    Text(String),
    Bytes(Vec<u8>),
}

/// Identifies a transaction and its session.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct TransactionId {
    pub(in super::super) transaction: i64,
    pub(in super::super) session: i64,
}

#[derive(Debug)]
pub(in super::super) struct SqlError {
    pub(in super::super) error: BufferError,
    /// The session is unusable.
    pub(in super::super) breaks: bool,
    /// A retry may succeed at once.
    pub(in super::super) is_retryable: bool,
}

impl From<BufferError> for SqlError {
    fn from(error: BufferError) -> Self {
        Self { error, breaks: false, is_retryable: false }
    }
}
