//! Random numbers: one generator per sequence, so that samples do not depend on other sequences.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Deterministic random numbers of a seed.
#[derive(Clone, Debug)]
pub struct SeededRng {
    generator: ChaCha8Rng,
}

impl SeededRng {
    pub fn new(seed: u64) -> Self {
        Self { generator: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// Returns a number in [0, 1).
    pub fn unit(&mut self) -> f32 {
        // An `f32` holds 24 bits exactly.
        (self.generator.next_u32() >> 8) as f32 / (1_u32 << 24) as f32
    }

    /// Returns a number below `bound`; 0 for bound 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        ((u64::from(self.generator.next_u32()) * u64::from(bound)) >> 32) as u32
    }

    /// Returns a number of the standard normal distribution.
    pub(crate) fn normal(&mut self) -> f32 {
        // Box-Muller; the first number must not be 0.
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f32::consts::TAU * self.unit()).cos()
    }
}
