//! The randomness of the simulator: one seeded generator. The draws use integers only, so that a
//! seed gives the same world on every machine.

use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A probability, in ten thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FaultRate(pub u32);

impl FaultRate {
    pub const NEVER: Self = Self(0);

    /// Returns a rate given in hundredths.
    pub const fn percent(percent: u32) -> Self {
        Self(percent * 100)
    }
}

#[derive(Clone, Debug)]
pub struct SimRandom {
    generator: ChaCha8Rng,
}

impl SimRandom {
    pub fn new(seed: u64) -> Self {
        Self { generator: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// Returns a number below `bound`; zero if `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.generator.next_u64()) * u128::from(bound);
        (wide >> 64) as u64
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    pub fn small(&mut self, low: u32, high: u32) -> u32 {
        self.between(low.into(), high.into()) as u32
    }

    /// Draws an event of this probability.
    pub fn chance(&mut self, rate: FaultRate) -> bool {
        self.below(10_000) < rate.0.into()
    }

    /// Draws an event with a probability in percent.
    pub fn percent(&mut self, percent: u32) -> bool {
        self.chance(FaultRate::percent(percent))
    }

    /// Returns one of several items; there must be at least one.
    pub fn pick<'a, T>(&mut self, things: &'a [T]) -> &'a T {
        &things[self.below(things.len() as u64) as usize]
    }

    /// Returns a duration between two others, every order of magnitude equally likely.
    pub fn spread(&mut self, low: Duration, high: Duration) -> Duration {
        let (low, high) = (micros(low).max(1), micros(high).max(1));
        if high <= low {
            return Duration::from_micros(low);
        }
        let doublings = u64::from((high / low).ilog2());
        let from = low << self.below(doublings + 1);
        let to = (from * 2).min(high);
        Duration::from_micros(self.between(from.min(to), to))
    }

    /// Returns a duration as agents have them: mostly around `typical`, sometimes ten times as
    /// long, rarely hundreds of times.
    pub fn heavy(&mut self, typical: Duration) -> Duration {
        match self.below(100) {
            0..80 => self.spread(typical / 4, typical * 4),
            80..96 => self.spread(typical * 4, typical * 32),
            _ => self.spread(typical * 32, typical * 512),
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_draws_everywhere() {
        let mut rng = SimRandom::new(7);
        let drawn: Vec<u64> = (0..6).map(|_| rng.below(1000)).collect();
        assert_eq!(drawn, [157, 167, 704, 726, 601, 359]);
    }

    #[test]
    fn spread_stays_within_its_bounds() {
        let mut rng = SimRandom::new(1);
        let (low, high) = (Duration::from_millis(3), Duration::from_secs(100));
        for _ in 0..1000 {
            let drawn = rng.spread(low, high);
            assert!(drawn >= low && drawn <= high, "{drawn:?}");
        }
    }
}
