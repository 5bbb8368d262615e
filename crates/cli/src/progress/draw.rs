//! Layout of the live view: from a model and a terminal size to lines.

use std::time::Duration;

use rollway::config::Mode;
use rollway::explorer::StatsSample;
use rollway_base::human;

use super::format;
use super::model::ProgressModel;
use super::series::Series;
use super::summary::arrow;
use crate::output::TerminalSize;
use crate::styled_line::{StyledLine, TextStyle, width as width_of};

/// Columns of the labels, including their indentation.
pub(super) const LABEL_COLUMNS: usize = 12;

/// Minimum width of the layout; narrower terminals truncate its lines.
const MIN_COLUMNS: usize = 40;

/// Width from which bars and text share a line.
const WIDE_COLUMNS: usize = 70;

/// Maximum number of evaluation sets with a curve.
const MAX_SETS: usize = 3;

/// A line and its rank: lines of the highest rank are dropped first.
type Ranked = (u8, StyledLine);

/// Returns the lines of the view, fitted to the terminal.
pub fn draw(model: &ProgressModel, size: TerminalSize) -> Vec<StyledLine> {
    // The last column stays free: some terminals wrap a line that fills it.
    let width = size.columns.saturating_sub(1).max(MIN_COLUMNS);
    let mut lines: Vec<Ranked> = vec![(9, StyledLine::new()), (0, header(model, width))];
    if model.has_started {
        lines.extend(steps(model, width).map(|line| (1, line)));
        if model.title.mode != Mode::Train {
            lines.push((4, runs(model, width)));
        }
        lines.extend(runners(model, width).map(|line| (6, line)));
        lines.extend(curves(model, width));
        lines.extend(weights(model).map(|line| (5, line)));
    }
    // The log has the message; the view shows which alarms are still raised.
    if let Some(kinds) = alarms(model) {
        lines.insert(2, (2, kinds));
    }
    let waiting = wait(model);
    let at = lines.len().min(2);
    lines.splice(at..at, waiting.into_iter().map(|line| (2, line)));
    // The row of the cursor stays free, and one log line.
    let max_lines = size.rows.saturating_sub(2).clamp(1, 12);
    while lines.len() > max_lines {
        let rank = lines.iter().map(|(rank, _)| *rank).max();
        let last = lines.iter().rposition(|(other, _)| Some(*other) == rank);
        last.map(|at| lines.remove(at));
    }
    lines.into_iter().map(|(_, line)| line.fit(size.columns.saturating_sub(1))).collect()
}

pub(super) fn label(text: &str) -> StyledLine {
    let mut line = StyledLine::new().with(format!("   {text}"), TextStyle::Faint);
    line.pad(LABEL_COLUMNS);
    line
}

/// Returns the spinner, the job's name and the elapsed time.
fn header(model: &ProgressModel, width: usize) -> StyledLine {
    const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
    let spinner = SPINNER[(model.now.as_millis() / 125 % 10) as usize];
    let title = &model.title;
    let phase = match model.has_started {
        true => title.mode.name(),
        false => "getting ready".to_owned(),
    };
    let clock = format::clock(model.now);
    let room = width.saturating_sub(clock.len() + 2);
    let name = StyledLine::new()
        .with(format!(" {spinner} "), TextStyle::Cyan)
        .with(&title.name, TextStyle::Bold);
    // The model is dropped before a long name is truncated.
    let mut line = name.fit(room.saturating_sub(phase.len() + 2));
    line.push(format!("  {phase}"), TextStyle::Faint);
    let model = format!(" · {}", title.model);
    if line.width() + width_of(&model) <= room {
        line.push(model, TextStyle::Faint);
    }
    line.pad(width - clock.len());
    line.with(clock, TextStyle::Faint)
}

