//! Writer of files.

use std::sync::Arc;

use super::{FileIndex, FileStore, IndexEntry};
use crate::WriteBatch;
use crate::buffer::{BufferError, ExperienceWriter, Result, WriteResult};

pub(super) struct FileWriter<S> {
    store: Arc<S>,
    index: FileIndex,
    name: String,
    closed: bool,
}

impl<S: FileStore> FileWriter<S> {
    pub(super) fn open(store: Arc<S>, name: &str) -> Result<Self> {
        let mut index = FileIndex::open(&store.index(), store.name())?;
        index.change(|change| change.writer(name, false))?;
        // A crashed writer may have left batches without waking readers.
        index.notify();
        Ok(Self { store, index, name: name.to_owned(), closed: false })
    }
}

impl<S: FileStore> ExperienceWriter for FileWriter<S> {
    fn write(&mut self, batch: &WriteBatch) -> Result<WriteResult> {
        if self.closed {
            return Err(BufferError::Closed(format!("writer `{}`", self.name)));
        }
        let store = &self.store;
        let entry = self.index.change(|change| {
            if change.has_batch(&batch.key)? {
                return Ok(None);
            }
            let number = change.last()?.map_or(1, |last| last.number + 1);
            let new = change.unknown(&batch.samples)?;
            let begin = change.end()?;
            let entry = if new.is_empty() {
                let file_name = String::new();
                IndexEntry { number, file_name, begin, bytes: 0, checksum: 0, samples: 0 }
            } else {
                store.append(number, &batch.key, &new, begin)?
            };
            change.add(&batch.key, &entry)?;
            Ok(Some(entry))
        })?;
        if let Some(entry) = &entry {
            self.index.acknowledged(entry.number);
        }
        let stored = match &entry {
            Some(entry) if entry.samples > 0 => {
                store.entered(entry);
                self.index.notify();
                usize::try_from(entry.samples).unwrap_or(batch.samples.len())
            }
            _ => 0,
        };
        Ok(WriteResult { stored, known: batch.samples.len() - stored, ..WriteResult::default() })
    }

    fn close(&mut self) -> Result<()> {
        self.index.change(|change| change.writer(&self.name, true))?;
        self.closed = true;
        self.index.notify();
        Ok(())
    }
}
