//! Aggregates of all runs: overview, batches and selection bias.

use std::collections::BTreeMap;

use rollway_core::{BatchState, BatchType};

use super::row::{Batch, Row, finite, nonzero};
use super::state::State;
use crate::view::{
    self, BiasGroup, BiasReport, FieldBias, HistogramBin, Overview, RunCounts, RunState,
    ServerSummary, TaskCounts, WasteReport,
};

/// Number of bins of a histogram.
const BINS: usize = 24;

/// Maximum number of failures by message in the overview.
const SHOWN_FAILURES: usize = 6;

impl State {
    /// Returns all batches, newest first.
    pub(super) fn batches(&self, is_live: bool) -> Vec<view::BatchRow> {
        self.batches.values().rev().map(|batch| shown(batch, is_live)).collect()
    }

    /// Returns the overview without the counts of runners.
    pub(super) fn overview(&self, now: f64, is_live: bool) -> Overview {
        let counts = self.counts(is_live);
        let count = |(name, count): (&'static str, u64)| (name.to_owned(), count);
        let failed = counts.failed.nonzero().map(|(kind, n)| (kind.name(), n));
        let cancelled = counts.cancelled.nonzero().map(|(reason, n)| (reason.name(), n));
        let totals = self.totals_now();
        let mut experiences_dropped = totals.experiences_dropped;
        // Evaluations have no experiences.
        experiences_dropped.remove("eval");
        let mut failures = self.failures();
        failures.truncate(SHOWN_FAILURES);
        let servers =
            if is_live { self.servers.report.summary() } else { ServerSummary::default() };
        Overview {
            wait: None,
            now,
            servers,
            failures,
            samples: self.notes.samples.clone(),
            rewards: self.notes.rewards.iter().cloned().collect(),
            evals: self.notes.evals.iter().cloned().collect(),
            runs: RunCounts {
                submitted: counts.submitted,
                succeeded: counts.succeeded,
                failed: failed.map(count).collect(),
                cancelled: cancelled.map(count).collect(),
                pending: counts.pending(),
                running: counts.running,
            },
            tasks: TaskCounts {
                submitted: counts.tasks,
                finished: counts.ended.ok + counts.ended.partial,
                failed: counts.ended.failed,
            },
            waste: WasteReport {
                retried: totals.retried,
                seconds_useful: totals.seconds_useful,
                seconds_lost: totals.seconds_lost,
                experiences_dropped,
            },
            runners: view::RunnerCounts::default(),
            alarms: self.raised(),
            dropped: totals.dropped,
        }
    }

    /// Returns the raised alarms: the newest entry of each kind counts.
    fn raised(&self) -> Vec<view::AlarmRow> {
        let mut seen: Vec<&str> = Vec::new();
        let mut raised = Vec::new();
        for alarm in &self.notes.alarms {
            if seen.contains(&alarm.kind.as_str()) {
                continue;
            }
            seen.push(&alarm.kind);
            raised.extend(alarm.raised.then(|| alarm.clone()));
        }
        raised
    }

    pub(super) fn bias(&self) -> BiasReport {
        let tokens: fn(&Row) -> Option<f64> = |row| nonzero(row.tokens).map(f64::from);
        let seconds: fn(&Row) -> Option<f64> = |row| finite(row.seconds);
        let fields = [("tokens", tokens), ("seconds", seconds)];
        BiasReport {
            fields: fields.iter().map(|(name, _)| (*name).to_owned()).collect(),
            groups: fields
                .iter()
                .map(|(name, field)| ((*name).to_owned(), self.field(*field)))
                .collect(),
        }
    }

    fn field(&self, field: fn(&Row) -> Option<f64>) -> FieldBias {
        let mut groups: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for name in ["dispatched", "trained", "failed", "cancelled"] {
            groups.insert(name, Vec::new());
        }
        for row in self.rows.iter().filter(|row| row.attempts > 0) {
            let Some(batch) = self.batches.get(&row.batch) else { continue };
            let Some(value) = field(row).filter(|_| batch.kind == BatchType::Train) else {
                continue;
            };
            let is_dropped = batch.state == BatchState::Aborted
                || batch.tasks.get(row.task as usize).is_some_and(|task| task.dropped.is_some());
            let group = match row.state {
                RunState::Succeeded if is_dropped => "cancelled",
                RunState::Succeeded => "trained",
                RunState::Failed => "failed",
                RunState::Cancelled => "cancelled",
                RunState::Pending | RunState::Running => continue,
            };
            for name in ["dispatched", group] {
                groups.entry(name).or_default().push(value);
            }
        }
        let max = groups["dispatched"].iter().copied().fold(0.0, f64::max);
        let width = if max > 0.0 { max / BINS as f64 } else { 1.0 };
        let group = |(name, values): (&str, Vec<f64>)| (name.to_owned(), measure(values, width));
        groups.into_iter().map(group).collect()
    }
}

fn measure(mut values: Vec<f64>, width: f64) -> BiasGroup {
    let count = values.len();
    let mean = (count > 0).then(|| values.iter().sum::<f64>() / count as f64);
    let mut histogram: Vec<HistogramBin> = (0..BINS)
        .map(|at| HistogramBin { from: at as f64 * width, to: (at + 1) as f64 * width, count: 0 })
        .collect();
    for value in &values {
        // The maximum belongs to the last bin.
        let at = ((value / width) as usize).min(BINS - 1);
        histogram[at].count += 1;
    }
    let mut quantile = |share: f64| {
        let at = ((count.saturating_sub(1)) as f64 * share).round() as usize;
        (count > 0).then(|| *values.select_nth_unstable_by(at, f64::total_cmp).1)
    };
    let (p10, p50, p90) = (quantile(0.1), quantile(0.5), quantile(0.9));
    BiasGroup { count: count as u64, mean, p10, p50, p90, histogram }
}

fn shown(batch: &Batch, is_live: bool) -> view::BatchRow {
    let is_left = !(batch.is_over() || is_live && batch.is_ours);
    let runs = batch.counts.runs();
    let waiting_for = match batch.state {
        _ if is_left || batch.is_over() => None,
        BatchState::Finalizing => Some("buffer write".to_owned()),
        _ if runs.running + runs.pending > 0 => {
            Some(format!("{} running and {} pending runs", runs.running, runs.pending))
        }
        _ => Some("finalization by the caller".to_owned()),
    };
    view::BatchRow {
        batch: batch.id.to_string(),
        kind: batch.kind.to_string(),
        state: if is_left { "ended".to_owned() } else { batch.state.to_string() },
        began: batch.began,
        ended: batch.ended,
        tasks: batch.counts.tasks,
        runs,
        reward: batch.reward(),
        waiting_for,
    }
}
