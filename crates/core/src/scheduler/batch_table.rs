//! All batches by key. Keys are sequential and mostly removed in order, so that the offset from the
//! oldest key is the index.

use std::collections::VecDeque;
use std::ops::Index;

use super::CoreBatch;
use crate::BatchKey;

/// Maximum distance between the oldest and the newest restored key: empty entries in between take
/// memory, and a larger distance can only be an error.
const MAX_SPAN: u64 = 1 << 24;

/// Batches from the oldest one on. A removed batch leaves an empty entry of one word until all
/// older ones are removed.
#[derive(Clone, Debug, Default)]
pub(crate) struct BatchTable {
    /// Key of the first entry.
    first: u64,
    slots: VecDeque<Option<Box<CoreBatch>>>,
}

impl BatchTable {
    /// Adds a batch; its key must be the next one.
    pub(crate) fn push(&mut self, batch: CoreBatch) {
        if self.slots.is_empty() {
            self.first = batch.key.0;
        }
        assert_eq!(self.first + self.slots.len() as u64, batch.key.0, "keys are counted up");
        self.slots.push_back(Some(Box::new(batch)));
    }

    /// Inserts a restored batch. `next` is the key of the next new batch: the table ends before
    /// it, so that [`push`](Self::push) can follow. Returns `false` if the key is in use or too far
    /// from the others.
    pub(crate) fn insert(&mut self, batch: CoreBatch, next: u64) -> bool {
        let key = batch.key.0;
        if self.slots.is_empty() {
            self.first = key;
        }
        let (first, end) = (self.first.min(key), next.max(key.saturating_add(1)));
        if end - first > MAX_SPAN || self.get(&batch.key).is_some() {
            return false;
        }
        while self.first > first {
            self.slots.push_front(None);
            self.first -= 1;
        }
        self.slots.resize_with((end - first) as usize, || None);
        self.slots[(key - first) as usize] = Some(Box::new(batch));
        true
    }

    fn index_of(&self, key: BatchKey) -> Option<usize> {
        usize::try_from(key.0.checked_sub(self.first)?).ok()
    }

    pub(crate) fn get(&self, key: &BatchKey) -> Option<&CoreBatch> {
        self.slots.get(self.index_of(*key)?)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, key: &BatchKey) -> Option<&mut CoreBatch> {
        let index = self.index_of(*key)?;
        self.slots.get_mut(index)?.as_deref_mut()
    }

    pub(crate) fn remove(&mut self, key: &BatchKey) -> Option<Box<CoreBatch>> {
        let index = self.index_of(*key)?;
        let batch = self.slots.get_mut(index)?.take();
        while let Some(None) = self.slots.front() {
            self.slots.pop_front();
            self.first += 1;
        }
        batch
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &CoreBatch> {
        self.slots.iter().filter_map(|slot| slot.as_deref())
    }
}

impl Index<&BatchKey> for BatchTable {
    type Output = CoreBatch;

    fn index(&self, key: &BatchKey) -> &CoreBatch {
        self.get(key).expect("the key was looked up before")
    }
}
