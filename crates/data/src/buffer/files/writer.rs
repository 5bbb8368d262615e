//! Puts lots into a store and its index.

use std::sync::Arc;

use super::{Entry, Index, Store};
use crate::Lot;
use crate::buffer::{BufferError, Result, Writer, Written};

/// A writer of files.
pub(super) struct FileWriter<S> {
    store: Arc<S>,
    index: Index,
    name: String,
    closed: bool,
}

impl<S: Store> FileWriter<S> {
    pub(super) fn open(store: Arc<S>, name: &str) -> Result<Self> {
        let mut index = Index::open(&store.index(), store.name())?;
        index.change(|change| change.writer(name, false))?;
        // One that died may have left something that nobody was woken for.
        index.ring();
        Ok(Self { store, index, name: name.to_owned(), closed: false })
    }
}

impl<S: Store> Writer for FileWriter<S> {
    fn write(&mut self, lot: &Lot) -> Result<Written> {
        if self.closed {
            return Err(BufferError::Closed(format!("writer `{}`", self.name)));
        }
        let store = &self.store;
        let entry = self.index.change(|change| {
            if change.knows(&lot.key)? {
                return Ok(None);
            }
            let number = change.last()?.map_or(1, |last| last.number + 1);
            let new = change.unknown(&lot.samples)?;
            let begin = change.end()?;
            let entry = if new.is_empty() {
                let place = String::new();
                Entry { number, place, begin, bytes: 0, checksum: 0, samples: 0 }
            } else {
                store.append(number, &lot.key, &new, begin)?
            };
            change.add(&lot.key, &entry)?;
            Ok(Some(entry))
        })?;
        let stored = match &entry {
            Some(entry) if entry.samples > 0 => {
                store.entered(entry);
                self.index.ring();
                usize::try_from(entry.samples).unwrap_or(lot.samples.len())
            }
            _ => 0,
        };
        Ok(Written { stored, known: lot.samples.len() - stored, ..Written::default() })
    }

    fn close(&mut self) -> Result<()> {
        self.index.change(|change| change.writer(&self.name, true))?;
        self.closed = true;
        self.index.ring();
        Ok(())
    }
}
