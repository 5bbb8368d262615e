//! Final summary of a job: totals, curves and next commands.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollway::config::Mode;
use rollway::job::{FailureGroup, Summary};
use rollway_base::human;
use rollway_core::BatchResult;

use super::draw::{curve, label};
use super::model::ProgressModel;
use super::series::Series;
use super::{JobTitle, ProgressEnd, format};
use crate::quoted;
use crate::styled_line::{StyledLine, TextStyle, sanitize};

/// Minimum width at which the hint to resume leaves room for the name of the job.
const MIN_WIDTH: usize = 60;

/// Maximum number of messages of failures.
const MAX_CAUSES: usize = 3;

/// Totals of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FinalSummary {
    pub steps: u64,
    pub trained: u64,
    /// Tasks of these steps and of evaluations.
    pub tasks: u64,
    pub failed: u64,
    /// Tasks that were cancelled because enough others finished, or for lack of time.
    pub cancelled: u64,
    /// Runs that failed for good, by kind.
    pub failures: BTreeMap<String, u64>,
    /// Failures by message, the most frequent first.
    pub causes: Vec<FailureGroup>,
    pub experiences: u64,
    /// Mean reward of the first and the last step. `None`: those that the view observed.
    pub rewards: Option<[(u64, f64); 2]>,
    /// First and last step and score of each evaluation set.
    pub scores: BTreeMap<Arc<str>, [(u64, f64); 2]>,
    pub tokens: u64,
    pub seconds: f64,
}

impl FinalSummary {
    pub fn add_step(&mut self, result: &BatchResult, experiences: u64) {
        self.steps += 1;
        self.experiences += experiences;
        self.add_batch(result);
    }

    pub fn add_batch(&mut self, result: &BatchResult) {
        self.tasks += result.tasks.total();
        self.failed += result.tasks.failed;
        self.cancelled += result.tasks.cancelled;
        for (kind, count) in result.runs.failed.nonzero() {
            *self.failures.entry(kind.name().to_owned()).or_default() += count;
        }
    }

    pub fn add_score(&mut self, set: &Arc<str>, step: u64, score: f64) {
        let both = [(step, score); 2];
        self.scores.entry(Arc::clone(set)).or_insert(both)[1] = (step, score);
    }
}

/// Totals of all processes of a job.
impl From<&Summary> for FinalSummary {
    fn from(summary: &Summary) -> Self {
        let mut totals = Self {
            steps: summary.steps,
            trained: summary.trained_steps,
            tasks: summary.tasks_finished + summary.tasks_failed + summary.tasks_cancelled,
            failed: summary.tasks_failed,
            cancelled: summary.tasks_cancelled,
            causes: summary.failures.clone(),
            rewards: summary
                .first_reward
                .zip(summary.last_reward)
                .map(|(first, last)| [(1, first), (summary.steps, last)]),
            experiences: summary.experiences_delivered,
            seconds: summary.seconds,
            ..Self::default()
        };
        for group in summary.failures.iter().filter(|group| group.failed > 0) {
            *totals.failures.entry(group.kind.clone()).or_default() += group.failed;
        }
        for eval in &summary.evals {
            totals.tasks += eval.finished + eval.failed;
            totals.failed += eval.failed;
            if let Some(score) = eval.score {
                totals.add_score(&Arc::from(&*eval.set), eval.step, score);
            }
        }
        totals
    }
}

pub fn block(
    model: &ProgressModel,
    summary: &FinalSummary,
    end: ProgressEnd,
    width: usize,
) -> Vec<StyledLine> {
    let title = &model.title;
    let (mark, text, style) = match end {
        ProgressEnd::Done => ("✔", "done", TextStyle::Green),
        ProgressEnd::Stopped if width < MIN_WIDTH => ("■", "stopped", TextStyle::Yellow),
        ProgressEnd::Stopped => ("■", "stopped; the same command resumes it", TextStyle::Yellow),
        ProgressEnd::Failed => ("✘", "failed", TextStyle::Red),
    };
    let took = human::duration(Duration::try_from_secs_f64(summary.seconds).unwrap_or_default());
    let rest =
        StyledLine::new().text(" ").with(text, style).with(format!("  {took}"), TextStyle::Faint);
    let name =
        StyledLine::new().with(format!(" {mark} "), style).with(&title.name, TextStyle::Bold);
    let mut head = name.fit(width.saturating_sub(rest.width() + 1));
    head.append(rest);
    let mut lines = vec![StyledLine::new(), head];
    lines.extend(work(summary));
    lines.extend(curves(model, summary, width.saturating_sub(1)));
    let lines = lines.into_iter().map(|line| line.fit(width.saturating_sub(1)));
    // Paths and commands are not truncated, so that they can be copied.
    lines.chain(next_commands(title, end)).chain([StyledLine::new()]).collect()
}

