//! What is left on the terminal when a job has ended: what was done, and where to look next.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollway::config::Mode;
use rollway::job::Summary;
use rollway_core::BatchResult;

use super::draw::{curve, label};
use super::model::ProgressModel;
use super::series::Series;
use super::{JobTitle, ProgressEnd, format};
use crate::styled_line::{StyledLine, TextStyle};

/// What a job came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FinalSummary {
    /// Steps that were finalized.
    pub steps: u64,
    /// Steps of the trainer.
    pub trained: u64,
    /// Tasks of these steps and of evaluations.
    pub tasks: u64,
    /// Tasks without a good run.
    pub failed: u64,
    /// Tasks that were cut because others were enough, or for lack of time.
    pub cut: u64,
    /// Runs that failed for good, by kind.
    pub failures: BTreeMap<String, u64>,
    /// Experiences that were delivered.
    pub experiences: u64,
    /// Scores on each set: the first and the last, with their steps.
    pub scores: BTreeMap<Arc<str>, [(u64, f64); 2]>,
    /// Tokens that models have made.
    pub tokens: u64,
    /// How long it took.
    pub seconds: f64,
}

impl FinalSummary {
    /// Counts a finalized step.
    pub fn explored(&mut self, result: &BatchResult, experiences: u64) {
        self.steps += 1;
        self.experiences += experiences;
        self.evaluated(result);
    }

    /// Counts the tasks of a batch.
    pub fn evaluated(&mut self, result: &BatchResult) {
        self.tasks += result.tasks.total();
        self.failed += result.tasks.failed;
        self.cut += result.tasks.cancelled;
        for (kind, count) in result.runs.failed.nonzero() {
            *self.failures.entry(kind.name().to_owned()).or_default() += count;
        }
    }

    /// Keeps a score.
    pub fn scored(&mut self, set: &Arc<str>, step: u64, score: f64) {
        let both = [(step, score); 2];
        self.scores.entry(Arc::clone(set)).or_insert(both)[1] = (step, score);
    }
}

/// What all processes of a job did.
impl From<&Summary> for FinalSummary {
    fn from(summary: &Summary) -> Self {
        let mut account = Self {
            steps: summary.steps,
            trained: summary.trained_steps,
            tasks: summary.tasks_finished + summary.tasks_failed + summary.tasks_cancelled,
            failed: summary.tasks_failed,
            cut: summary.tasks_cancelled,
            failures: summary.failed_runs.clone(),
            experiences: summary.experiences_delivered,
            seconds: summary.seconds,
            ..Self::default()
        };
        for eval in &summary.evals {
            account.tasks += eval.finished + eval.failed;
            account.failed += eval.failed;
            if let Some(score) = eval.score {
                account.scored(&Arc::from(&*eval.set), eval.step, score);
            }
        }
        account
    }
}

/// Returns the block that stays.
pub fn block(
    screen: &ProgressModel,
    account: &FinalSummary,
    ending: ProgressEnd,
    width: usize,
) -> Vec<StyledLine> {
    let title = &screen.title;
    let (mark, word, look) = match ending {
        ProgressEnd::Done => ("✔", "done", TextStyle::Green),
        ProgressEnd::Stopped => {
            ("■", "stopped; the same command goes on from here", TextStyle::Yellow)
        }
        ProgressEnd::Failed => ("✘", "failed", TextStyle::Red),
    };
    let took = format::time(Duration::try_from_secs_f64(account.seconds).unwrap_or_default());
    let rest =
        StyledLine::new().text(" ").with(word, look).with(format!("  {took}"), TextStyle::Faint);
    let name = StyledLine::new().with(format!(" {mark} "), look).with(&title.name, TextStyle::Bold);
    let mut head = name.fit(width.saturating_sub(rest.width() + 1));
    head.append(rest);
    let mut lines = vec![StyledLine::new(), head];
    lines.extend(work(account));
    lines.extend(curves(screen, account, width.saturating_sub(1)));
    let lines = lines.into_iter().map(|line| line.fit(width.saturating_sub(1)));
    // What somebody may want to copy stays whole.
    lines.chain(next(title, ending)).chain([StyledLine::new()]).collect()
}

