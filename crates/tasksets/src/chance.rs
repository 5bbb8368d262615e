//! Numbers that look like chance and follow from a seed, the same on every machine.

use std::collections::HashMap;

/// A generator (SplitMix64).
#[derive(Debug)]
pub(super) struct Chance(u64);

impl Chance {
    /// Returns the generator of a seed and of what is drawn with it: an epoch, a position.
    pub(super) fn of(seed: u64, what: u64) -> Self {
        let mut first = Self(seed);
        let mut second = Self(first.next() ^ what);
        Self(second.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Returns a number below `end`, each as likely as the others.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        // What the last incomplete round would favour is drawn again.
        let rest = (u64::MAX % end + 1) % end;
        loop {
            let word = self.next();
            if word <= u64::MAX - rest {
                return word % end;
            }
        }
    }

    /// Returns a number above 0 and below 1.
    pub(super) fn uniform(&mut self) -> f64 {
        ((self.next() >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
    }

    /// Returns a number of the standard Gumbel distribution: of scores with such noise added, the
    /// largest are a sample without repetition of the softmax of the scores.
    pub(super) fn gumbel(&mut self) -> f64 {
        -(-self.uniform().ln()).ln()
    }

    /// Returns a number of a beta distribution.
    pub(super) fn beta(&mut self, alpha: f64, beta: f64) -> f64 {
        let (one, other) = (self.gamma(alpha), self.gamma(beta));
        let sum = one + other;
        if sum > 0.0 { one / sum } else { alpha / (alpha + beta) }
    }

    /// Returns a number of a gamma distribution (Marsaglia and Tsang).
    fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            let power = self.uniform().powf(1.0 / shape);
            return self.gamma(shape + 1.0) * power;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let normal = self.normal();
            let v = (1.0 + c * normal).powi(3);
            let accepts = |u: f64| u.ln() < 0.5 * normal * normal + d - d * v + d * v.ln();
            if v > 0.0 && accepts(self.uniform()) {
                return d * v;
            }
        }
    }

    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Brings a list into an order, each order as likely as the others (Fisher and Yates).
    pub(super) fn shuffle<T>(&mut self, list: &mut [T]) {
        for end in (1..list.len()).rev() {
            let other = self.below(end as u64 + 1) as usize;
            list.swap(end, other);
        }
    }

    /// Returns `count` different numbers below `end`, which is not less than `count`.
    pub(super) fn sample(&mut self, end: u32, count: u32) -> Vec<u32> {
        // The beginning of a shuffle, in which only what was swapped is kept.
        let mut swapped: HashMap<u32, u32> = HashMap::new();
        let mut one = |at: u32| {
            let other = at + self.below(u64::from(end - at)) as u32;
            let there = |index| swapped.get(&index).copied().unwrap_or(index);
            let (found, left) = (there(other), there(at));
            swapped.insert(other, left);
            found
        };
        (0..count).map(&mut one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(numbers: impl Iterator<Item = f64>, count: usize) -> f64 {
        numbers.take(count).sum::<f64>() / count as f64
    }

    #[test]
    fn beta_numbers_have_the_mean_and_spread_of_their_distribution() {
        for (alpha, beta) in [(0.4, 0.9), (1.0, 1.0), (2.0, 5.0), (40.0, 3.0)] {
            let mut chance = Chance::of(3, 4);
            let numbers: Vec<f64> = (0..20_000).map(|_| chance.beta(alpha, beta)).collect();
            let sum = alpha + beta;
            let (expected, spread) = (alpha / sum, alpha * beta / (sum * sum * (sum + 1.0)));
            let found = mean(numbers.iter().copied(), numbers.len());
            let squares = numbers.iter().map(|number| (number - found).powi(2));
            let found_spread = mean(squares, numbers.len());
            assert!((found - expected).abs() < 0.01, "{alpha} {beta}: {found}");
            assert!((found_spread / spread - 1.0).abs() < 0.05, "{alpha} {beta}: {found_spread}");
        }
    }

    #[test]
    fn every_order_and_every_sample_is_as_likely_as_the_others() {
        let mut orders: HashMap<Vec<u32>, u32> = HashMap::new();
        let mut samples: HashMap<Vec<u32>, u32> = HashMap::new();
        for epoch in 0..12_000 {
            let mut list: Vec<u32> = (0..3).collect();
            Chance::of(42, epoch).shuffle(&mut list);
            *orders.entry(list).or_default() += 1;
            *samples.entry(Chance::of(42, epoch).sample(4, 2)).or_default() += 1;
        }
        assert_eq!((orders.len(), samples.len()), (6, 12));
        assert!(orders.values().all(|count| (1850..2150).contains(count)), "{orders:?}");
        assert!(samples.values().all(|count| (880..1120).contains(count)), "{samples:?}");
    }

    #[test]
    fn gumbel_noise_makes_a_softmax_of_scores() {
        let scores: [f64; 3] = [0.0, -1.0, -2.0];
        let total: f64 = scores.iter().map(|score| score.exp()).sum();
        let mut counts = [0_u32; 3];
        for position in 0..20_000 {
            let mut chance = Chance::of(1, position);
            let noisy = scores.map(|score| score + chance.gumbel());
            let best = (0..3).max_by(|a, b| noisy[*a].total_cmp(&noisy[*b])).unwrap();
            counts[best] += 1;
        }
        for (count, score) in counts.iter().zip(scores) {
            let expected = score.exp() / total;
            assert!((f64::from(*count) / 20_000.0 - expected).abs() < 0.012, "{counts:?}");
        }
    }
}
