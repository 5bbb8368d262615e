//! Buffer in an SQLite file, in WAL mode with `synchronous=FULL`: a commit is one append and one
//! fsync, and readers do not wait for the writer. WAL requires one machine and a local disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, ToSql, params_from_iter};

use super::change_counter::ChangeCounter;
use super::sql::{
    self, Session, SqlBuffer, SqlCell, SqlDatabase, SqlDialect, SqlError, SqlOptions, SqlValue,
    TransactionId, signed,
};
use super::{BufferError, Result};
use crate::Sample;

/// WAL size at which a checkpoint starts, in pages of 4 KiB. The default of 1000 would checkpoint,
/// with another fsync, at every large batch.
const WAL_PAGES: u32 = 16_384;

/// Interval of attempts to change the journal mode.
const MODE_CHANGE_DELAY: Duration = Duration::from_millis(2);

/// Capacity of the statement cache; there are fewer statements.
const STATEMENTS: usize = 32;

/// A buffer in an SQLite file.
pub type SqliteBuffer = SqlBuffer<SqliteFile>;

impl SqliteBuffer {
    /// Opens or creates a file. The address is a path, or `sqlite:///` and a path: an absolute path
    /// has four slashes.
    pub fn open(address: &str, options: SqlOptions) -> Result<Self> {
        let path = address.strip_prefix("sqlite:///").unwrap_or(address);
        let name = format!("sqlite:///{path}");
        if path.is_empty() || path.contains("://") || path == ":memory:" {
            return Err(BufferError::unsupported(
                name,
                "the address has no file; write `sqlite:///folder/file.db`",
            ));
        }
        let file = SqliteFile { path: path.into(), name, signal: Arc::default() };
        sql::open(file, options)
    }
}

#[derive(Debug)]
pub struct SqliteFile {
    path: PathBuf,
    name: String,
    signal: Arc<ChangeCounter>,
}

impl SqlDatabase for SqliteFile {
    type SqlSession = SqliteSession;

    fn name(&self) -> &str {
        &self.name
    }

    fn dialect(&self) -> SqlDialect {
        SqlDialect {
            // AUTOINCREMENT: ids of deleted rows are not reused.
            serial: "INTEGER PRIMARY KEY AUTOINCREMENT",
            time: "TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now'))",
            bytes: "BLOB",
            existing: "SELECT count(*) FROM sqlite_schema
                WHERE instr(','||$1||',', ','||name||',')",
            // A transaction locks the whole file.
            for_update: "",
            tune: "",
            size: None,
        }
    }

    fn connect(&self, options: &SqlOptions) -> Result<SqliteSession, SqlError> {
        let connection = self.prepare(options).map_err(|cause| self.fault(&cause))?;
        let insert = INSERT.replace("{experience}", &options.table);
        let (name, signal) = (self.name.clone(), Arc::clone(&self.signal));
        let poll = options.poll_interval;
        let (announced, seen) = (false, (0, 0));
        Ok(SqliteSession { connection, name, insert, signal, poll, announced, seen })
    }
}

impl SqliteFile {
    fn prepare(&self, options: &SqlOptions) -> rusqlite::Result<Connection> {
        let connection = Connection::open(&self.path)?;
        connection.busy_timeout(options.call_timeout)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        use_wal(&connection, options.call_timeout)?;
        connection.pragma_update(None, "synchronous", "full")?;
        connection.pragma_update(None, "wal_autocheckpoint", WAL_PAGES)?;
        if let Some(most) = options.max_bytes {
            let page =
                connection.pragma_query_value(None, "page_size", |row| row.get::<_, i64>(0))?;
            connection.pragma_update(None, "max_page_count", signed(most) / page.max(1))?;
        }
        Ok(connection)
    }

    fn fault(&self, cause: &rusqlite::Error) -> SqlError {
        let mut fault = fault(&self.name, cause);
        if let BufferError::Unavailable { message, .. } = &mut fault.error
            && let Some(folder) = self.path.parent()
            && folder != Path::new("")
            && !folder.is_dir()
        {
            *message = format!("there is no folder {}", folder.display());
        }
        fault
    }
}

/// Enables the WAL. Two connections that change a new file block each other, and SQLite's busy
/// timeout does not apply.
fn use_wal(connection: &Connection, timeout: Duration) -> rusqlite::Result<()> {
    let until = Instant::now() + timeout;
    loop {
        let changed = connection.pragma_update(None, "journal_mode", "wal");
        let busy =
            |error: &rusqlite::Error| error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy);
        if !changed.as_ref().is_err_and(busy) || Instant::now() >= until {
            return changed;
        }
        thread::sleep(MODE_CHANGE_DELAY);
    }
}

const INSERT: &str = "
INSERT INTO \"{experience}\"
    (uid, task_id, run_id, msg_id, model_version, reward, experience_bytes)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (uid) DO NOTHING";

pub(super) struct SqliteSession {
    connection: Connection,
    name: String,
    insert: String,
    signal: Arc<ChangeCounter>,
    poll: Duration,
    announced: bool,
    /// State at the last mark: changes by this process, by others.
    seen: (u64, i64),
}

