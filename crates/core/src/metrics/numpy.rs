//! NumPy's sums, means, spreads and extremes over a contiguous float64 array, to the bit.
//!
//! Floating-point addition depends on order, so the order is part of the contract: NumPy adds
//! pairwise, in blocks of up to 128 values, each block in eight lanes.

/// Statistic over many values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stat {
    Mean,
    /// Largest value; NaN if any value is NaN.
    Max,
    /// Smallest value; NaN if any value is NaN.
    Min,
    Sum,
    /// Population standard deviation (divided by n, not n-1): the values are all runs or tasks,
    /// not a sample. A single value has spread 0, so that a batch of one is not NaN.
    Std,
}

impl Stat {
    pub const ALL: [Self; 5] = [Self::Mean, Self::Max, Self::Min, Self::Sum, Self::Std];

    /// Returns the name used in keys.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Max => "max",
            Self::Min => "min",
            Self::Sum => "sum",
            Self::Std => "std",
        }
    }

    /// Computes it as `np.mean`, `np.max`, `np.min`, `np.sum` and `np.std` do.
    ///
    /// No values give NaN, and 0 as a sum. NumPy raises for max and min there; check the length
    /// first where that matters, as [`super::bootstrap_metric`] does.
    pub fn of(self, values: &[f64]) -> f64 {
        match self {
            Self::Mean => mean(values),
            Self::Max => values.iter().copied().reduce(larger).unwrap_or(f64::NAN),
            Self::Min => values.iter().copied().reduce(smaller).unwrap_or(f64::NAN),
            Self::Sum => sum(values),
            Self::Std => std(values),
        }
    }
}

/// Returns the larger of two values, NaN if either is, and the later one of two equals.
///
/// Only zeros can be equal and differ. NumPy's choice depends on the processor's vector
/// instructions; its sums begin at +0, so the choice never affects a bootstrap result.
fn larger(a: f64, b: f64) -> f64 {
    if a > b || a.is_nan() { a } else { b }
}

/// Returns the smaller of two values by the same rules.
fn smaller(a: f64, b: f64) -> f64 {
    if a < b || a.is_nan() { a } else { b }
}

pub(super) fn mean(values: &[f64]) -> f64 {
    sum(values) / values.len() as f64
}

/// `np.sum`: it adds the pairwise sum to +0, so that zeros never sum to -0.
fn sum(values: &[f64]) -> f64 {
    0.0 + pairwise(values, &|value| value)
}

/// `np.std`: the deviations are squared into an array of their own, which is summed pairwise.
fn std(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares = 0.0
        + pairwise(values, &|value| {
            let deviation = value - mean;
            deviation * deviation
        });
    (squares / values.len() as f64).sqrt()
}

/// Adds `term` of every value in NumPy's order.
fn pairwise(values: &[f64], term: &impl Fn(f64) -> f64) -> f64 {
    const LANES: usize = 8;
    const BLOCK: usize = 128;
    if values.len() > BLOCK {
        let half = values.len() / 2;
        let (left, right) = values.split_at(half - half % LANES);
        return pairwise(left, term) + pairwise(right, term);
    }
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut total = 0.0;
    if let Some((first, others)) = chunks.split_first() {
        let mut lanes = first.map(term);
        for chunk in others {
            for (lane, value) in lanes.iter_mut().zip(chunk) {
                *lane += term(*value);
            }
        }
        let [a, b, c, d, e, f, g, h] = lanes;
        total = ((a + b) + (c + d)) + ((e + f) + (g + h));
    }
    rest.iter().fold(total, |total, value| total + term(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_follow_the_order_of_numpy() {
        // np.sum(1.0 / np.arange(1, n + 1)) and np.std of the same.
        for (n, sum, std) in [
            (7, 0x4004_be2b_e2be_2be2, 0x3fd1_f64c_20d2_6f17),
            (133, 0x4015_e2a1_92ec_ee3a, 0x3fba_617b_32b1_266a),
            (1000, 0x401d_f11f_45f4_e61a, 0x3fa4_6705_817f_bd53),
        ] {
            let values: Vec<f64> = (1..=n).map(|i| 1.0 / f64::from(i)).collect();
            assert_eq!(Stat::Sum.of(&values).to_bits(), sum, "sum of {n}");
            assert_eq!(Stat::Std.of(&values).to_bits(), std, "std of {n}");
        }
    }

    #[test]
    fn zeros_and_non_numbers_behave_as_in_numpy() {
        assert_eq!(Stat::Sum.of(&[-0.0]).to_bits(), 0);
        assert_eq!(Stat::Std.of(&[3.0]), 0.0);
        assert!(Stat::Max.of(&[1.0, f64::NAN, 2.0]).is_nan());
        assert!(Stat::Min.of(&[f64::NAN, 1.0]).is_nan());
        assert!(Stat::Std.of(&[f64::INFINITY, 1.0]).is_nan());
        assert!(Stat::Mean.of(&[]).is_nan());
    }
}
