//! All chance in the model: one generator for every sequence, so that what is drawn for one does
//! not depend on the others.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A source of random numbers that a seed decides.
#[derive(Clone, Debug)]
pub struct SeededRng {
    generator: ChaCha8Rng,
}

impl SeededRng {
    /// Returns the source that belongs to a seed.
    pub fn new(seed: u64) -> Self {
        Self { generator: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// Returns a number from 0 to 1, 1 excluded.
    pub fn unit(&mut self) -> f32 {
        // 24 bits are what an `f32` can hold exactly.
        (self.generator.next_u32() >> 8) as f32 / (1_u32 << 24) as f32
    }

    /// Returns a number below `bound`, or zero if there is none.
    pub fn below(&mut self, bound: u32) -> u32 {
        ((u64::from(self.generator.next_u32()) * u64::from(bound)) >> 32) as u32
    }

    /// Returns a number of the normal distribution around zero.
    pub(crate) fn normal(&mut self) -> f32 {
        // Box and Muller; the first must not be zero.
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f32::consts::TAU * self.unit()).cos()
    }
}
