//! Index of acknowledged write batches, sample ids, writers and reader positions.
//!
//! An SQLite database, so that memory stays small. Changes take a file lock, because SQLite polls
//! for its own lock instead of waiting.

use std::fs::File;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};

use super::last_batch::LastBatch;
use super::wake_file::WakeFile;
use super::{FileStore, IoContext};
use crate::Sample;
use crate::buffer::{BufferError, BufferOwner, Result};

const VERSION: i64 = 1;

const TABLES: &str = "
    CREATE TABLE lots (
        number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, place TEXT NOT NULL,
        begin INTEGER NOT NULL, bytes INTEGER NOT NULL, checksum INTEGER NOT NULL,
        samples INTEGER NOT NULL
    );
    CREATE TABLE ids (id TEXT PRIMARY KEY) WITHOUT ROWID;
    CREATE TABLE writers (name TEXT PRIMARY KEY, closed INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE readers (name TEXT PRIMARY KEY, lot INTEGER NOT NULL, row INTEGER NOT NULL)
        WITHOUT ROWID;
";

/// An indexed write batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::buffer) struct IndexEntry {
    pub(in crate::buffer) number: u64,
    /// File name, if the store has several.
    pub(in crate::buffer) file_name: String,
    /// Offset in the file.
    pub(in crate::buffer) begin: u64,
    pub(in crate::buffer) bytes: u64,
    /// CRC-32 of the bytes.
    pub(in crate::buffer) checksum: u32,
    /// Number of samples; a batch without samples has no data.
    pub(in crate::buffer) samples: u64,
}

/// Index of a buffer; every writer and reader opens its own.
pub(in crate::buffer) struct FileIndex {
    connection: Connection,
    lock: File,
    wake_file: WakeFile,
    last_batch: LastBatch,
    folder: PathBuf,
    storage: String,
}

impl FileIndex {
    pub(super) fn open(folder: &Path, storage: String) -> Result<Self> {
        let path = folder.join("lock");
        let lock = File::options().create(true).truncate(false).write(true).open(path);
        let lock = lock.at(&storage)?;
        let wake_file = WakeFile::open(folder, &storage)?;
        let last_batch = LastBatch::open(folder, &storage)?;
        let connect = || -> rusqlite::Result<Connection> {
            let connection = Connection::open(folder.join("index.sqlite"))?;
            connection.pragma_update(None, "journal_mode", "wal")?;
            connection.pragma_update(None, "synchronous", "full")?;
            Ok(connection)
        };
        // Changing the mode is a change, too.
        lock.lock().at(&storage)?;
        let connection = connect().at(&storage)?;
        lock.unlock().at(&storage)?;
        let folder = folder.to_owned();
        Ok(Self { connection, lock, wake_file, last_batch, folder, storage })
    }

