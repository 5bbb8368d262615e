//! Numbers that runs report, and how they become numbers of tasks and batches.
//!
//! Three steps up: experiences → run ([`run_metrics`]), runs → task
//! ([`calculate_task_level_metrics`]), tasks → batch ([`gather_metrics`],
//! [`gather_eval_metrics`]). Below them lie [`bootstrap_metric`] and NumPy's arithmetic, which
//! our numbers equal bit by bit. Non-numbers never get here: whoever fills [`Metrics`] converts
//! them or reports them.
//!
//! # Keys choose how they are combined
//!
//! A key is a name, or a name with a suffix: `tokens:sum`, and so `:max`, `:min`, `:last`,
//! `:mean`. The suffix holds at all three levels. Runs and tasks keep it in the key, since the
//! level above has to see it; the batch turns it into a path: `rollout/tokens/sum`. Without a
//! suffix, or with an unknown one (`a:b` is a plain name), a metric is averaged, and `x:mean` is
//! the same metric as `x`. "Last" is the last in the order of the list: of experiences, of runs
//! by their number, of tasks by theirs, never of completion.
//!
//! # Values that are no numbers
//!
//! Nothing is filtered: a NaN makes NaN of every statistic it enters, max and min included, and
//! an infinity makes NaN of the spread. A broken reward must show, not vanish from an average.

mod batch;
mod bootstrap;
mod extremes;
mod key;
mod mt19937;
mod numpy;
mod pass_rates;
mod task;

use std::sync::Arc;

pub use batch::{BATCH_STATS, EVAL_STATS, EvalDetail, gather_eval_metrics, gather_metrics};
pub use bootstrap::{BootstrapError, N_BOOTSTRAP, Reduce, SEED, bootstrap_metric};
pub use key::{Aggregation, parse_key};
pub use numpy::Stat;
pub use pass_rates::{PassRate, PassRates};
pub use task::{Purpose, calculate_task_level_metrics};

/// The key under which a run reports its own seconds.
pub const RUN_SECONDS: &str = "time/run_execution";

/// The key under which a slice of a task reports its seconds over all attempts.
pub const TASK_SECONDS: &str = "time/task_execution";

/// The metrics of one run, task or batch: unique keys in ascending order, each with a number.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics(Vec<(Arc<str>, f64)>);

impl Metrics {
    /// Returns no metrics.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Sets one number, replacing what stood under the key.
    pub fn set(&mut self, key: impl Into<Arc<str>>, value: f64) {
        let key = key.into();
        match self.0.binary_search_by(|(k, _)| k.cmp(&key)) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => self.0.insert(at, (key, value)),
        }
    }

    /// Returns the number under a key.
    pub fn get(&self, key: &str) -> Option<f64> {
        self.0.binary_search_by(|(k, _)| (**k).cmp(key)).ok().map(|at| self.0[at].1)
    }

    /// Returns how many keys there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Tells whether there are no metrics.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keeps the first `most` metrics, and returns how many were dropped.
    pub fn truncate(&mut self, most: usize) -> usize {
        let dropped = self.0.len().saturating_sub(most);
        self.0.truncate(most);
        dropped
    }

    /// Iterates in ascending order of keys.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, f64)> {
        self.0.iter().map(|(key, value)| (key, *value))
    }
}

impl<K: Into<Arc<str>>> Extend<(K, f64)> for Metrics {
    /// Sets many numbers; of equal keys the last one counts.
    fn extend<I: IntoIterator<Item = (K, f64)>>(&mut self, pairs: I) {
        self.0.extend(pairs.into_iter().map(|(key, value)| (key.into(), value)));
        self.0.sort_by(|a, b| a.0.cmp(&b.0));
        // The sort is stable, so among equal keys the newest stands last.
        self.0.dedup_by(|later, kept| {
            let equal = later.0 == kept.0;
            if equal {
                kept.1 = later.1;
            }
            equal
        });
    }
}

impl<K: Into<Arc<str>>> FromIterator<(K, f64)> for Metrics {
    fn from_iter<I: IntoIterator<Item = (K, f64)>>(pairs: I) -> Self {
        let mut metrics = Self::new();
        metrics.extend(pairs);
        metrics
    }
}

/// Returns the metrics of a run: every key combined over the experiences that carry it, and the
/// run's own duration under [`RUN_SECONDS`], which no experience may overrule.
pub fn run_metrics(experiences: &[Metrics], seconds: f64) -> Metrics {
    let mut metrics = key::combine(experiences);
    metrics.set(RUN_SECONDS, seconds);
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_equal_keys_counts_and_order_does_not() {
        let metrics: Metrics = [("b", 1.0), ("a", 2.0), ("b", 3.0)].into_iter().collect();
        let mut same = Metrics::new();
        same.set("a", 2.0);
        same.set("b", 3.0);
        assert_eq!(metrics, same);
    }

    #[test]
    fn a_run_combines_its_experiences_and_keeps_the_suffixes() {
        let experiences: [Metrics; 2] = [
            [("reward", 1.0), ("tokens:sum", 10.0), ("turn:last", 7.0)].into_iter().collect(),
            [("reward", 0.0), ("tokens:sum", 5.0), ("turn:last", 8.0), ("rare:mean", 4.0)]
                .into_iter()
                .collect(),
        ];
        let expected: Metrics = [
            ("rare", 4.0),
            ("reward", 0.5),
            (RUN_SECONDS, 2.5),
            ("tokens:sum", 15.0),
            ("turn:last", 8.0),
        ]
        .into_iter()
        .collect();
        assert_eq!(run_metrics(&experiences, 2.5), expected);
    }
}
