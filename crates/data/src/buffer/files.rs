//! Buffers of files: data files for other programs and an index beside them.
//!
//! A [`FileStore`] stores the data of write batches, the [`FileIndex`] records the acknowledged
//! ones, and only these are read. A batch is stored first and indexed then; unindexed data of a
//! crashed writer is discarded. [`FileBuffer`] combines the two.

mod index;
mod last_batch;
mod reader;
mod wake_file;
mod writer;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

pub(super) use self::index::{Change, FileIndex, IndexEntry};
use self::reader::{FileReader, SharedPosition};
use self::writer::FileWriter;
use super::{Buffer, BufferError, BufferOwner, ExperienceReader, ExperienceWriter, Result};
use crate::Sample;

/// Storage of the data of write batches.
pub(super) trait FileStore: Send + Sync + 'static {
    /// Returns the name in messages.
    fn name(&self) -> String;

    /// Returns the folder of the index.
    fn index(&self) -> PathBuf;

    /// Reconciles the data with the index at opening. `fresh`: there was no index, and existing
    /// data is to be indexed.
    fn settle(&self, index: &Change<'_>, fresh: bool) -> Result<()>;

    /// Stores samples durably; they are invisible until indexed.
    fn append(&self, number: u64, key: &str, samples: &[&Sample], begin: u64)
    -> Result<IndexEntry>;

    /// Called after a batch with samples was indexed.
    fn entered(&self, entry: &IndexEntry);

    /// Reads the samples of a batch from a row on.
    fn rows(&self, entry: &IndexEntry, row: u64) -> Result<SampleIter>;
}

pub(super) type SampleIter = Box<dyn Iterator<Item = Result<Sample>> + Send>;

pub struct FileBuffer<S> {
    store: Arc<S>,
    /// Positions by reader name, while readers exist.
    positions: Mutex<HashMap<String, Weak<SharedPosition>>>,
}

/// Opens a store and creates a missing index.
pub(super) fn open<S: FileStore>(store: S) -> Result<FileBuffer<S>> {
    let folder = store.index();
    std::fs::create_dir_all(&folder).at(&store.name())?;
    let mut index = FileIndex::open(&folder, store.name())?;
    index.settle(&store)?;
    if let Some(parent) = folder.parent() {
        sync_folder(parent).at(&store.name())?;
    }
    Ok(FileBuffer { store: Arc::new(store), positions: Mutex::default() })
}

/// Records the owner in the index, or refuses files with another owner.
pub(super) fn claim<S: FileStore>(buffer: &FileBuffer<S>, owner: &BufferOwner) -> Result<()> {
    let store = &buffer.store;
    let mut index = FileIndex::open(&store.index(), store.name())?;
    let found = index.change(|change| change.owner(owner))?;
    owner.check(&store.name(), &found)
}

impl<S: FileStore> std::fmt::Debug for FileBuffer<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("FileBuffer").field(&self.store.name()).finish()
    }
}

impl<S: FileStore> Buffer for FileBuffer<S> {
    fn writer(&self, name: &str) -> Result<Box<dyn ExperienceWriter>> {
        Ok(Box::new(FileWriter::open(self.store.clone(), name)?))
    }

    fn reader(&self, name: &str) -> Result<Box<dyn ExperienceReader>> {
        let mut positions = self.positions.lock();
        positions.retain(|_, position| position.strong_count() > 0);
        let shared = positions.get(name).and_then(Weak::upgrade);
        let position = match shared {
            Some(position) => position,
            None => {
                let position = Arc::new(SharedPosition::open(&*self.store, name)?);
                positions.insert(name.to_owned(), Arc::downgrade(&position));
                position
            }
        };
        Ok(Box::new(FileReader::new(self.store.clone(), position)))
    }
}

/// Converts text to a unique file name: safe characters and a hash.
pub(super) fn safe_name(text: &str) -> String {
    const MAX_NAME_CHARS: usize = 60;
    let harmless = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let kept: String = text.chars().map(harmless).take(MAX_NAME_CHARS).collect();
    // FNV-1a, which must never change.
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{kept}-{hash:016x}")
}

/// Adds the storage to an error.
pub(super) trait IoContext<T> {
    fn at(self, storage: &str) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn at(self, storage: &str) -> Result<T> {
        self.map_err(|error| {
            let (storage, message) = (storage.to_owned(), error.to_string());
            match error.kind() {
                io::ErrorKind::StorageFull
                | io::ErrorKind::QuotaExceeded
                | io::ErrorKind::FileTooLarge => BufferError::full(storage, message),
                _ => BufferError::unavailable(storage, message),
            }
        })
    }
}

impl<T> IoContext<T> for rusqlite::Result<T> {
    fn at(self, storage: &str) -> Result<T> {
        self.map_err(|error| {
            let message = format!("its index: {error}");
            let storage = storage.to_owned();
            match error.sqlite_error_code() {
                Some(rusqlite::ErrorCode::DiskFull) => BufferError::full(storage, message),
                Some(rusqlite::ErrorCode::DatabaseCorrupt | rusqlite::ErrorCode::NotADatabase) => {
                    BufferError::damaged(storage, message)
                }
                _ => BufferError::unavailable(storage, message),
            }
        })
    }
}

/// Makes the entries of a folder durable.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    File::open(folder)?.sync_all()
}