fn work(summary: &FinalSummary) -> Vec<StyledLine> {
    let mut lines = Vec::new();
    let counts = [(summary.steps, "explored"), (summary.trained, "trained")];
    let shown = counts.iter().filter(|(count, _)| *count > 0);
    let shown: Vec<String> =
        shown.map(|(count, label)| format!("{} {label}", format::count(*count))).collect();
    if !shown.is_empty() {
        lines.push(label("steps").text(shown.join(" · ")));
    }
    if summary.tasks > 0 {
        let mut tasks = label("tasks").text(format::count(summary.tasks));
        match summary.failed {
            0 => tasks.push(" · none failed", TextStyle::Plain),
            failed => tasks.push(format!(" · {} failed", format::count(failed)), TextStyle::Red),
        }
        if summary.cancelled > 0 {
            tasks.push(
                format!(" · {} cancelled", format::count(summary.cancelled)),
                TextStyle::Yellow,
            );
        }
        lines.push(tasks);
    }
    if !summary.failures.is_empty() {
        let kind = |(kind, count): (&String, &u64)| format!("{} {kind}", format::count(*count));
        let kinds: Vec<String> = summary.failures.iter().map(kind).collect();
        let failed = format!("failed for good: {}", kinds.join(" · "));
        lines.push(label("runs").with(failed, TextStyle::Red));
    }
    for (at, group) in summary.causes.iter().take(MAX_CAUSES).enumerate() {
        let (count, note) = match group.failed {
            0 => (group.retried, " (retried)"),
            failed => (failed, ""),
        };
        let (count, message) = (format::count(count), sanitize(&group.message));
        let cause = format!("{count} × {}{note}: {message}", group.kind);
        lines.push(label(if at == 0 { "failures" } else { "" }).text(cause));
    }
    if summary.experiences > 0 {
        let mut made = format::counted(summary.experiences, "experience");
        if summary.tokens > 0 {
            made += &format!(" · {} tokens", format::short(summary.tokens as f64));
        }
        lines.push(label("made").text(made));
    }
    lines
}

fn curves(model: &ProgressModel, summary: &FinalSummary, width: usize) -> Vec<StyledLine> {
    let mut lines = Vec::new();
    let observed = model.rewards.first().zip(model.rewards.last()).map(|(a, b)| [a, b]);
    if let Some([first, last]) = summary.rewards.or(observed) {
        let mut line = curve(model, "reward", &model.rewards, TextStyle::Cyan, width);
        line.append(change(first, last));
        lines.push(line);
    }
    let none = Series::default();
    for (at, (set, [first, last])) in summary.scores.iter().enumerate() {
        let name = if at == 0 { "eval" } else { "" };
        let series = model.evals.get(set).unwrap_or(&none);
        let mut line = curve(model, name, series, TextStyle::Green, width);
        line.append(change(*first, *last));
        lines.push(line.with(format!("  {set}"), TextStyle::Faint));
    }
    lines
}

fn change(first: (u64, f64), last: (u64, f64)) -> StyledLine {
    if first.0 == last.0 {
        return StyledLine::new().with(format::score(last.1), TextStyle::Bold);
    }
    let change = last.1 - first.1;
    let (arrow, style) = arrow(change);
    StyledLine::new()
        .text(format!("{} → ", format::score(first.1)))
        .with(format::score(last.1), TextStyle::Bold)
        .with(format!("  {arrow} {}", format::score(change.abs())), style)
}

pub fn arrow(change: f64) -> (char, TextStyle) {
    match change {
        change if change >= 0.0005 => ('▲', TextStyle::Green),
        change if change <= -0.0005 => ('▼', TextStyle::Red),
        _ => ('◆', TextStyle::Faint),
    }
}

fn next_commands(title: &JobTitle, end: ProgressEnd) -> Vec<StyledLine> {
    let path = |path: &Path| match std::env::current_dir() {
        Ok(here) => path.strip_prefix(here).unwrap_or(path).display().to_string(),
        Err(_) => path.display().to_string(),
    };
    let mut lines = vec![label("folder").text(path(&title.job_dir))];
    if title.has_history {
        let folder = quoted(&path(&title.job_dir));
        lines.push(label("view").text(format!("rollway view {folder}")));
    }
    if let Some(curves) = &title.curves {
        lines.push(label("curves").text(format!("tensorboard --logdir {}", path(curves))));
    }
    let has_checkpoints = matches!(title.mode, Mode::Both | Mode::Train);
    let can_bench = has_checkpoints && title.has_evals && end == ProgressEnd::Done;
    if let Some(command) = title.command.as_deref().filter(|_| can_bench) {
        lines.push(label("bench").text(format!("{command} mode=bench")));
    }
    lines
}
