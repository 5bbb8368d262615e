//! Ids of write batches and samples that the queue holds or has recently removed.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use super::store::NewWriteBatch;

/// 128-bit hash of an id: two of a billion ids collide with a probability of 10⁻²¹.
pub(super) type IdHash = u128;

pub(super) fn batch_name(key: &str) -> IdHash {
    hash(b'l', key)
}

pub(super) fn sample_name(id: &str) -> IdHash {
    hash(b's', id)
}

/// FNV-1a of 128 bits. Stored on disk, so that it must never change.
fn hash(kind: u8, text: &str) -> IdHash {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let step = |hash: u128, byte: u8| (hash ^ u128::from(byte)).wrapping_mul(PRIME);
    text.bytes().fold(step(BASIS, kind), step)
}

/// Known ids: those in the queue and the last `gone_max` removed ones.
#[derive(Debug)]
pub(super) struct SeenIds {
    names: HashSet<IdHash, BuildHasherDefault<Fold>>,
    removed: VecDeque<IdHash>,
    removed_max: usize,
}

impl SeenIds {
    pub(super) fn new(removed_max: usize) -> Self {
        Self { names: HashSet::default(), removed: VecDeque::new(), removed_max }
    }

    pub(super) fn contains(&self, name: IdHash) -> bool {
        self.names.contains(&name)
    }

    /// Adds an id; false if it was known.
    pub(super) fn enter(&mut self, name: IdHash) -> bool {
        self.names.insert(name)
    }

    /// Adds a batch that is not stored, so that the decision is made once.
    pub(super) fn add_unstored(&mut self, batch: &NewWriteBatch) {
        for name in batch.samples.iter().map(|(name, _)| *name).chain([batch.key]) {
            self.enter(name);
            self.leave(name);
        }
    }

    /// Marks an id as removed from the queue.
    pub(super) fn leave(&mut self, name: IdHash) {
        self.removed.push_back(name);
        while self.removed.len() > self.removed_max {
            if let Some(oldest) = self.removed.pop_front() {
                self.names.remove(&oldest);
            }
        }
    }
}

/// Ids are hashes already.
#[derive(Default)]
struct Fold(u64);

impl Hasher for Fold {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 ^= u64::from_le_bytes(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_stays_known_and_what_has_left_is_forgotten_in_order() {
        let mut seen = SeenIds::new(2);
        for name in 0..5 {
            assert!(seen.enter(name));
            assert!(!seen.enter(name));
        }
        for name in 1..4 {
            seen.leave(name);
        }
        let left: Vec<bool> = (0..5).map(|name| seen.contains(name)).collect();
        assert_eq!(left, [true, false, true, true, true]);
    }

    #[test]
    fn names_are_those_of_the_published_function() {
        // FNV-1a of "ls" has no other kind in front of it than its first letter.
        let direct = hash(b'l', "s");
        assert_eq!(direct, batch_name("s"));
        assert_ne!(batch_name("s"), sample_name("s"));
        // The published value for "a".
        assert_eq!(hash(b'a', ""), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }
}