    /// Applies changes atomically; they are durable on return.
    pub(super) fn change<T>(&mut self, make: impl FnOnce(&Change<'_>) -> Result<T>) -> Result<T> {
        changed(&mut self.connection, &self.lock, &self.storage, make)
    }

    /// Creates missing tables and reconciles the data with the index. Refuses an index that has
    /// lost acknowledged batches.
    pub(super) fn settle(&mut self, store: &impl FileStore) -> Result<()> {
        let Self { connection, lock, last_batch, folder, storage, .. } = self;
        let last = changed(connection, lock, storage, |change| {
            let fresh = change.begin()?;
            let indexed = change.last()?.map_or(0, |last| last.number);
            last_batch.check(indexed, storage, folder)?;
            store.settle(change, fresh)?;
            change.last()
        })?;
        if let Some(last) = last {
            last_batch.set(last.number);
        }
        Ok(())
    }

    /// Records that a batch is acknowledged.
    pub(super) fn acknowledged(&self, number: u64) {
        self.last_batch.set(number);
    }

    pub(super) fn notify(&mut self) {
        self.wake_file.notify();
    }

    /// Returns the first batch with samples behind a number.
    pub(super) fn after(&self, number: u64) -> Result<Option<IndexEntry>> {
        let sql = "SELECT * FROM lots WHERE number > ? AND samples > 0 ORDER BY number LIMIT 1";
        self.entry(sql, number)
    }

    pub(super) fn batch(&self, number: u64) -> Result<Option<IndexEntry>> {
        self.entry("SELECT * FROM lots WHERE number = ?", number)
    }

    /// Returns whether there were writers and all have closed.
    pub(super) fn closed(&self) -> Result<bool> {
        let sql = "SELECT count(*) > 0 AND min(closed) FROM writers";
        let closed = self.connection.query_row(sql, [], |row| row.get::<_, Option<bool>>(0));
        Ok(closed.at(&self.storage)?.unwrap_or_default())
    }

    /// Returns the acknowledged position of a reader.
    pub(super) fn position(&self, reader: &str) -> Result<Position> {
        let sql = "SELECT lot, row FROM readers WHERE name = ?";
        let read = |row: &Row<'_>| Ok(Position { batch: row.get(0)?, row: row.get(1)? });
        let position = self.connection.query_row(sql, [reader], read).optional();
        Ok(position.at(&self.storage)?.unwrap_or_default())
    }

    fn entry(&self, sql: &str, number: u64) -> Result<Option<IndexEntry>> {
        let mut statement = self.connection.prepare_cached(sql).at(&self.storage)?;
        statement.query_row([number], entry).optional().at(&self.storage)
    }
}

fn changed<T>(
    connection: &mut Connection,
    lock: &File,
    storage: &str,
    make: impl FnOnce(&Change<'_>) -> Result<T>,
) -> Result<T> {
    lock.lock().at(storage)?;
    let begin = TransactionBehavior::Immediate;
    let done = connection.transaction_with_behavior(begin).at(storage).and_then(|transaction| {
        let change = Change { transaction, storage };
        let made = make(&change)?;
        change.transaction.commit().at(storage)?;
        Ok(made)
    });
    lock.unlock().at(storage)?;
    done
}

/// A transaction on the index.
pub(in crate::buffer) struct Change<'a> {
    transaction: Transaction<'a>,
    storage: &'a str,
}

impl Change<'_> {
    /// Creates missing tables. Returns whether they were missing.
    pub(super) fn begin(&self) -> Result<bool> {
        let version = |row: &Row<'_>| row.get::<_, i64>(0);
        let version = self.transaction.query_row("PRAGMA user_version", [], version);
        match version.at(self.storage)? {
            0 => {
                self.transaction.execute_batch(TABLES).at(self.storage)?;
                self.transaction.pragma_update(None, "user_version", VERSION).at(self.storage)?;
                Ok(true)
            }
            VERSION => Ok(false),
            found => Err(BufferError::damaged(
                self.storage,
                format!("its index has version {found}; this program reads version {VERSION}"),
            )),
        }
    }

    pub(in crate::buffer) fn last(&self) -> Result<Option<IndexEntry>> {
        let sql = "SELECT * FROM lots ORDER BY number DESC LIMIT 1";
        self.transaction.query_row(sql, [], entry).optional().at(self.storage)
    }

    /// Returns the batches with samples, newest first.
    pub(in crate::buffer) fn newest_first(&self) -> Result<Vec<IndexEntry>> {
        let entries = || -> rusqlite::Result<Vec<IndexEntry>> {
            let sql = "SELECT * FROM lots WHERE samples > 0 ORDER BY number DESC";
            let mut statement = self.transaction.prepare_cached(sql)?;
            statement.query_map([], entry)?.collect()
        };
        entries().at(self.storage)
    }

    /// Returns the end of the data of all batches, for a store with one file.
    pub(in crate::buffer) fn end(&self) -> Result<u64> {
        let last = self.last()?;
        Ok(last.map_or(0, |last| last.begin + last.bytes))
    }

    /// Returns the files of all batches, in order.
    pub(in crate::buffer) fn file_names(&self) -> Result<Vec<String>> {
        let file_names = || -> rusqlite::Result<Vec<String>> {
            let sql = "SELECT place FROM lots WHERE samples > 0 ORDER BY number";
            let mut statement = self.transaction.prepare_cached(sql)?;
            statement.query_map([], |row| row.get(0))?.collect()
        };
        file_names().at(self.storage)
    }