impl SqliteSession {
    fn done<T>(&self, result: rusqlite::Result<T>) -> Result<T, SqlError> {
        result.map_err(|cause| fault(&self.name, &cause))
    }

    fn batch(&self, sql: &str) -> Result<(), SqlError> {
        self.done(self.connection.execute_batch(sql))
    }

    fn data_version(&self) -> Result<i64, SqlError> {
        self.done(self.connection.pragma_query_value(None, "data_version", |row| row.get(0)))
    }
}

impl Session for SqliteSession {
    /// Local files have no time limit but the busy timeout of the connection.
    fn limit(&mut self, _: Instant) {}

    fn begin(&mut self) -> Result<(), SqlError> {
        self.announced = false;
        self.batch("BEGIN IMMEDIATE")
    }

    fn commit(&mut self) -> Result<(), (SqlError, Option<TransactionId>)> {
        if let Err(mut fault) = self.batch("COMMIT") {
            fault.breaks |= self.rollback().is_err();
            return Err((fault, None));
        }
        if self.announced {
            self.signal.increment();
        }
        Ok(())
    }

    fn rollback(&mut self) -> Result<(), SqlError> {
        // Some errors, such as a full disk, roll back automatically.
        if self.connection.is_autocommit() { Ok(()) } else { self.batch("ROLLBACK") }
    }

    fn settled(&mut self, _: &TransactionId) -> Result<bool, SqlError> {
        unreachable!("a commit to a file is never without an answer")
    }

    fn execute(&mut self, sql: &str, values: &[SqlValue<'_>]) -> Result<usize, SqlError> {
        let run =
            || self.connection.prepare_cached(&numbered(sql))?.execute(params_from_iter(values));
        self.done(run())
    }

    fn query(&mut self, sql: &str, values: &[SqlValue<'_>]) -> Result<Vec<Vec<SqlCell>>, SqlError> {
        let run = || {
            let mut statement = self.connection.prepare_cached(&numbered(sql))?;
            let columns = statement.column_count();
            let mut rows = statement.query(params_from_iter(values))?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                let cells = (0..columns).map(|column| row.get_ref(column).map(cell));
                found.push(cells.collect::<rusqlite::Result<_>>()?);
            }
            Ok(found)
        };
        self.done(run())
    }

    fn lock(&mut self) -> Result<(), SqlError> {
        Ok(())
    }

    fn insert(&mut self, samples: &[Sample]) -> Result<usize, SqlError> {
        let run = || {
            let mut statement = self.connection.prepare_cached(&self.insert)?;
            let mut stored = 0;
            for sample in samples {
                let (task, run, suffix) = sql::parts(&sample.id);
                stored += statement.execute((
                    &*sample.id,
                    task,
                    run,
                    suffix,
                    signed(sample.model_version),
                    sample.reward,
                    &*sample.payload,
                ))?;
            }
            Ok(stored)
        };
        self.done(run())
    }

    fn announce(&mut self) -> Result<(), SqlError> {
        self.announced = true;
        Ok(())
    }

    fn mark(&mut self) -> Result<(), SqlError> {
        self.seen = (self.signal.count(), self.data_version()?);
        Ok(())
    }

    /// Waits for the signal of this process. SQLite has no notification across processes, so their
    /// changes are polled.
    fn wait(&mut self, until: Instant) -> Result<(), SqlError> {
        while Instant::now() < until {
            if self.signal.wait(self.seen.0, until.min(Instant::now() + self.poll))
                || self.data_version()? != self.seen.1
            {
                break;
            }
        }
        Ok(())
    }
}

impl ToSql for SqlValue<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Int(number) => ValueRef::Integer(*number),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
        }))
    }
}

/// Converts `$1` to `?1`; SQLite treats `$1` as a name.
fn numbered(sql: &str) -> String {
    sql.replace('$', "?")
}

fn cell(value: ValueRef<'_>) -> SqlCell {
    match value {
        ValueRef::Null => SqlCell::Null,
        ValueRef::Integer(number) => SqlCell::Int(number),
        ValueRef::Real(number) => SqlCell::Real(number),
        ValueRef::Text(text) => SqlCell::Text(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(bytes) => SqlCell::Bytes(bytes.to_vec()),
    }
}

fn fault(name: &str, cause: &rusqlite::Error) -> SqlError {
    let (storage, message) = (name.to_owned(), cause.to_string());
    match cause.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => BufferError::full(storage, message),
        Some(ErrorCode::TooBig) => BufferError::unsupported(storage, message),
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::CannotOpen
            | ErrorCode::PermissionDenied
            | ErrorCode::ReadOnly
            | ErrorCode::SystemIoFailure
            | ErrorCode::FileLockingProtocolFailed,
        ) => BufferError::unavailable(storage, message),
        // Not a database, inconsistent pages, a changed table.
        _ => BufferError::damaged(storage, message),
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_openers_of_a_new_file_succeed() {
        for _ in 0..200 {
            let folder = tempfile::tempdir().unwrap();
            let address = folder.path().join("new.db").display().to_string();
            thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| SqliteBuffer::open(&address, SqlOptions::default()).unwrap());
                }
            });
        }
    }
}
