//! The file of the database: one process at a time, the tables in it, and how it is written.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;

use super::store::StoreError;

/// How many prepared statements the connection keeps; there are fewer.
const STATEMENTS: usize = 64;

/// The tables. Which row means what, `tables.rs` says.
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

/// Says what went wrong with a file.
pub(super) fn failed(path: &Path, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Failed { path: path.display().to_string(), message: error.to_string() }
}

/// Opens the database: a write-ahead log, which is on the disk when a transaction has ended.
pub(super) fn prepare(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(10))?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    Ok(connection)
}

/// Makes sure that no other process commits the same feedback. The system releases the lock when
/// the process dies, however it dies.
pub(super) fn lock(path: &Path) -> Result<File, StoreError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    let fail = |error: std::io::Error| failed(&name, &error);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let mut file = options.open(&name).map_err(fail)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            let holder = match holder.trim() {
                "" => "another process".to_owned(),
                pid => format!("process {pid}"),
            };
            return Err(StoreError::Locked { path: path.display().to_string(), holder });
        }
        Err(TryLockError::Error(error)) => return Err(fail(error)),
    }
    // A help for people, and no reason not to open.
    let written = file.set_len(0).and_then(|()| file.rewind());
    let _ = written.and_then(|()| write!(file, "{}", std::process::id()));
    Ok(file)
}
