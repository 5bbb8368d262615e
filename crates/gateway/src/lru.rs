//! Map that knows which of its entries was used least recently.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

#[derive(Debug)]
pub(crate) struct LruMap<K, V> {
    entries: HashMap<K, (V, u64)>,
    by_use: BTreeMap<u64, K>,
    next_use: u64,
}

impl<K, V> Default for LruMap<K, V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), by_use: BTreeMap::new(), next_use: 0 }
    }
}

impl<K: Copy + Eq + Hash, V> LruMap<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns an entry without using it.
    pub(crate) fn peek(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(value, _)| value)
    }

    /// Returns an entry without using it.
    pub(crate) fn peek_mut(&mut self, key: &K) -> Option<&mut V> {
        self.entries.get_mut(key).map(|(value, _)| value)
    }

    /// Returns the entry of a key as the most recently used one, and inserts it if it is missing.
    pub(crate) fn get_or_insert_with(&mut self, key: K, new: impl FnOnce() -> V) -> &mut V {
        self.next_use += 1;
        let (value, used) = self.entries.entry(key).or_insert_with(|| (new(), 0));
        self.by_use.remove(used);
        *used = self.next_use;
        self.by_use.insert(self.next_use, key);
        value
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let (value, used) = self.entries.remove(key)?;
        self.by_use.remove(&used);
        Some(value)
    }

    /// Removes the least recently used entry.
    pub(crate) fn pop_oldest(&mut self) -> Option<V> {
        let (_, key) = self.by_use.pop_first()?;
        self.remove(&key)
    }
}