fn steps(model: &ProgressModel, width: usize) -> Option<StyledLine> {
    let is_known = |total: &u64| *total > 0 && model.title.mode != Mode::Bench;
    let total = model.total_steps.filter(is_known)?;
    let done = model.done_steps.min(total);
    let part = done as f64 / total as f64;
    let mut after = StyledLine::new()
        .with(format!("  {}", format::count(done)), TextStyle::Bold)
        .text(format!(" of {}", format::count(total)));
    match model.time_left() {
        _ if done == total => {}
        Some(left) => after.push(format!(" · {} left", format::estimate(left)), TextStyle::Plain),
        None => after.push(format!(" · {:.0} %", part * 100.0), TextStyle::Plain),
    }
    let mut line = label("steps");
    let style = if done == total { TextStyle::Green } else { TextStyle::Cyan };
    let columns =
        bar_columns(width).min(width.saturating_sub(LABEL_COLUMNS + after.width())).max(8);
    line.append(bar(columns, &[(part, style)]));
    line.append(after);
    Some(line)
}

/// Returns the current wait, and its remedy.
fn wait(model: &ProgressModel) -> Vec<StyledLine> {
    let Some((wait, began)) = &model.wait else { return Vec::new() };
    let times = wait.times(model.now.saturating_sub(*began));
    let remedy = format!("{times}; {}", wait.reason.remedy());
    vec![
        label("waiting").with(wait.reason.message(), TextStyle::Yellow),
        label("").with(remedy, TextStyle::Faint),
    ]
}

fn alarms(model: &ProgressModel) -> Option<StyledLine> {
    let kinds: Vec<String> = model.alarms.keys().map(|kind| kind.replace('_', " ")).collect();
    (!kinds.is_empty()).then(|| label("alarms").with(kinds.join(" · "), TextStyle::Red))
}

/// Returns a bar that is filled from the left by consecutive parts.
fn bar(width: usize, parts: &[(f64, TextStyle)]) -> StyledLine {
    let mut line = StyledLine::new();
    let (mut sum, mut filled) = (0.0, 0);
    for (part, style) in parts {
        sum += part;
        let end = ((sum * width as f64).round() as usize).min(width);
        line.push("━".repeat(end - filled), *style);
        filled = end;
    }
    line.push("─".repeat(width - filled), TextStyle::Faint);
    line
}

/// Returns the runs of the steps in flight by state.
fn runs(model: &ProgressModel, width: usize) -> StyledLine {
    let in_flight = &model.in_flight;
    let Some(StatsSample { pending: waiting, running, .. }) = model.sample else {
        let tasks = in_flight.values().map(|(tasks, _)| tasks).sum();
        let steps = format::counted(in_flight.len() as u64, "step");
        return label("tasks").text(format!("{} in flight, of {steps}", format::count(tasks)));
    };
    let (done, failed) = model.ended_runs();
    let all = (waiting + running + done + failed).max(1) as f64;
    let part = |count: u64| count as f64 / all;
    let parts = [
        (part(done), TextStyle::Green),
        (part(failed), TextStyle::Red),
        (part(running), TextStyle::Yellow),
    ];
    let mut line = label("runs");
    line.append(meter(width, &parts));
    let counts = [
        (done, "done", TextStyle::Green),
        (failed, "failed", TextStyle::Red),
        (running, "running", TextStyle::Yellow),
        (waiting, "waiting", TextStyle::Plain),
    ];
    // Failures are shown only if there are any.
    let is_shown = |(count, name, _): &(u64, &str, TextStyle)| *count > 0 || *name != "failed";
    let mut texts = list(counts.into_iter().filter(is_shown));
    if line.width() + texts.width() > width {
        // The line of the runners shows the number of running runs, too.
        texts = list(counts.into_iter().filter(is_shown).filter(|(_, name, _)| *name != "running"));
    }
    line.append(texts);
    line
}

