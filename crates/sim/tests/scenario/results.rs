//! Text of statuses, results and tallies.

use std::time::Duration;

use rollway_core::metrics::Metrics;
use rollway_core::{BatchResult, RunTally, Status, TaskResult, TaskTally};

use super::labels::{ScenarioLabels, seconds};

/// Appends one line for every task.
pub(super) fn tasks(results: &[TaskResult], lines: &mut Vec<String>) {
    for result in results {
        let mut parts = vec![format!("  {} {}", result.task, status(&result.status))];
        parts.extend(result.payloads.iter().map(|payload| payload.id.to_string()));
        lines.push(parts.join(" "));
    }
}

fn status(status: &Status) -> String {
    let Status {
        completed_runs,
        total_runs,
        failed_runs,
        cancelled_runs,
        first_error,
        run_metrics,
        attempt_seconds,
    } = status;
    let mut parts = vec![format!("{completed_runs}/{total_runs}")];
    parts.extend(counted("failed", failed_runs.named()));
    parts.extend(counted("cancelled", cancelled_runs.named()));
    if let Some(error) = first_error {
        parts.push(format!("({} {error})", error.run));
    }
    let metrics: Vec<String> = run_metrics.iter().map(metrics_in_words).collect();
    if metrics.iter().any(|metrics| !metrics.is_empty()) {
        parts.push(format!("[{}]", metrics.join(", ")));
    }
    // Durations of zero are not shown.
    if attempt_seconds.iter().any(|took| *took > 0.0) {
        let took = attempt_seconds.iter().map(|took| seconds(Duration::from_secs_f64(*took)));
        parts.push(format!("in {}", took.collect::<Vec<_>>().join("+")));
    }
    parts.join(" ")
}

fn metrics_in_words(metrics: &Metrics) -> String {
    let pairs = metrics.iter().map(|(key, value)| format!("{key}:{value}"));
    pairs.collect::<Vec<_>>().join(" ")
}

/// Returns `what a=1 b=2`, or nothing without counts.
pub(super) fn counted<'a>(
    what: &str,
    counts: impl Iterator<Item = (&'a str, u64)>,
) -> Option<String> {
    let counts: Vec<String> = counts
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{name}={count}"))
        .collect();
    (!counts.is_empty()).then(|| format!("{what} {}", counts.join(" ")))
}

pub(super) fn run_tally(runs: &RunTally) -> String {
    let RunTally { submitted, pending, running, succeeded, failed, cancelled } = runs;
    let places = [("pending", *pending), ("running", *running), ("succeeded", *succeeded)];
    let mut parts = vec![format!("runs {submitted}")];
    parts.extend(counted("", places.into_iter()).map(|parts| parts.trim_start().to_owned()));
    parts.extend(counted("failed", failed.named()));
    parts.extend(counted("cancelled", cancelled.named()));
    parts.join(" ")
}

pub(super) fn task_tally(open: u64, tasks: &TaskTally) -> String {
    let TaskTally { ok, partial, failed, cancelled } = *tasks;
    let counts = [
        ("open", open),
        ("ok", ok),
        ("partial", partial),
        ("failed", failed),
        ("cancelled", cancelled),
    ];
    let all = format!("tasks {}", open + tasks.total());
    counted(&all, counts.into_iter()).unwrap_or(all)
}

/// Appends the result of a batch: its counts, then its statuses.
pub(super) fn batch(result: &BatchResult, names: &ScenarioLabels, lines: &mut Vec<String>) {
    let BatchResult {
        batch: _,
        key,
        kind,
        state,
        reason,
        tasks,
        runs,
        delivered,
        dropped,
        uncertain,
        statuses,
        sink_metrics,
    } = result;
    let reason = reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
    let name = names.batch(*key);
    let mut parts = vec![format!("{state} {kind} {name}{reason}: {}", task_tally(0, tasks))];
    parts.push(run_tally(runs));
    parts.push(format!("delivered {delivered}"));
    parts.extend(counted("dropped", dropped.named()));
    if *uncertain > 0 {
        parts.push(format!("uncertain {uncertain}"));
    }
    if !sink_metrics.is_empty() {
        parts.push(format!("sink {}", metrics_in_words(sink_metrics)));
    }
    lines.extend(wrapped(&parts));
    for (task, status) in statuses {
        lines.push(format!("  {task} {}", self::status(status)));
    }
}

/// Joins phrases with semicolons, on lines of limited length.
pub(super) fn wrapped(parts: &[String]) -> Vec<String> {
    const COLUMNS_MAX: usize = 84;
    let mut lines: Vec<String> = Vec::new();
    for word in parts {
        match lines.last_mut() {
            None => lines.push(word.clone()),
            Some(line) if line.len() + 2 + word.len() <= COLUMNS_MAX => {
                line.push_str("; ");
                line.push_str(word);
            }
            Some(line) => {
                line.push(';');
                lines.push(format!("    {word}"));
            }
        }
    }
    lines
}
