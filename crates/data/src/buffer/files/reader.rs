//! Reader of files: reads write batches in index order and records acknowledged positions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use rollway_base::{FileLock, FileLockError};

use super::index::Position;
use super::wake_file::WakeWatcher;
use super::{FileIndex, FileStore, IndexEntry, IoContext, SampleIter, safe_name};
use crate::Sample;
use crate::buffer::{BufferError, ExperienceReader, ReadEnd, ReadRequest, ReadResult, Result};

/// Shared position of the readers of one name. All are in one process: the name is locked.
pub(super) struct SharedPosition {
    name: String,
    watcher: WakeWatcher,
    state: Mutex<FileReaderState>,
    // Locked as long as it is open.
    _lock: FileLock,
}

struct FileReaderState {
    index: FileIndex,
    cursor: Position,
    /// Current batch and its rows from the cursor on.
    open: Option<(IndexEntry, SampleIter)>,
    /// Everything before it is acknowledged.
    acknowledged: Position,
    /// Start of the unacknowledged samples of each reader. Those of a dropped reader are read again
    /// when the name is reopened.
    held: BTreeMap<u64, Position>,
    /// Number of readers opened.
    readers: u64,
}

impl SharedPosition {
    pub(super) fn open<S: FileStore>(store: &S, name: &str) -> Result<Self> {
        let (folder, storage) = (store.index(), store.name());
        let file = folder.join(format!("reader-{}.lock", safe_name(name)));
        let lock = match FileLock::acquire(&file) {
            Ok(lock) => lock,
            Err(FileLockError::Held { .. }) => {
                let message = format!(
                    "another process or buffer reads it as `{name}`; read under another name, or \
                     wait until that one has ended"
                );
                return Err(BufferError::unavailable(storage, message));
            }
            Err(FileLockError::Io(error)) => return Err(error).at(&storage),
        };
        let watcher = WakeWatcher::open(&folder, &storage)?;
        let index = FileIndex::open(&folder, storage)?;
        let cursor = index.position(name)?;
        let state = FileReaderState {
            index,
            cursor,
            open: None,
            acknowledged: cursor,
            held: BTreeMap::new(),
            readers: 0,
        };
        Ok(Self { name: name.to_owned(), watcher, state: Mutex::new(state), _lock: lock })
    }
}

impl FileReaderState {
    /// Acknowledges everything that no reader holds.
    fn acknowledge(&mut self, name: &str) -> Result<()> {
        let position = self.held.values().min().copied().unwrap_or(self.cursor);
        if position != self.acknowledged {
            self.index.change(|change| change.set_position(name, position))?;
            self.acknowledged = position;
        }
        Ok(())
    }

    /// Returns the next sample, if there is one now.
    fn next<S: FileStore>(&mut self, store: &S) -> Result<Option<Sample>> {
        loop {
            if let Some((entry, rows)) = &mut self.open {
                if self.cursor.row < entry.samples {
                    let short = || {
                        BufferError::damaged(
                            store.name(),
                            format!(
                                "batch {} has {} samples where {} were written",
                                entry.number, self.cursor.row, entry.samples
                            ),
                        )
                    };
                    let sample = rows.next().ok_or_else(short).flatten();
                    if sample.is_ok() {
                        self.cursor.row += 1;
                    } else {
                        self.open = None;
                    }
                    return sample.map(Some);
                }
                self.open = None;
            }
            let unfinished = match self.index.batch(self.cursor.batch)? {
                Some(entry) if self.cursor.row < entry.samples => Some(entry),
                _ => None,
            };
            let entry = match unfinished {
                Some(entry) => entry,
                None => match self.index.after(self.cursor.batch)? {
                    Some(entry) => {
                        self.cursor = Position { batch: entry.number, row: 0 };
                        entry
                    }
                    None => return Ok(None),
                },
            };
            let rows = store.rows(&entry, self.cursor.row)?;
            self.open = Some((entry, rows));
        }
    }
}

pub(super) struct FileReader<S> {
    store: Arc<S>,
    position: Arc<SharedPosition>,
    number: u64,
}

impl<S: FileStore> FileReader<S> {
    pub(super) fn new(store: Arc<S>, position: Arc<SharedPosition>) -> Self {
        let mut state = position.state.lock();
        state.readers += 1;
        let number = state.readers;
        drop(state);
        Self { store, position, number }
    }

    /// Takes available samples.
    fn take(&self, request: &ReadRequest, taken: &mut ReadResult) -> Result<Option<ReadEnd>> {
        let mut state = self.position.state.lock();
        let begin = state.cursor;
        state.held.entry(self.number).or_insert(begin);
        // Checked before the last look: no batch follows once all writers have closed.
        let closed = state.index.closed()?;
        while taken.samples.len() < request.count {
            match state.next(&*self.store)? {
                Some(sample) if sample.model_version < request.min_model_version => {
                    taken.stale += 1
                }
                Some(sample) => taken.samples.push(sample),
                None => return Ok(closed.then_some(ReadEnd::Finished)),
            }
        }
        Ok(Some(ReadEnd::Full))
    }
}

impl<S: FileStore> ExperienceReader for FileReader<S> {
    /// An unreadable sample is an error of its own; the samples before it are returned first.
    fn read(&mut self, request: &ReadRequest) -> Result<ReadResult> {
        let until = Instant::now().checked_add(request.timeout);
        let until = until.unwrap_or_else(|| Instant::now() + std::time::Duration::from_hours(9999));
        if !request.keep {
            let mut state = self.position.state.lock();
            state.held.remove(&self.number);
            state.acknowledge(&self.position.name)?;
        }
        let mut taken = ReadResult { samples: Vec::new(), stale: 0, end: ReadEnd::TimedOut };
        if request.count == 0 {
            taken.end = ReadEnd::Full;
            return Ok(taken);
        }
        loop {
            let seen = self.position.watcher.changes.count();
            match self.take(request, &mut taken) {
                Ok(Some(end)) => {
                    taken.end = end;
                    return Ok(taken);
                }
                Ok(None) => {}
                Err(_) if !taken.samples.is_empty() => return Ok(taken),
                Err(error) => return Err(error),
            }
            if !self.position.watcher.changes.wait(seen, until) {
                return Ok(taken);
            }
        }
    }

    fn position(&self) -> String {
        self.position.state.lock().cursor.to_string()
    }

    fn seek(&mut self, position: &str) -> Result<()> {
        let unknown = || {
            BufferError::unsupported(
                self.store.name(),
                format!(
                    "invalid position `{position}`; use a value that `position` of a reader of \
                     this buffer returned"
                ),
            )
        };
        let to: Position = position.parse().map_err(|()| unknown())?;
        let mut state = self.position.state.lock();
        let samples = match to.batch {
            0 => 0,
            batch => state.index.batch(batch)?.ok_or_else(unknown)?.samples,
        };
        if to.row > samples {
            return Err(unknown());
        }
        state.open = None;
        state.held.clear();
        state.cursor = to;
        state.acknowledge(&self.position.name)
    }
}
