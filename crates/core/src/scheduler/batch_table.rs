//! All batches by key. Keys are counted up and mostly die in order, so that a batch is found by
//! counting from the oldest one, without a search.

use std::collections::VecDeque;
use std::ops::Index;

use crate::ids::BatchKey;
use crate::scheduler::batch::CoreBatch;

/// How far apart the oldest and the newest batch may be that are put back: their places in between
/// take memory, and a key that is too far away can only be wrong.
const MAX_SPAN: u64 = 1 << 24;

/// Batches from the oldest one on; what has ended in between leaves an empty place of one word
/// until everything older has ended too.
#[derive(Clone, Debug, Default)]
pub(crate) struct BatchTable {
    /// The key of the first place.
    first: u64,
    places: VecDeque<Option<Box<CoreBatch>>>,
}

impl BatchTable {
    /// Adds a batch; its key must be the next one.
    pub(crate) fn push(&mut self, batch: CoreBatch) {
        if self.places.is_empty() {
            self.first = batch.key.0;
        }
        assert_eq!(self.first + self.places.len() as u64, batch.key.0, "keys are counted up");
        self.places.push_back(Some(Box::new(batch)));
    }

    /// Inserts a restored batch. `next` is the key of the next new batch: the table ends before
    /// it, so that [`push`](Self::push) can follow. Returns `false` if the key is in use or too far
    /// from the others.
    pub(crate) fn insert(&mut self, batch: CoreBatch, next: u64) -> bool {
        let key = batch.key.0;
        if self.places.is_empty() {
            self.first = key;
        }
        let (first, end) = (self.first.min(key), next.max(key.saturating_add(1)));
        if end - first > MAX_SPAN || self.get(&batch.key).is_some() {
            return false;
        }
        while self.first > first {
            self.places.push_front(None);
            self.first -= 1;
        }
        self.places.resize_with((end - first) as usize, || None);
        self.places[(key - first) as usize] = Some(Box::new(batch));
        true
    }

    fn place(&self, key: BatchKey) -> Option<usize> {
        usize::try_from(key.0.checked_sub(self.first)?).ok()
    }

    pub(crate) fn get(&self, key: &BatchKey) -> Option<&CoreBatch> {
        self.places.get(self.place(*key)?)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, key: &BatchKey) -> Option<&mut CoreBatch> {
        let place = self.place(*key)?;
        self.places.get_mut(place)?.as_deref_mut()
    }

    pub(crate) fn remove(&mut self, key: &BatchKey) -> Option<Box<CoreBatch>> {
        let place = self.place(*key)?;
        let batch = self.places.get_mut(place)?.take();
        while let Some(None) = self.places.front() {
            self.places.pop_front();
            self.first += 1;
        }
        batch
    }

    /// Iterates from the oldest to the newest.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &CoreBatch> {
        self.places.iter().filter_map(|place| place.as_deref())
    }
}

impl Index<&BatchKey> for BatchTable {
    type Output = CoreBatch;

    fn index(&self, key: &BatchKey) -> &CoreBatch {
        self.get(key).expect("whoever names a batch has looked it up")
    }
}
