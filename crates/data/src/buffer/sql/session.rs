//! What a database must be able to do. Only `sqlite.rs` and `postgres.rs` know how it is done.

use std::time::Instant;

use super::super::BufferError;
use super::SqlOptions;
use crate::Sample;

/// Where sessions come from.
pub(in super::super) trait SqlDatabase:
    std::fmt::Debug + Send + Sync + 'static
{
    type SqlSession: Session;

    /// Returns the address without secrets.
    fn name(&self) -> &str;

    /// Returns the words in which databases differ.
    fn dialect(&self) -> SqlDialect;

    fn connect(&self, options: &SqlOptions) -> Result<Self::SqlSession, SqlError>;
}

/// The words in which databases differ.
#[derive(Clone, Debug)]
pub(in super::super) struct SqlDialect {
    /// The type of a key that the database counts up and never uses twice.
    pub(in super::super) serial: &'static str,
    /// The type of a time, and the time of the insertion as its default.
    pub(in super::super) time: &'static str,
    pub(in super::super) bytes: &'static str,
    /// Says how many of the tables `$1`, a list of names between commas, exist.
    pub(in super::super) existing: &'static str,
    /// What follows a SELECT of rows that nobody else may change until the commit.
    pub(in super::super) for_update: &'static str,
    /// What else is said to a new table `{experience}`.
    pub(in super::super) tune: &'static str,
    /// Says how many bytes `{experience}` and what belongs to it take, where the database itself
    /// does not keep to `max_bytes`.
    pub(in super::super) size: Option<&'static str>,
}

/// One connection. Parameters are written `$1`, `$2`, … in every database.
pub(in super::super) trait Session: Send {
    /// Sets the time after which the statements that follow are given up.
    fn limit(&mut self, deadline: Instant);

    fn begin(&mut self) -> Result<(), SqlError>;

    /// Makes the transaction durable. With a token the outcome is unknown, and
    /// [`settled`](Self::settled) tells it later; without one nothing has changed.
    fn commit(&mut self) -> Result<(), (SqlError, Option<TransactionId>)>;

    fn rollback(&mut self) -> Result<(), SqlError>;

    /// Tells whether a transaction of an earlier session was committed.
    fn settled(&mut self, token: &TransactionId) -> Result<bool, SqlError>;

    /// Returns how many rows were changed.
    fn execute(&mut self, sql: &str, values: &[SqlValue<'_>]) -> Result<usize, SqlError>;

    fn query(&mut self, sql: &str, values: &[SqlValue<'_>]) -> Result<Vec<Vec<SqlCell>>, SqlError>;

    /// Keeps other transactions that call it out until this one ends.
    fn lock(&mut self) -> Result<(), SqlError>;

    /// Inserts those samples whose names are new and returns how many they were.
    ///
    /// Invariant: ids become visible in rising order, so that no reader's cursor passes over a row
    /// that is yet to come.
    fn insert(&mut self, samples: &[Sample]) -> Result<usize, SqlError>;

    /// Wakes waiting readers when this transaction is committed.
    fn announce(&mut self) -> Result<(), SqlError>;

    /// Remembers the state of the database: a change from now on ends the next wait.
    fn mark(&mut self) -> Result<(), SqlError>;

    /// Waits for a change since the last mark.
    fn wait(&mut self, until: Instant) -> Result<(), SqlError>;
}

/// A parameter of a statement.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum SqlValue<'a> {
    Int(i64),
    Text(&'a str),
}

/// A value in a row.
#[derive(Debug)]
pub(in super::super) enum SqlCell {
    Null,
    Int(i64),
    Real(f64),
    Text(String),
    Bytes(Vec<u8>),
}

/// Names a transaction and the session that it was made in.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct TransactionId {
    pub(in super::super) transaction: i64,
    pub(in super::super) session: i64,
}

/// Why a session could not do something.
#[derive(Debug)]
pub(in super::super) struct SqlError {
    pub(in super::super) error: BufferError,
    /// The session is of no further use.
    pub(in super::super) breaks: bool,
    /// Another attempt may succeed at once.
    pub(in super::super) again: bool,
}

impl From<BufferError> for SqlError {
    fn from(error: BufferError) -> Self {
        Self { error, breaks: false, again: false }
    }
}
