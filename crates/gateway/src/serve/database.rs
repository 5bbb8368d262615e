//! Database file: lock, schema and connection.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rollway_base::{FileLock, FileLockError};
use rusqlite::Connection;

use super::store::StoreError;

/// Size of the cache of prepared statements; there are fewer.
const STATEMENTS: usize = 64;

pub(super) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS proxy_state (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS proxy_history (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    answer_id TEXT NOT NULL,
    choice INTEGER NOT NULL,
    model TEXT NOT NULL,
    recorded_at INTEGER NOT NULL,
    state INTEGER NOT NULL,
    feedback INTEGER,
    bytes INTEGER NOT NULL,
    turn BLOB,
    UNIQUE (answer_id, choice)
);
CREATE INDEX IF NOT EXISTS proxy_history_state ON proxy_history (state);
CREATE INDEX IF NOT EXISTS proxy_history_feedback ON proxy_history (feedback)
    WHERE feedback IS NOT NULL;
CREATE TABLE IF NOT EXISTS proxy_feedback (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    reward REAL NOT NULL,
    task NOT NULL,
    run INTEGER NOT NULL,
    given_at INTEGER NOT NULL,
    step INTEGER
);
CREATE INDEX IF NOT EXISTS proxy_feedback_step ON proxy_feedback (step);
CREATE TABLE IF NOT EXISTS proxy_step (
    step INTEGER PRIMARY KEY,
    fixed_at INTEGER NOT NULL,
    done_at INTEGER,
    experiences INTEGER,
    metrics TEXT
);";

pub(super) fn failed(path: &Path, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Failed { path: path.display().to_string(), message: error.to_string() }
}

/// Opens the database with a write-ahead log that is synced by every commit.
pub(super) fn prepare(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(10))?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    Ok(connection)
}

/// Locks the file, so that no other process commits the same feedback.
pub(super) fn lock(path: &Path) -> Result<FileLock, StoreError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    FileLock::acquire(&name).map_err(|error| match error {
        FileLockError::Io(error) => failed(&name, &error),
        held @ FileLockError::Held { .. } => {
            StoreError::Locked { path: path.display().to_string(), holder: held.to_string() }
        }
    })
}
