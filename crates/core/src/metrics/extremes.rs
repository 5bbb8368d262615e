//! Best and worst of k runs, for many metrics and many k at once.
//!
//! Every estimate starts from the same seed, so all of them read one sequence of indices, and
//! the i-th draw of size k is the i-th block of k in it. Metrics with equally many values share the
//! sequence, and a block of 2k is two joined blocks of k. Max and min need only the order of the
//! values, so one byte of rank represents each, and sixteen metrics are compared at once. The
//! result equals [`bootstrap_metric`] with its defaults, to the bit.

use super::bootstrap::{N_BOOTSTRAP, Reduce, SEED, bootstrap_metric};
use super::mt19937::Mt19937;
use super::numpy::{Stat, mean};

/// Maximum length of ranked columns: a byte has so many ranks. Longer ones use the plain path.
const RANKS: usize = 256;

/// Number of columns that are compared at once: the bytes of a vector register.
const LANES: usize = 16;

/// Number of indices drawn at a time, a power of two: keeps the working set in the first-level
/// cache and memory independent of the number of runs.
const SEGMENT: usize = 256;

/// The bootstrap means of max and min at one subset size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extremes {
    pub(super) subset_size: usize,
    pub(super) best: f64,
    pub(super) worst: f64,
}

/// Estimates best and worst of columns of one length, at least 1, at all the subset sizes of
/// `n` runs; returns one list for each column, in ascending order of sizes.
pub(super) fn best_and_worst(columns: &[&[f64]], n: usize) -> Vec<Vec<Extremes>> {
    if subset_sizes(n).next().is_none() {
        // Seeding a generator would dominate the cost.
        return vec![Vec::new(); columns.len()];
    }
    // A NaN has no rank and is rare: it uses the plain path.
    let has_ranks =
        |column: &[f64]| column.len() <= RANKS && !column.iter().any(|value| value.is_nan());
    let ranked: Vec<&[f64]> = columns.iter().copied().filter(|c| has_ranks(c)).collect();
    let mut shared = shared_extremes(&ranked, n).into_iter();
    let extremes = columns.iter().map(|column| {
        let shared = if has_ranks(column) { shared.next() } else { None };
        shared.unwrap_or_else(|| plain_extremes(column, n))
    });
    extremes.collect()
}

/// Returns the subset sizes reported for `n` runs: the powers of two from 2 below `n`, then `n`;
/// none for a single run.
fn subset_sizes(n: usize) -> impl Iterator<Item = usize> {
    let powers = std::iter::successors(Some(2_usize), |size| size.checked_mul(2));
    powers.take_while(move |size| *size < n).chain((n > 1).then_some(n))
}

fn plain_extremes(column: &[f64], n: usize) -> Vec<Extremes> {
    let reduce_fns = [Reduce::Stat(Stat::Max), Reduce::Stat(Stat::Min)];
    let estimate = |subset_size| {
        let means = bootstrap_metric(column, subset_size, &reduce_fns, N_BOOTSTRAP, SEED);
        match means.as_deref() {
            Ok(&[(best, _), (worst, _)]) => Some(Extremes { subset_size, best, worst }),
            // Only a draw too large for memory fails, and all larger ones fail too.
            _ => None,
        }
    };
    subset_sizes(n).map_while(estimate).collect()
}

fn shared_extremes(columns: &[&[f64]], n: usize) -> Vec<Vec<Extremes>> {
    let len = columns.first().map_or(0, |column| column.len());
    let mut groups: Vec<ExtremesGroup> =
        columns.chunks(LANES).map(|c| ExtremesGroup::new(c, n)).collect();
    let mut generator = Mt19937::new(SEED);
    let mut indices = [0; SEGMENT];
    while groups.iter().any(|group| !group.is_done()) {
        generator.fill(len, &mut indices, |index| index as u8);
        for group in &mut groups {
            group.take(&indices);
        }
    }
    groups.iter().flat_map(ExtremesGroup::extremes).collect()
}

/// A rank in each of up to sixteen columns.
type Pack = [u8; LANES];

fn larger(a: Pack, b: Pack) -> Pack {
    std::array::from_fn(|lane| a[lane].max(b[lane]))
}

fn smaller(a: Pack, b: Pack) -> Pack {
    std::array::from_fn(|lane| a[lane].min(b[lane]))
}

/// Up to sixteen columns of equal length without NaN, and their draws.
struct ExtremesGroup {
    /// The values of each column in ascending order.
    sorted: Vec<Vec<f64>>,
    /// Rank of each column's value at an index; equal values have equal ranks.
    ranks: [Pack; RANKS],
    /// In ascending order of subset sizes.
    draws: Vec<Draws>,
}

impl ExtremesGroup {
    fn new(columns: &[&[f64]], n: usize) -> Self {
        let mut ranks = [[0; LANES]; RANKS];
        let mut sorted = Vec::with_capacity(columns.len());
        for (lane, column) in columns.iter().enumerate() {
            let mut values = column.to_vec();
            values.sort_by(f64::total_cmp);
            for (pack, value) in ranks.iter_mut().zip(*column) {
                pack[lane] = values.partition_point(|smaller| smaller < value) as u8;
            }
            sorted.push(values);
        }
        Self { sorted, ranks, draws: subset_sizes(n).map(Draws::new).collect() }
    }

