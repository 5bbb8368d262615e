//! Runs → task: means in training; means, spreads and the best and worst of k in evaluation.

use std::collections::BTreeMap;

use super::extremes::{Extremes, best_and_worst};
use super::key::{Aggregation, canonical, columns, combine};
use super::numpy::Stat;
use super::{Metrics, RUN_SECONDS, TASK_SECONDS};

/// Purpose of the runs of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Training: one number per metric.
    Train,
    /// Evaluation: the distribution of each metric over the runs.
    Eval {
        /// Planned number of runs. `None`: the number of values of each metric. Bounds the size of
        /// the draws, so it must be a number within the limits of the task.
        planned: Option<usize>,
    },
}

/// Combines the metrics of a task's runs, in the order of the runs.
///
/// In training every key is combined over the runs that carry it. So are, in evaluation, keys with
/// a suffix and durations (keys that contain [`RUN_SECONDS`] or [`TASK_SECONDS`]); any other key
/// becomes `<key>/mean@N` and `<key>/std@N`, and for N > 1 `<key>/best@k` and `<key>/worst@k` for
/// k = 2, 4, 8, … below N and for N itself: the mean of the largest and the smallest of k values,
/// over [`super::N_BOOTSTRAP`] draws seeded with [`super::SEED`].
///
/// N is the planned number of runs, so that a task with a failed run reports under the same keys
/// as its siblings. The statistics cover the existing values: failed runs do not count as zeros.
/// Fewer values than N show as `<key>/coverage@N`, the existing fraction; a complete metric has no
/// such key. More values than planned raise N to their number.
pub fn calculate_task_level_metrics(runs: &[Metrics], purpose: Purpose) -> Metrics {
    match purpose {
        Purpose::Train => combine(runs),
        Purpose::Eval { planned } => eval(runs, planned),
    }
}

fn eval(runs: &[Metrics], planned: Option<usize>) -> Metrics {
    let mut pairs = Vec::new();
    // By number of values: metrics with equally many share the work of `best_and_worst`.
    let mut spread: BTreeMap<usize, Vec<(&str, Vec<f64>)>> = BTreeMap::new();
    for ((name, aggregation), values) in columns(runs) {
        if aggregation != Aggregation::Mean || is_duration(name) {
            pairs.push((canonical(name, aggregation).into_owned(), aggregation.of(&values)));
        } else {
            spread.entry(values.len()).or_default().push((name, values));
        }
    }
    for (len, metrics) in spread {
        let n = planned.unwrap_or(len).max(len);
        let columns: Vec<&[f64]> = metrics.iter().map(|(_, values)| &**values).collect();
        for ((name, values), extremes) in metrics.iter().zip(best_and_worst(&columns, n)) {
            pairs.push((format!("{name}/mean@{n}"), Stat::Mean.of(values)));
            pairs.push((format!("{name}/std@{n}"), Stat::Std.of(values)));
            if len < n {
                pairs.push((format!("{name}/coverage@{n}"), len as f64 / n as f64));
            }
            for Extremes { subset_size, best, worst } in extremes {
                pairs.push((format!("{name}/best@{subset_size}"), best));
                pairs.push((format!("{name}/worst@{subset_size}"), worst));
            }
        }
    }
    pairs.into_iter().collect()
}

fn is_duration(name: &str) -> bool {
    name.contains(RUN_SECONDS) || name.contains(TASK_SECONDS)
}

/// Returns the key of the mean that a coverage belongs to. `None` for other keys.
pub(super) fn mean_of_coverage(key: &str) -> Option<String> {
    let (name, n) = key.rsplit_once("/coverage@")?;
    n.parse::<usize>().ok().map(|n| format!("{name}/mean@{n}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNPLANNED: Purpose = Purpose::Eval { planned: None };

    fn runs(values: &[f64]) -> Vec<Metrics> {
        values.iter().map(|value| [("score", *value)].into_iter().collect()).collect()
    }

    fn keys(metrics: &Metrics) -> Vec<&str> {
        metrics.iter().map(|(key, _)| &**key).collect()
    }

    #[test]
    fn training_averages_the_runs_that_carry_a_key() {
        let mut runs = runs(&[1.0, 0.0]);
        runs[1].set("tokens:sum", 3.0);
        runs[0].set("tokens:sum", 4.0);
        runs[0].set("version:last", 9.0);
        let expected: Metrics =
            [("score", 0.5), ("tokens:sum", 7.0), ("version:last", 9.0)].into_iter().collect();
        assert_eq!(calculate_task_level_metrics(&runs, Purpose::Train), expected);
        assert!(calculate_task_level_metrics(&[], Purpose::Train).is_empty());
    }

    #[test]
    fn evaluation_gives_the_reference_numbers() {
        let mut runs = runs(&[1.0, 0.0, 1.0]);
        for (run, seconds) in runs.iter_mut().zip([1.0, 2.0, 6.0]) {
            run.set(RUN_SECONDS, seconds);
            run.set("tokens:max", seconds);
        }
        runs.push([(TASK_SECONDS, 8.0)].into_iter().collect());
        let metrics = calculate_task_level_metrics(&runs, UNPLANNED);
        let expected: Metrics = [
            ("score/best@2", 0.886),
            ("score/best@3", 0.954),
            ("score/mean@3", 2.0 / 3.0),
            ("score/std@3", 0.471_404_520_791_031_7),
            ("score/worst@2", 0.455),
            ("score/worst@3", 0.299),
            (RUN_SECONDS, 3.0),
            (TASK_SECONDS, 8.0),
            ("tokens:max", 6.0),
        ]
        .into_iter()
        .collect();
        assert_eq!(metrics, expected);
        assert!(calculate_task_level_metrics(&[], UNPLANNED).is_empty());
    }

    #[test]
    fn a_single_run_has_no_best_of_several() {
        let metrics = calculate_task_level_metrics(&runs(&[5.0]), UNPLANNED);
        assert_eq!(keys(&metrics), ["score/mean@1", "score/std@1"]);
    }

    #[test]
    fn failed_runs_change_the_coverage_but_not_the_keys() {
        let planned = Purpose::Eval { planned: Some(4) };
        let complete = calculate_task_level_metrics(&runs(&[1.0, 0.0, 1.0, 0.0]), planned);
        let mut short = calculate_task_level_metrics(&runs(&[1.0, 0.0, 1.0]), planned);
        assert_eq!(short.get("score/coverage@4"), Some(0.75));
        assert_eq!(short.get("score/mean@4"), Some(2.0 / 3.0));
        short.0.retain(|(key, _)| &**key != "score/coverage@4");
        assert_eq!(keys(&short), keys(&complete));
        let more = calculate_task_level_metrics(&runs(&[1.0; 5]), planned);
        assert_eq!(more.get("score/mean@5"), Some(1.0));
        assert_eq!(more.get("score/coverage@5"), None);
    }

    #[test]
    fn a_nan_shows_in_every_statistic() {
        let metrics = calculate_task_level_metrics(&runs(&[1.0, f64::NAN]), UNPLANNED);
        assert_eq!(metrics.len(), 4);
        assert!(metrics.iter().all(|(_, value)| value.is_nan()));
    }
}