fn work(account: &FinalSummary) -> Vec<StyledLine> {
    let mut lines = Vec::new();
    let counts = [(account.steps, "explored"), (account.trained, "trained")];
    let said = counts.iter().filter(|(count, _)| *count > 0);
    let said: Vec<String> =
        said.map(|(count, what)| format!("{} {what}", format::count(*count))).collect();
    if !said.is_empty() {
        lines.push(label("steps").text(said.join(" · ")));
    }
    if account.tasks > 0 {
        let mut tasks = label("tasks").text(format::count(account.tasks));
        match account.failed {
            0 => tasks.push(" · none failed", TextStyle::Plain),
            failed => tasks.push(format!(" · {} failed", format::count(failed)), TextStyle::Red),
        }
        if account.cut > 0 {
            tasks.push(format!(" · {} cut", format::count(account.cut)), TextStyle::Yellow);
        }
        lines.push(tasks);
    }
    if !account.failures.is_empty() {
        let kind = |(kind, count): (&String, &u64)| format!("{} {kind}", format::count(*count));
        let kinds: Vec<String> = account.failures.iter().map(kind).collect();
        let failed = format!("failed for good: {}", kinds.join(" · "));
        lines.push(label("runs").with(failed, TextStyle::Red));
    }
    if account.experiences > 0 {
        let mut made = format::counted(account.experiences, "experience");
        if account.tokens > 0 {
            made += &format!(" · {} tokens", format::short(account.tokens as f64));
        }
        lines.push(label("made").text(made));
    }
    lines
}

/// What was learnt.
fn curves(screen: &ProgressModel, account: &FinalSummary, width: usize) -> Vec<StyledLine> {
    let mut lines = Vec::new();
    if let (Some(first), Some(last)) = (screen.rewards.first(), screen.rewards.last()) {
        let mut line = curve(screen, "reward", &screen.rewards, TextStyle::Cyan, width);
        line.append(change(first, last));
        lines.push(line);
    }
    let none = Series::default();
    for (at, (set, [first, last])) in account.scores.iter().enumerate() {
        let name = if at == 0 { "held out" } else { "" };
        let series = screen.evals.get(set).unwrap_or(&none);
        let mut line = curve(screen, name, series, TextStyle::Green, width);
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
    let (arrow, look) = arrow(change);
    StyledLine::new()
        .text(format!("{} → ", format::score(first.1)))
        .with(format::score(last.1), TextStyle::Bold)
        .with(format!("  {arrow} {}", format::score(change.abs())), look)
}

/// Returns how a change is shown.
pub fn arrow(change: f64) -> (char, TextStyle) {
    match change {
        change if change >= 0.0005 => ('▲', TextStyle::Green),
        change if change <= -0.0005 => ('▼', TextStyle::Red),
        _ => ('◆', TextStyle::Faint),
    }
}

fn next(title: &JobTitle, ending: ProgressEnd) -> Vec<StyledLine> {
    let path = |path: &Path| match std::env::current_dir() {
        Ok(here) => path.strip_prefix(here).unwrap_or(path).display().to_string(),
        Err(_) => path.display().to_string(),
    };
    let mut lines = vec![label("folder").text(path(&title.job_dir))];
    if let Some(curves) = &title.curves {
        lines.push(label("curves").text(format!("tensorboard --logdir {}", path(curves))));
    }
    let has_checkpoints = matches!(title.mode, Mode::Both | Mode::Train);
    let is_done = has_checkpoints && ending == ProgressEnd::Done;
    if let Some(source) = title.source.as_deref().filter(|_| is_done) {
        let bench = format!("rollway run {} mode=bench", path(source));
        lines.push(label("bench").text(bench));
    }
    lines
}