/// Returns counts with their labels.
fn list(counts: impl Iterator<Item = (u64, &'static str, TextStyle)>) -> StyledLine {
    let mut line = StyledLine::new();
    for (at, (count, name, style)) in counts.enumerate() {
        line.push(if at > 0 { " · " } else { "" }, TextStyle::Faint);
        line.push(format::count(count), if count == 0 { TextStyle::Plain } else { style });
        line.push(format!(" {name}"), TextStyle::Plain);
    }
    line
}

/// Returns a bar, or nothing if there is no space for bar and text.
fn meter(width: usize, parts: &[(f64, TextStyle)]) -> StyledLine {
    if width < WIDE_COLUMNS { StyledLine::new() } else { bar(bar_columns(width), parts).text("  ") }
}

/// Returns busy runners and the token rate.
fn runners(model: &ProgressModel, width: usize) -> Option<StyledLine> {
    let StatsSample { runners, busy, .. } = model.sample?;
    let mut line = label("runners");
    let part = f64::from(busy) / f64::from(runners.max(1));
    line.append(meter(width, &[(part, TextStyle::Magenta)]));
    line.push(
        format!("{} of {} busy", format::count(busy.into()), format::count(runners.into())),
        TextStyle::Plain,
    );
    if let Some(rate) = model.token_rate() {
        line.push(" · ", TextStyle::Faint);
        line.push(format!("{} tokens/s", format::short(rate)), TextStyle::Plain);
    }
    Some(line)
}

/// Returns the columns of bars and curves, which are aligned.
fn bar_columns(width: usize) -> usize {
    match width {
        // Less text stands beside them.
        ..WIDE_COLUMNS => width.saturating_sub(LABEL_COLUMNS + 28).clamp(12, 24),
        _ => width.saturating_sub(LABEL_COLUMNS + 42).clamp(16, 40),
    }
}

/// Returns the curves of rewards and scores over the same steps.
fn curves(model: &ProgressModel, width: usize) -> Vec<Ranked> {
    let mut lines = Vec::new();
    if let Some((_, last)) = model.rewards.last() {
        let mut line = curve(model, "reward", &model.rewards, TextStyle::Cyan, width);
        line.push(format::score(last), TextStyle::Bold);
        if let Some(trend) = model.rewards.trend() {
            let (arrow, style) = arrow(trend);
            line.push(format!("  {arrow} {}", format::score(trend.abs())), style);
        }
        lines.push((2, line));
    }
    for (at, (set, scores)) in model.evals.iter().enumerate() {
        if at == MAX_SETS {
            let more = format!("and {} more sets", model.evals.len() - MAX_SETS);
            lines.push((8, label("").with(more, TextStyle::Faint)));
            break;
        }
        let name = if at == 0 { "eval" } else { "" };
        let mut line = curve(model, name, scores, TextStyle::Green, width);
        let (Some((_, first)), Some((_, last))) = (scores.first(), scores.last()) else { continue };
        if scores.first() != scores.last() {
            line.push(format!("{} → ", format::score(first)), TextStyle::Plain);
        }
        line.push(format::score(last), TextStyle::Bold);
        line.push(format!("  {set}"), TextStyle::Faint);
        lines.push((if at == 0 { 3 } else { 7 }, line));
    }
    lines
}

pub(super) fn curve(
    model: &ProgressModel,
    name: &str,
    series: &Series,
    style: TextStyle,
    width: usize,
) -> StyledLine {
    let (from, to) = model.step_range();
    let columns = bar_columns(width);
    let mut line = label(name).with(series.spark(from, to, columns), style);
    line.pad(LABEL_COLUMNS + columns + 2);
    line
}

/// Returns model version, last weight sync and trainer step.
fn weights(model: &ProgressModel) -> Option<StyledLine> {
    let mut parts = Vec::new();
    if let Some(version) = model.version {
        parts.push(format!("version {}", format::count(version)));
    }
    if let Some((waited, loading)) = model.last_sync {
        let mut part = format!("sync {}", human::duration(waited + loading));
        if waited > Duration::from_secs(1) && waited > loading * 2 {
            part += ", mostly waiting";
        }
        parts.push(part);
    }
    if let Some(step) = model.train_step {
        parts.push(format!("trainer step {}", format::count(step)));
    }
    let mut line = label("weights");
    for (at, part) in parts.iter().enumerate() {
        line.push(if at > 0 { " · " } else { "" }, TextStyle::Faint);
        line.push(part, TextStyle::Plain);
    }
    (!parts.is_empty()).then_some(line)
}
