//! Buffers of files: the data in files that other programs read, and beside them an index.
//!
//! A [`FileStore`] keeps the data of lots; [`FileIndex`] remembers what was acknowledged, and only
//! that is read. A lot is stored first and entered in the index then: whatever a writer that died
//! left behind is in no index and gives way to the next. [`FileBuffer`] makes a buffer of the two.

mod index;
mod io;
mod position;
mod reader;
mod wake_file;
mod writer;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

pub(super) use self::index::{Change, FileIndex, IndexEntry};
pub(super) use self::io::{IoContext, sync_folder};
use self::reader::{FileReader, Standing};
use self::writer::FileWriter;
use super::{Buffer, ExperienceReader, ExperienceWriter, Result};
use crate::Sample;

/// Where the data of lots is.
pub(super) trait FileStore: Send + Sync + 'static {
    /// Returns what it is called in messages.
    fn name(&self) -> String;

    /// Returns the folder of the index.
    fn index(&self) -> PathBuf;

    /// Brings the data into accord with the index; called whenever a buffer is opened. If `fresh`,
    /// there was no index, and what is there already has to be entered.
    fn settle(&self, index: &Change<'_>, fresh: bool) -> Result<()>;

    /// Stores samples durably; nobody sees them before they are in the index.
    fn append(&self, number: u64, key: &str, samples: &[&Sample], begin: u64)
    -> Result<IndexEntry>;

    /// Called when a lot with samples is in the index.
    fn entered(&self, entry: &IndexEntry);

    /// Reads the samples of a lot from a row on.
    fn rows(&self, entry: &IndexEntry, row: u64) -> Result<SampleIter>;
}

/// Samples one after the other.
pub(super) type SampleIter = Box<dyn Iterator<Item = Result<Sample>> + Send>;

/// A buffer of a store.
pub(super) struct FileBuffer<S> {
    store: Arc<S>,
    /// Where the readers of each name stand, as long as there are any.
    standings: Mutex<HashMap<String, Weak<Standing>>>,
}

impl<S: FileStore> FileBuffer<S> {
    /// Opens a store; makes an index if there is none.
    pub(super) fn open(store: S) -> Result<Self> {
        let folder = store.index();
        std::fs::create_dir_all(&folder).at(&store.name())?;
        let mut index = FileIndex::open(&folder, store.name())?;
        index.change(|change| {
            let fresh = change.begin()?;
            store.settle(change, fresh)
        })?;
        if let Some(parent) = folder.parent() {
            sync_folder(parent).at(&store.name())?;
        }
        Ok(Self { store: Arc::new(store), standings: Mutex::default() })
    }

    /// Returns what it is called in messages.
    pub(super) fn name(&self) -> String {
        self.store.name()
    }
}

impl<S: FileStore> Buffer for FileBuffer<S> {
    fn writer(&self, name: &str) -> Result<Box<dyn ExperienceWriter>> {
        Ok(Box::new(FileWriter::open(self.store.clone(), name)?))
    }

    fn reader(&self, name: &str) -> Result<Box<dyn ExperienceReader>> {
        let mut standings = self.standings.lock();
        standings.retain(|_, standing| standing.strong_count() > 0);
        let shared = standings.get(name).and_then(Weak::upgrade);
        let standing = match shared {
            Some(standing) => standing,
            None => {
                let standing = Arc::new(Standing::open(&*self.store, name)?);
                standings.insert(name.to_owned(), Arc::downgrade(&standing));
                standing
            }
        };
        Ok(Box::new(FileReader::new(self.store.clone(), standing)))
    }
}

/// Makes a name of a file of any text: what is harmless stays, and a hash keeps it apart.
pub(super) fn safe_name(text: &str) -> String {
    const MAX_NAME_CHARS: usize = 60;
    let harmless = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let kept: String = text.chars().map(harmless).take(MAX_NAME_CHARS).collect();
    // FNV-1a, because it has to be the same tomorrow.
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{kept}-{hash:016x}")
}

/// Returns a path with something after its last part.
pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}
