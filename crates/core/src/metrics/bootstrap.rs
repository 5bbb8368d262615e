//! Bootstrap estimates, bit-equal to NumPy with its legacy generator.

use std::fmt;

use super::mt19937::Mt19937;
use super::numpy::{Stat, mean};

/// Default number of draws of an estimate.
pub const N_BOOTSTRAP: usize = 1000;

/// Default seed of the draws.
pub const SEED: u32 = 42;

/// A function from a draw to a number.
#[derive(Clone, Copy)]
pub enum Reduce<'a> {
    /// A NumPy statistic.
    Stat(Stat),
    /// A function of the caller. It cannot fail: a Python callable stores its first error, returns
    /// NaN from then on, and the caller checks the stored error afterwards.
    Custom(&'a dyn Fn(&[f64]) -> f64),
}

impl Reduce<'_> {
    fn of(self, draw: &[f64]) -> f64 {
        match self {
            Self::Stat(stat) => stat.of(draw),
            Self::Custom(function) => function(draw),
        }
    }
}

impl fmt::Debug for Reduce<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stat(stat) => f.debug_tuple("Stat").field(stat).finish(),
            Self::Custom(_) => f.write_str("Custom"),
        }
    }
}

/// Reason why there is no estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootstrapError {
    /// No data to draw from; `np.random.choice` raises `ValueError`.
    EmptyData,
    /// An empty draw has no max or min; `np.max` and `np.min` raise `ValueError`.
    EmptySubset,
    /// The draws do not fit in memory; NumPy raises `MemoryError` or `ValueError`.
    TooLarge,
}

impl fmt::Display for BootstrapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EmptyData => "no data to draw from",
            Self::EmptySubset => "max and min need a subset of at least one value",
            Self::TooLarge => "draws too large for memory",
        })
    }
}

impl std::error::Error for BootstrapError {}

/// Estimates every function by resampling: its mean and population standard deviation over random
/// subsets of `data`, in the order of `reduce_fns`.
///
/// Bit-equal to NumPy's `np.random.seed(seed)`, then `n_bootstrap` times
/// `np.random.choice(data, size=subset_size, replace=True)` with every function applied to the
/// same draw, then `np.mean` and `np.std` over each function's results. The generator is private,
/// so that no global state changes. NaN payloads may differ.
///
/// Returns NaN where NumPy warns and returns NaN: no draws at all (`n_bootstrap` 0), and mean or
/// spread of an empty draw (`subset_size` 0).
///
/// # Errors
///
/// NumPy raises an error: [`BootstrapError`] names each case.
pub fn bootstrap_metric(
    data: &[f64],
    subset_size: usize,
    reduce_fns: &[Reduce<'_>],
    n_bootstrap: usize,
    seed: u32,
) -> Result<Vec<(f64, f64)>, BootstrapError> {
    if n_bootstrap > 0 {
        check_draw(data, subset_size, reduce_fns)?;
    }
    let mut draw = zeros(subset_size)?;
    let mut results: Vec<Vec<f64>> =
        reduce_fns.iter().map(|_| zeros(n_bootstrap)).collect::<Result<_, _>>()?;
    let mut generator = Mt19937::new(seed);
    for i in 0..n_bootstrap {
        if subset_size > 0 {
            generator.fill(data.len(), &mut draw, |index| data[index]);
        }
        for (result, reduce) in results.iter_mut().zip(reduce_fns) {
            result[i] = reduce.of(&draw);
        }
    }
    Ok(results.iter().map(|result| (mean(result), Stat::Std.of(result))).collect())
}

fn check_draw(
    data: &[f64],
    subset_size: usize,
    reduce_fns: &[Reduce<'_>],
) -> Result<(), BootstrapError> {
    let needs_a_value = |reduce: &Reduce<'_>| matches!(reduce, Reduce::Stat(Stat::Max | Stat::Min));
    if subset_size > 0 && data.is_empty() {
        Err(BootstrapError::EmptyData)
    } else if subset_size == 0 && reduce_fns.iter().any(needs_a_value) {
        Err(BootstrapError::EmptySubset)
    } else {
        Ok(())
    }
}

fn zeros(len: usize) -> Result<Vec<f64>, BootstrapError> {
    let mut values = Vec::new();
    values.try_reserve_exact(len).map_err(|_| BootstrapError::TooLarge)?;
    values.resize(len, 0.0);
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTREMES: [Reduce<'_>; 2] = [Reduce::Stat(Stat::Max), Reduce::Stat(Stat::Min)];

    #[test]
    fn custom_functions_see_the_same_draws() {
        let largest = |draw: &[f64]| draw.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let both = [EXTREMES[0], Reduce::Custom(&largest)];
        let [ours, theirs] = bootstrap_metric(&[3.0, 1.0, 2.0], 2, &both, 100, 7).unwrap()[..]
        else {
            panic!("two functions, two results");
        };
        assert_eq!(ours, theirs);
    }

    #[test]
    fn numpy_errors_are_errors_and_numpy_warnings_are_nan() {
        let sum = [Reduce::Stat(Stat::Sum)];
        let run = |data: &[f64], size, fns: &[Reduce<'_>], count| {
            bootstrap_metric(data, size, fns, count, SEED)
        };
        assert_eq!(run(&[], 1, &sum, 1), Err(BootstrapError::EmptyData));
        assert_eq!(run(&[1.0], 0, &EXTREMES, 1), Err(BootstrapError::EmptySubset));
        assert_eq!(run(&[1.0], usize::MAX, &sum, 1), Err(BootstrapError::TooLarge));
        assert_eq!(run(&[], 0, &sum, 3), Ok(vec![(0.0, 0.0)]));
        let undrawn = run(&[], 1, &sum, 0).unwrap();
        assert!(undrawn[0].0.is_nan() && undrawn[0].1.is_nan());
    }
}
