//! Metrics of steps and evaluations, under their logged names.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollway_config::Config;
use rollway_core::metrics::{EVAL_STATS, EvalDetail, Metrics, PassRate, PassRates};
use rollway_core::{BatchResult, Status, TaskId};
use rollway_tasksets::TaskRef;

/// Metric of a run's reward.
const REWARD: &str = "reward";

/// Operator that computes pass rates for selectors.
const PASS_RATES: &str = "pass_rate_calculator";

/// Result of a step, including its reruns.
#[derive(Debug)]
pub(super) struct StepResult {
    result: BatchResult,
    statuses: BTreeMap<TaskId, Arc<Status>>,
}

impl StepResult {
    pub(super) fn new(result: Arc<BatchResult>) -> Self {
        let statuses = result.statuses.iter().cloned().collect();
        Self { result: Arc::unwrap_or_clone(result), statuses }
    }

    /// Returns the number of tasks with a successful run.
    pub(super) const fn good(&self) -> u64 {
        self.result.tasks.ok + self.result.tasks.partial
    }

    /// Returns the tasks without a successful run.
    pub(super) fn missing(&self, tasks: usize) -> Vec<TaskId> {
        let is_good = |id: &TaskId| self.statuses.get(id).is_some_and(|it| it.completed_runs > 0);
        (0..tasks as u32).map(TaskId).filter(|id| !is_good(id)).collect()
    }

    /// Adds the result of a rerun of these tasks.
    pub(super) fn add(&mut self, rerun: &[TaskId], result: &BatchResult) {
        let total = &mut self.result;
        for (position, id) in rerun.iter().enumerate() {
            let found = result.statuses.iter().find(|(at, _)| at.0 as usize == position);
            let Some((_, status)) = found.filter(|(_, status)| status.completed_runs > 0) else {
                continue;
            };
            match self.statuses.insert(*id, Arc::clone(status)) {
                Some(_) => total.tasks.failed = total.tasks.failed.saturating_sub(1),
                None => total.tasks.cancelled = total.tasks.cancelled.saturating_sub(1),
            }
            if status.ok() {
                total.tasks.ok += 1;
            } else {
                total.tasks.partial += 1;
            }
        }
        total.runs.add(&result.runs);
        total.delivered += result.delivered;
        total.dropped.add(&result.dropped);
        total.uncertain += result.uncertain;
        for (key, value) in result.sink_metrics.iter() {
            // Counts and times are added; of means that of the first, larger batch is kept.
            let adds_up = key.ends_with("count") || key.contains("/filtered/");
            let before = total.sink_metrics.get(key);
            if adds_up || key.starts_with("time/") || before.is_none() {
                total.sink_metrics.set(Arc::clone(key), before.unwrap_or(0.0) + value);
            }
        }
    }

    pub(super) fn finish(self) -> BatchResult {
        BatchResult { statuses: self.statuses.into_iter().collect(), ..self.result }
    }
}

/// Returns the number of experiences of a result in the buffer.
pub(super) fn experiences(result: &BatchResult) -> u64 {
    // Known ones were written by an earlier, unacknowledged delivery of the same write batch.
    count(result, "stored_count") + count(result, "known_count")
}

/// Returns the number of experiences in the buffer without a reward.
pub(super) fn unrewarded(result: &BatchResult) -> u64 {
    count(result, "unrewarded_count")
}

/// Returns a count of the pipeline.
fn count(result: &BatchResult, name: &str) -> u64 {
    let key = format!("experience_pipeline/{name}");
    result.sink_metrics.get(&key).unwrap_or(0.0) as u64
}

/// Part of the metrics of dropped experiences, between operator and reason.
const DROPPED: &str = "/filtered/";

/// Reason of operators for experiences without a reward.
const MISSING_REWARD: &str = "/missing_reward";

/// Returns the number of dropped experiences by operator and reason, as in `grpo/low_std`.
pub(super) fn dropped(result: &BatchResult) -> BTreeMap<String, u64> {
    let count = |(key, value): (&Arc<str>, f64)| {
        let name = key.strip_prefix("experience_pipeline/").filter(|_| key.contains(DROPPED))?;
        Some((name.replacen(DROPPED, "/", 1), value as u64))
    };
    result.sink_metrics.iter().filter_map(count).filter(|(_, count)| *count > 0).collect()
}

/// Tells whether all experiences of a step were dropped because they have no reward.
pub(super) fn is_without_reward(dropped: &BTreeMap<String, u64>) -> bool {
    !dropped.is_empty() && dropped.keys().all(|reason| reason.ends_with(MISSING_REWARD))
}

/// Returns the metrics of a step. `version`: that of the servers at its start, for experiences
/// without a version.
pub(super) fn step(result: &BatchResult, config: &Config, version: Option<u64>) -> Metrics {
    let mut metrics = result.metrics(detail(config));
    let mut is_known = false;
    for stat in ["mean", "min", "max"] {
        let of = metrics.get(&format!("experience_pipeline/model_version/{stat}"));
        if let Some(value) = of {
            metrics.set(format!("rollout/model_version/{stat}"), value);
            is_known = true;
        }
    }
    let mean = metrics.get("rollout/model_version/mean").filter(|_| is_known);
    if let Some(version) = mean.or_else(|| version.map(|version| version as f64)) {
        metrics.set("rollout/model_version", version);
    }
    metrics
}

/// Returns the metrics of an evaluation, with a prefix in place of `eval`.
pub(super) fn eval(result: &BatchResult, config: &Config, prefix: &str) -> Metrics {
    let metrics = result.metrics(detail(config));
    let rename = |(key, value): (&Arc<str>, f64)| match key.strip_prefix("eval/") {
        Some(rest) => (Arc::from(format!("{prefix}/{rest}")), value),
        None => (Arc::clone(key), value),
    };
    metrics.iter().map(rename).collect()
}

/// Returns the mean reward over tasks. `None`: no run has a reward.
pub(super) fn score(result: &BatchResult) -> Option<f64> {
    let tasks: Vec<f64> = result.statuses.iter().filter_map(|(_, it)| reward(it)).collect();
    (!tasks.is_empty()).then(|| tasks.iter().sum::<f64>() / tasks.len() as f64)
}

/// Returns the mean reward of the runs of a task.
fn reward(status: &Status) -> Option<f64> {
    let runs: Vec<f64> = status.run_metrics.iter().filter_map(|run| run.get(REWARD)).collect();
    (!runs.is_empty()).then(|| runs.iter().sum::<f64>() / runs.len() as f64)
}

fn detail(config: &Config) -> EvalDetail<'static> {
    if config.monitor.detailed_stats { EvalDetail::Stats(&EVAL_STATS) } else { EvalDetail::Mean }
}

/// Tells whether the pipeline computes pass rates.
pub(super) fn has_pass_rates(config: &Config) -> bool {
    let operators = &config.data_processor.experience_pipeline.operators;
    operators.iter().any(|operator| operator.name == PASS_RATES)
}

/// Returns the pass rates as the pipeline computes them.
pub(super) fn pass_rates(result: &BatchResult, task_refs: &[TaskRef]) -> PassRates {
    let rate = |(id, status): &(TaskId, Arc<Status>)| {
        let pick = task_refs.get(id.0 as usize)?;
        let count = status.run_metrics.len();
        let taskset_id = pick.taskset_id as u64;
        Some(PassRate { taskset_id, index: pick.index, value: reward(status)?, count })
    };
    result.statuses.iter().filter_map(rate).collect()
}
