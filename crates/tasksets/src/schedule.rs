//! Interleaving of tasksets.
//!
//! In every epoch each taskset has as many turns as rows, in a new random order: batches are mixed
//! in proportion, and an epoch covers every row once.

use rand::seq::SliceRandom;

use super::rng::rng;

/// Separates the turns from the order of a taskset with the same seed.
const APART: u64 = 0x7475_726e_735f_6f66;

#[derive(Debug)]
pub(super) struct TasksetTurns {
    sizes: Vec<u64>,
    total: u64,
    seed: u64,
    /// Epoch and its turns.
    turns: Option<(u64, Vec<u16>)>,
}

impl TasksetTurns {
    pub(super) fn new(sizes: Vec<u64>, seed: u64) -> Self {
        let total = sizes.iter().sum();
        Self { sizes, total, seed, turns: None }
    }

    /// Returns the number of tasks of an epoch.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Returns the tasksets of the turns from a position on.
    pub(super) fn turns(&mut self, position: u64, count: u32) -> Vec<u16> {
        if self.sizes.len() == 1 {
            return vec![0; count as usize];
        }
        let turn = |more| {
            let position = position + u64::from(more);
            let (epoch, at) = (position / self.total, position % self.total);
            self.epoch(epoch)[at as usize]
        };
        (0..count).map(turn).collect()
    }

    /// Returns the number of turns of each taskset before a position.
    pub(super) fn shares(&mut self, position: u64) -> Vec<u64> {
        if self.sizes.len() == 1 {
            return vec![position];
        }
        let (epochs, rest) = (position / self.total, position % self.total);
        let mut shares: Vec<u64> = self.sizes.iter().map(|size| size * epochs).collect();
        for set in &self.epoch(epochs)[..rest as usize] {
            shares[usize::from(*set)] += 1;
        }
        shares
    }

    fn epoch(&mut self, epoch: u64) -> &[u16] {
        let turns = match self.turns.take() {
            Some((of, turns)) if of == epoch => turns,
            _ => {
                let sets = (0_u16..).zip(&self.sizes);
                let turns = sets.flat_map(|(set, size)| std::iter::repeat_n(set, *size as usize));
                let mut turns: Vec<u16> = turns.collect();
                turns.shuffle(&mut rng(self.seed ^ APART, epoch));
                turns
            }
        };
        &self.turns.insert((epoch, turns)).1
    }
}
