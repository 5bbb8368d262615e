//! Seeded random numbers, equal on every machine.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// Returns the generator of a seed for one epoch or position: its own ChaCha stream.
pub(super) fn rng(seed: u64, stream: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(stream);
    rng
}

/// Returns `count` distinct numbers below `end`, which is at least `count`.
pub(super) fn sample(rng: &mut ChaCha8Rng, end: u32, count: u32) -> Vec<u32> {
    let indices = rand::seq::index::sample(rng, end as usize, count as usize);
    indices.iter().map(|index| index as u32).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use rand::RngExt;
    use rand::seq::SliceRandom;
    use rand_distr::{Beta, Gumbel};

    use super::*;
    use crate::state::VERSION;

    /// A saved cursor is a seed and a position, so the drawn numbers belong to its format: a change
    /// of `rand` that alters them requires a new state version.
    #[test]
    fn drawn_numbers_belong_to_the_version_of_the_state() {
        assert_eq!(VERSION, 2);
        let mut list: Vec<u32> = (0..8).collect();
        list.shuffle(&mut rng(42, 3));
        assert_eq!(list, [1, 3, 7, 5, 0, 4, 6, 2]);
        assert_eq!(sample(&mut rng(42, 3), 100, 4), [52, 35, 71, 59]);
        let beta: f64 = rng(42, 3).sample(Beta::new(2.0, 5.0).unwrap());
        let gumbel: f64 = rng(42, 3).sample(Gumbel::new(0.0, 1.0).unwrap());
        assert!((beta - 0.219_502_442_540_859).abs() < 1e-9, "{beta}");
        assert!((gumbel + 0.016_821_590_749_043).abs() < 1e-9, "{gumbel}");
    }

    #[test]
    fn every_order_and_every_sample_is_as_likely_as_the_others() {
        let mut orders: HashMap<Vec<u32>, u32> = HashMap::new();
        let mut samples: HashMap<Vec<u32>, u32> = HashMap::new();
        for epoch in 0..12_000 {
            let mut list: Vec<u32> = (0..3).collect();
            list.shuffle(&mut rng(42, epoch));
            *orders.entry(list).or_default() += 1;
            *samples.entry(sample(&mut rng(42, epoch), 4, 2)).or_default() += 1;
        }
        assert_eq!((orders.len(), samples.len()), (6, 12));
        assert!(orders.values().all(|count| (1850..2150).contains(count)), "{orders:?}");
        assert!(samples.values().all(|count| (880..1120).contains(count)), "{samples:?}");
    }
}
