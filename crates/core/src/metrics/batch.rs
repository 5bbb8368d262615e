//! Tasks → batch: the values that a monitor plots for one step.

use super::Metrics;
use super::key::{Aggregation, Columns, columns};
use super::numpy::Stat;
use super::task::mean_of_coverage;

/// Default statistics of a training batch.
pub const BATCH_STATS: [Stat; 3] = [Stat::Mean, Stat::Max, Stat::Min];

/// Default statistics of a detailed evaluation.
pub const EVAL_STATS: [Stat; 4] = [Stat::Mean, Stat::Max, Stat::Min, Stat::Std];

/// Statistics that an evaluation reports for each metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvalDetail<'a> {
    /// `<prefix>/<key>`: the mean over the tasks.
    Mean,
    /// `<prefix>/<key>/<stat>` for each of these.
    Stats(&'a [Stat]),
}

/// Combines the metrics of tasks, given in the order of the tasks, into `<prefix>/<key>/<stat>`.
///
/// Each key is aggregated over the tasks that carry it. A key with a suffix has one statistic:
/// `tokens:sum` becomes `<prefix>/tokens/sum`, and overrides that statistic of a plain `tokens`.
/// No tasks give no metrics; an empty prefix gives no leading slash.
pub fn gather_metrics(tasks: &[Metrics], prefix: &str, stats: &[Stat]) -> Metrics {
    gather(&columns(tasks), prefix, EvalDetail::Stats(stats))
}

/// Combines the metrics of evaluated tasks, given in the order of the tasks.
///
/// As [`gather_metrics`], but by default only with the mean, under the bare key. A coverage
/// (`…/coverage@N`) is averaged over all tasks with values of that metric; complete tasks count 1.
/// A task in which every run failed has no values and shows in the counts of tasks.
pub fn gather_eval_metrics(tasks: &[Metrics], prefix: &str, detail: EvalDetail<'_>) -> Metrics {
    let mut columns = columns(tasks);
    fill_coverage(&mut columns);
    gather(&columns, prefix, detail)
}

fn gather(columns: &Columns<'_>, prefix: &str, detail: EvalDetail<'_>) -> Metrics {
    let slash = if prefix.is_empty() { "" } else { "/" };
    let mut pairs = Vec::new();
    for ((name, aggregation), values) in columns {
        let key = format!("{prefix}{slash}{name}");
        if *aggregation != Aggregation::Mean {
            pairs.push((format!("{key}/{}", aggregation.name()), aggregation.of(values)));
            continue;
        }
        match detail {
            EvalDetail::Mean => pairs.push((key, Stat::Mean.of(values))),
            EvalDetail::Stats(stats) => {
                let stat_pair = |stat: &Stat| (format!("{key}/{}", stat.name()), stat.of(values));
                pairs.extend(stats.iter().map(stat_pair));
            }
        }
    }
    // Columns ascend with the plain one of a name first, so that suffixes override statistics.
    pairs.into_iter().collect()
}

/// Adds the coverage of complete tasks, which do not report it.
fn fill_coverage(columns: &mut Columns<'_>) {
    let complete: Vec<_> = columns
        .keys()
        .filter_map(|&(name, aggregation)| {
            let mean = mean_of_coverage(name)?;
            let tasks = columns.get(&(mean.as_str(), Aggregation::Mean))?.len();
            Some(((name, aggregation), tasks))
        })
        .collect();
    for (key, tasks) in complete {
        if let Some(values) = columns.get_mut(&key)
            && values.len() < tasks
        {
            values.resize(tasks, 1.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks(lists: &[&[(&str, f64)]]) -> Vec<Metrics> {
        lists.iter().map(|pairs| pairs.iter().copied().collect()).collect()
    }

    #[test]
    fn a_training_batch_has_three_statistics_per_key() {
        let tasks = tasks(&[
            &[("reward", 1.0), ("tokens:sum", 5.0), ("version:last", 3.0)],
            &[("reward", 0.0), ("tokens:sum", 6.0)],
        ]);
        let expected: Metrics = [
            ("rollout/reward/max", 1.0),
            ("rollout/reward/mean", 0.5),
            ("rollout/reward/min", 0.0),
            ("rollout/tokens/sum", 11.0),
            ("rollout/version/last", 3.0),
        ]
        .into_iter()
        .collect();
        assert_eq!(gather_metrics(&tasks, "rollout", &BATCH_STATS), expected);
        assert!(gather_metrics(&[], "rollout", &BATCH_STATS).is_empty());
    }

    #[test]
    fn an_evaluation_reports_means_or_all_statistics() {
        let tasks = tasks(&[&[("score/mean@2", 1.0), ("t:max", 4.0)], &[("score/mean@2", 0.0)]]);
        let plain = gather_eval_metrics(&tasks, "eval/set", EvalDetail::Mean);
        let expected: Metrics =
            [("eval/set/score/mean@2", 0.5), ("eval/set/t/max", 4.0)].into_iter().collect();
        assert_eq!(plain, expected);
        let detailed = gather_eval_metrics(&tasks[1..], "", EvalDetail::Stats(&EVAL_STATS));
        assert_eq!(detailed.get("score/mean@2/std"), Some(0.0));
        assert_eq!(detailed.len(), 4);
    }

    #[test]
    fn coverage_includes_complete_tasks_and_suffixes_override_statistics() {
        let tasks = tasks(&[
            &[("score/mean@4", 1.0), ("score/coverage@4", 0.5), ("t", 2.0), ("t:max", 7.0)],
            &[("score/mean@4", 0.0)],
        ]);
        let metrics = gather_eval_metrics(&tasks, "e", EvalDetail::Mean);
        assert_eq!(metrics.get("e/score/coverage@4"), Some(0.75));
        let metrics = gather_metrics(&tasks, "e", &BATCH_STATS);
        assert_eq!(metrics.get("e/t/max"), Some(7.0));
    }
}