    /// Consumes the next indices of the sequence.
    fn take(&mut self, indices: &[u8; SEGMENT]) {
        let mut max = indices.map(|index| self.ranks[usize::from(index)]);
        let mut min = max;
        let mut unit = 1;
        while unit <= SEGMENT {
            let count = SEGMENT / unit;
            for draws in self.draws.iter_mut().filter(|draws| draws.unit == unit) {
                draws.take(&max[..count], &min[..count]);
            }
            join_pairs(&mut max[..count], larger);
            join_pairs(&mut min[..count], smaller);
            unit *= 2;
        }
    }

    fn is_done(&self) -> bool {
        self.draws.iter().all(Draws::is_done)
    }

    /// Returns the estimates for each column.
    fn extremes(&self) -> impl Iterator<Item = Vec<Extremes>> {
        self.sorted.iter().enumerate().map(|(lane, values)| {
            let mean_of = |packs: &[Pack]| {
                let mut drawn = [0.0; N_BOOTSTRAP];
                for (value, pack) in drawn.iter_mut().zip(packs) {
                    *value = values[usize::from(pack[lane])];
                }
                mean(&drawn)
            };
            let extremes = self.draws.iter().map(|draws| Extremes {
                subset_size: draws.subset_size,
                best: mean_of(&draws.best),
                worst: mean_of(&draws.worst),
            });
            extremes.collect()
        })
    }
}

/// Joins neighbouring blocks, in the first half of the slice.
fn join_pairs(packs: &mut [Pack], choose: impl Fn(Pack, Pack) -> Pack) {
    for i in 0..packs.len() / 2 {
        packs[i] = choose(packs[2 * i], packs[2 * i + 1]);
    }
}

/// The draws of one subset size: the largest and smallest ranks in each.
struct Draws {
    subset_size: usize,
    /// Size of the blocks that a draw is joined from: the largest power of two that divides it and
    /// a segment, so that no block spans two draws or two segments.
    unit: usize,
    /// Number of consumed indices of the current draw, and its ranks so far.
    taken: usize,
    max: Pack,
    min: Pack,
    best: Vec<Pack>,
    worst: Vec<Pack>,
}

impl Draws {
    fn new(subset_size: usize) -> Self {
        Self {
            subset_size,
            unit: SEGMENT.min(1 << subset_size.trailing_zeros()),
            taken: 0,
            max: [u8::MIN; LANES],
            min: [u8::MAX; LANES],
            best: Vec::with_capacity(N_BOOTSTRAP),
            worst: Vec::with_capacity(N_BOOTSTRAP),
        }
    }

    fn is_done(&self) -> bool {
        self.best.len() == N_BOOTSTRAP
    }

    /// Consumes the next blocks of the sequence, as far as they are needed.
    fn take(&mut self, max: &[Pack], min: &[Pack]) {
        for (max, min) in max.iter().zip(min) {
            if self.is_done() {
                return;
            }
            self.max = larger(self.max, *max);
            self.min = smaller(self.min, *min);
            self.taken += self.unit;
            if self.taken == self.subset_size {
                self.best.push(std::mem::replace(&mut self.max, [u8::MIN; LANES]));
                self.worst.push(std::mem::replace(&mut self.min, [u8::MAX; LANES]));
                self.taken = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_draws_equal_plain_ones_bit_by_bit() {
        let mut generator = Mt19937::new(1);
        let mut number = || f64::from(generator.next_u32()).sin();
        for (n, len) in [(2, 1), (2, 2), (3, 3), (6, 6), (8, 5), (24, 24), (63, 63), (64, 64)] {
            // More columns than one group holds, among them one with every kind of special value.
            let mut columns: Vec<Vec<f64>> =
                (0..11).map(|_| (0..len).map(|_| number()).collect()).collect();
            columns[0] = (0..len).map(|i| f64::from(i % 2)).collect();
            columns[1][0] = f64::NAN;
            columns[2][0] = f64::NEG_INFINITY;
            columns[3].fill(-0.0);
            columns[3][0] = 0.0;
            let slices: Vec<&[f64]> = columns.iter().map(|column| &**column).collect();
            for (column, shared) in slices.iter().zip(best_and_worst(&slices, n)) {
                assert_eq!(bits(&shared), bits(&plain_extremes(column, n)), "{len} of {n}");
            }
        }
    }

    #[test]
    fn many_runs_use_the_plain_path() {
        let column: Vec<f64> = (0..300).map(f64::from).collect();
        let [extremes] = &best_and_worst(&[&column], 300)[..] else {
            panic!("one column, one list");
        };
        assert_eq!(bits(extremes), bits(&plain_extremes(&column, 300)));
    }

    fn bits(extremes: &[Extremes]) -> Vec<(usize, u64, u64)> {
        let bits = |value: f64| {
            if value.is_nan() { u64::MAX } else { value.to_bits() }
        };
        extremes.iter().map(|e| (e.subset_size, bits(e.best), bits(e.worst))).collect()
    }

    #[test]
    fn subset_sizes_double_up_to_the_number_of_runs() {
        let sizes = |n| subset_sizes(n).collect::<Vec<_>>();
        assert_eq!(sizes(1), []);
        assert_eq!(sizes(6), [2, 4, 6]);
        assert_eq!(sizes(8), [2, 4, 8]);
        assert_eq!(sizes(10), [2, 4, 8, 10]);
        assert_eq!(sizes(usize::MAX).len(), usize::BITS as usize);
    }
}
