//! All batches by key. Keys are counted up and mostly die in order, so that a batch is found by
//! counting from the oldest one, without a search.

use std::collections::VecDeque;
use std::ops::Index;

use crate::batch::Batch;
use crate::ids::BatchKey;

/// Batches from the oldest one on; what has ended in between leaves an empty place of one word
/// until everything older has ended too.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batches {
    /// The key of the first place.
    first: u64,
    places: VecDeque<Option<Box<Batch>>>,
}

impl Batches {
    /// Adds a batch; its key must be the next one.
    pub(crate) fn push(&mut self, batch: Batch) {
        if self.places.is_empty() {
            self.first = batch.key.0;
        }
        assert_eq!(self.first + self.places.len() as u64, batch.key.0, "keys are counted up");
        self.places.push_back(Some(Box::new(batch)));
    }

    fn place(&self, key: BatchKey) -> Option<usize> {
        usize::try_from(key.0.checked_sub(self.first)?).ok()
    }

    pub(crate) fn get(&self, key: &BatchKey) -> Option<&Batch> {
        self.places.get(self.place(*key)?)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, key: &BatchKey) -> Option<&mut Batch> {
        let place = self.place(*key)?;
        self.places.get_mut(place)?.as_deref_mut()
    }

    pub(crate) fn remove(&mut self, key: &BatchKey) -> Option<Box<Batch>> {
        let place = self.place(*key)?;
        let batch = self.places.get_mut(place)?.take();
        while let Some(None) = self.places.front() {
            self.places.pop_front();
            self.first += 1;
        }
        batch
    }

    /// Iterates from the oldest to the newest.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Batch> {
        self.places.iter().filter_map(|place| place.as_deref())
    }
}

impl Index<&BatchKey> for Batches {
    type Output = Batch;

    fn index(&self, key: &BatchKey) -> &Batch {
        self.get(key).expect("whoever names a batch has looked it up")
    }
}
