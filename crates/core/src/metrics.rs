//! Numbers that runs report, and their aggregation over tasks and batches.
//!
//! Three steps up: experiences → run ([`run_metrics`]), runs → task
//! ([`calculate_task_level_metrics`]), tasks → batch ([`gather_metrics`],
//! [`gather_eval_metrics`]). [`bootstrap_metric`] and the statistics equal NumPy bit by bit. The
//! producer of [`Metrics`] converts or reports values that are no numbers.
//!
//! # Aggregation by key
//!
//! A key is a name, or a name with a suffix: `:sum`, `:max`, `:min`, `:last`, `:mean`. The suffix
//! applies at all three levels. Runs and tasks keep it in the key; the batch turns it into a path:
//! `rollout/tokens/sum`. Without a suffix, or with an unknown one (`a:b` is a plain name), a metric
//! is averaged, and `x:mean` is the same metric as `x`. "Last" is the last in the order of the
//! list (experiences, runs by number, tasks by number), never of completion.
//!
//! # Values that are no numbers
//!
//! Nothing is filtered: a NaN makes every statistic that includes it NaN, max and min included,
//! and an infinity makes the standard deviation NaN. A broken reward must be visible.

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

/// Key of a run's own duration in seconds.
pub const RUN_SECONDS: &str = "time/run_execution";

/// Key of a slice's duration in seconds over all attempts.
pub const TASK_SECONDS: &str = "time/task_execution";

/// Metrics of one run, task or batch: unique keys in ascending order, each with a number.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics(Vec<(Arc<str>, f64)>);

impl Metrics {
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Sets one number, replacing the previous value of the key.
    pub fn set(&mut self, key: impl Into<Arc<str>>, value: f64) {
        let key = key.into();
        match self.0.binary_search_by(|(k, _)| k.cmp(&key)) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => self.0.insert(at, (key, value)),
        }
    }

    pub fn get(&self, key: &str) -> Option<f64> {
        self.0.binary_search_by(|(k, _)| (**k).cmp(key)).ok().map(|at| self.0[at].1)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keeps the first `max` metrics, and returns the number of dropped ones.
    pub fn truncate(&mut self, max: usize) -> usize {
        let dropped = self.0.len().saturating_sub(max);
        self.0.truncate(max);
        dropped
    }

    /// Iterates in ascending order of keys.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, f64)> {
        self.0.iter().map(|(key, value)| (key, *value))
    }
}

impl<K: Into<Arc<str>>> Extend<(K, f64)> for Metrics {
    /// Sets many numbers; of equal keys the last one wins.
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
/// run's duration under [`RUN_SECONDS`], which overrides the experiences.
pub fn run_metrics(experiences: &[Metrics], seconds: f64) -> Metrics {
    let mut metrics = key::combine(experiences);
    metrics.set(RUN_SECONDS, seconds);
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_equal_keys_wins_in_any_order() {
        let metrics: Metrics = [("b", 1.0), ("a", 2.0), ("b", 3.0)].into_iter().collect();
        let mut same = Metrics::new();
        same.set("a", 2.0);
        same.set("b", 3.0);
        assert_eq!(metrics, same);
    }

    #[test]
    fn a_run_combines_its_experiences_and_keeps_suffixes() {
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
