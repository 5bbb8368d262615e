//! Maps by numbers that we gave ourselves: nobody can choose them so that they collide, and the
//! hash of the standard library is made for those who can.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// A map by numbers of ours.
pub(crate) type QuickMap<K, V> = HashMap<K, V, BuildHasherDefault<Mix>>;

/// A set of numbers of ours.
pub(crate) type QuickSet<K> = HashSet<K, BuildHasherDefault<Mix>>;

/// Spreads the bits of a number.
pub(crate) const fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// A hash for numbers.
#[derive(Debug, Default)]
pub(crate) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = mixed(self.0 ^ number);
    }
}