    /// Returns whether a batch is indexed.
    pub(super) fn has_batch(&self, key: &str) -> Result<bool> {
        let sql = "SELECT EXISTS (SELECT 1 FROM lots WHERE key = ?)";
        let mut statement = self.transaction.prepare_cached(sql).at(self.storage)?;
        statement.query_row([key], |row| row.get(0)).at(self.storage)
    }

    /// Adds sample ids. Returns the samples whose ids are new.
    pub(super) fn unknown<'s>(&self, samples: &'s [Sample]) -> Result<Vec<&'s Sample>> {
        let mut new = Vec::with_capacity(samples.len());
        for sample in samples {
            if self.add_id(&sample.id)? {
                new.push(sample);
            }
        }
        Ok(new)
    }

    /// Adds a sample id. Returns whether it is new.
    pub(in crate::buffer) fn add_id(&self, id: &str) -> Result<bool> {
        let sql = "INSERT INTO ids VALUES (?) ON CONFLICT DO NOTHING";
        let mut statement = self.transaction.prepare_cached(sql).at(self.storage)?;
        Ok(statement.execute([id]).at(self.storage)? > 0)
    }

    pub(in crate::buffer) fn add(&self, key: &str, entry: &IndexEntry) -> Result<()> {
        let IndexEntry { number, file_name, begin, bytes, checksum, samples } = entry;
        let sql = "INSERT INTO lots VALUES (?, ?, ?, ?, ?, ?, ?)";
        let values = params![number, key, file_name, begin, bytes, checksum, samples];
        self.transaction.execute(sql, values).at(self.storage)?;
        Ok(())
    }

    /// Returns the recorded owner. Without one, records the given one.
    pub(super) fn owner(&self, new: &BufferOwner) -> Result<BufferOwner> {
        let table = "CREATE TABLE IF NOT EXISTS owners (id TEXT PRIMARY KEY, name TEXT NOT NULL)";
        self.transaction.execute(table, []).at(self.storage)?;
        let read = |row: &Row<'_>| Ok(BufferOwner { id: row.get(0)?, name: row.get(1)? });
        let found = self.transaction.query_row("SELECT id, name FROM owners", [], read).optional();
        if let Some(found) = found.at(self.storage)? {
            return Ok(found);
        }
        let values = params![new.id, new.name];
        self.transaction.execute("INSERT INTO owners VALUES (?, ?)", values).at(self.storage)?;
        Ok(new.clone())
    }

    /// Adds or updates a writer.
    pub(in crate::buffer) fn writer(&self, name: &str, closed: bool) -> Result<()> {
        let sql = "INSERT INTO writers VALUES (?1, ?2) ON CONFLICT DO UPDATE SET closed = ?2";
        self.transaction.execute(sql, params![name, closed]).at(self.storage)?;
        Ok(())
    }

    /// Sets the acknowledged position of a reader.
    pub(super) fn set_position(&self, reader: &str, position: Position) -> Result<()> {
        let sql = "INSERT INTO readers VALUES (?1, ?2, ?3)
                   ON CONFLICT DO UPDATE SET lot = ?2, row = ?3";
        let values = params![reader, position.batch, position.row];
        self.transaction.execute(sql, values).at(self.storage)?;
        Ok(())
    }
}

fn entry(row: &Row<'_>) -> rusqlite::Result<IndexEntry> {
    Ok(IndexEntry {
        number: row.get("number")?,
        file_name: row.get("place")?,
        begin: row.get("begin")?,
        bytes: row.get("bytes")?,
        checksum: row.get("checksum")?,
        samples: row.get("samples")?,
    })
}

/// Position before a sample: `BATCH:ROW`. Write batches count from 1, rows from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::buffer) struct Position {
    /// Write batch; 0 is before the first.
    pub(super) batch: u64,
    /// Number of its samples that were read.
    pub(super) row: u64,
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.batch, self.row)
    }
}

impl std::str::FromStr for Position {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (batch, row) = text.split_once(':').ok_or(())?;
        let number = |text: &str| text.parse().map_err(drop);
        Ok(Self { batch: number(batch)?, row: number(row)? })
    }
}
