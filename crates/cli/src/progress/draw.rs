//! The live view as lines: from a screen and a size, and nothing else.

use std::time::Duration;

use rollway::config::Mode;
use rollway::explorer::Beat;

use super::format;
use super::model::ProgressModel;
use super::series::Series;
use super::summary::arrow;
use crate::output::TerminalSize;
use crate::styled_line::{StyledLine, TextStyle, width as width_of};

/// Columns of the labels, with what stands before them.
pub(super) const LABEL: usize = 12;

/// The narrowest terminal that lines are made for; narrower ones cut them.
const NARROW: usize = 40;

/// From here on there is room for bars and words in one line.
const WIDE: usize = 70;

/// Sets whose curves are shown.
const SETS: usize = 3;

/// A line, and how gladly it is left out when there are too few rows.
type Ranked = (u8, StyledLine);

/// Returns the lines of the view, no wider and no more than fit.
pub fn draw(screen: &ProgressModel, size: TerminalSize) -> Vec<StyledLine> {
    // The last column stays free: some terminals break a line that fills it.
    let width = size.columns.saturating_sub(1).max(NARROW);
    let mut lines: Vec<Ranked> = vec![(9, StyledLine::new()), (0, header(screen, width))];
    if screen.has_begun {
        lines.extend(steps(screen, width).map(|line| (1, line)));
        lines.push((4, runs(screen, width)));
        lines.extend(runners(screen, width).map(|line| (6, line)));
        lines.extend(curves(screen, width));
        lines.extend(weights(screen).map(|line| (5, line)));
    }
    // What goes wrong is said in the log; here it stands that it still does.
    if let Some(kinds) = alarms(screen) {
        lines.insert(2, (2, kinds));
    }
    // The row of the cursor stays free, and one of what was said before.
    let most = size.rows.saturating_sub(2).clamp(1, 12);
    while lines.len() > most {
        let rank = lines.iter().map(|(rank, _)| *rank).max();
        let last = lines.iter().rposition(|(other, _)| Some(*other) == rank);
        last.map(|at| lines.remove(at));
    }
    lines.into_iter().map(|(_, line)| line.fit(size.columns.saturating_sub(1))).collect()
}

/// Begins a line with its label.
pub(super) fn label(text: &str) -> StyledLine {
    let mut line = StyledLine::new().with(format!("   {text}"), TextStyle::Faint);
    line.pad(LABEL);
    line
}

/// A turning mark, the job's name, and the time.
fn header(screen: &ProgressModel, width: usize) -> StyledLine {
    const TURNS: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
    let turn = TURNS[(screen.now.as_millis() / 125 % 10) as usize];
    let title = &screen.title;
    let what = match screen.has_begun {
        true => format::mode(title.mode),
        false => "getting ready",
    };
    let clock = format::clock(screen.now);
    let room = width.saturating_sub(clock.len() + 2);
    let name = StyledLine::new()
        .with(format!(" {turn} "), TextStyle::Cyan)
        .with(&title.name, TextStyle::Bold);
    // A long name takes the place of the model before it is cut itself.
    let mut line = name.fit(room.saturating_sub(what.len() + 2));
    line.push(format!("  {what}"), TextStyle::Faint);
    let model = format!(" · {}", title.model);
    if line.width() + width_of(&model) <= room {
        line.push(model, TextStyle::Faint);
    }
    line.pad(width - clock.len());
    line.with(clock, TextStyle::Faint)
}

/// How far the job is.
fn steps(screen: &ProgressModel, width: usize) -> Option<StyledLine> {
    let is_known = |total: &u64| *total > 0 && screen.title.mode != Mode::Bench;
    let total = screen.total.filter(is_known)?;
    let done = screen.done.min(total);
    let part = done as f64 / total as f64;
    let mut after = StyledLine::new()
        .with(format!("  {}", format::count(done)), TextStyle::Bold)
        .text(format!(" of {}", format::count(total)));
    match screen.left() {
        _ if done == total => {}
        Some(left) => after.push(format!(" · {} left", format::roughly(left)), TextStyle::Plain),
        None => after.push(format!(" · {:.0} %", part * 100.0), TextStyle::Plain),
    }
    let mut line = label("steps");
    let look = if done == total { TextStyle::Green } else { TextStyle::Cyan };
    let room = room(width).min(width.saturating_sub(LABEL + after.width())).max(8);
    line.append(bar(room, &[(part, look)]));
    line.append(after);
    Some(line)
}

/// What goes wrong at the moment.
fn alarms(screen: &ProgressModel) -> Option<StyledLine> {
    let kinds: Vec<String> = screen.alarms.keys().map(|kind| kind.replace('_', " ")).collect();
    (!kinds.is_empty()).then(|| label("alarms").with(kinds.join(" · "), TextStyle::Red))
}

/// Returns a bar that is filled from the left, part by part.
fn bar(width: usize, parts: &[(f64, TextStyle)]) -> StyledLine {
    let mut line = StyledLine::new();
    let (mut sum, mut filled) = (0.0, 0);
    for (part, look) in parts {
        sum += part;
        let end = ((sum * width as f64).round() as usize).min(width);
        line.push("━".repeat(end - filled), *look);
        filled = end;
    }
    line.push("─".repeat(width - filled), TextStyle::Faint);
    line
}

/// What becomes of the steps in flight.
fn runs(screen: &ProgressModel, width: usize) -> StyledLine {
    let flight = &screen.flight;
    let Some(Beat { pending: waiting, running, .. }) = screen.beat else {
        let tasks = flight.values().map(|(tasks, _)| tasks).sum();
        let steps = format::counted(flight.len() as u64, "step");
        return label("tasks").text(format!("{} in flight, of {steps}", format::count(tasks)));
    };
    let (done, failed) = screen.ended();
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
    // Failures are rare, and news when they come.
    let is_shown = |(count, what, _): &(u64, &str, TextStyle)| *count > 0 || *what != "failed";
    let mut texts = list(counts.into_iter().filter(is_shown));
    if line.width() + texts.width() > width {
        // How many are running is also said by how many runners are busy.
        texts = list(counts.into_iter().filter(is_shown).filter(|(_, what, _)| *what != "running"));
    }
    line.append(texts);
    line
}

/// Returns counts with their words.
fn list(counts: impl Iterator<Item = (u64, &'static str, TextStyle)>) -> StyledLine {
    let mut line = StyledLine::new();
    for (at, (count, what, look)) in counts.enumerate() {
        line.push(if at > 0 { " · " } else { "" }, TextStyle::Faint);
        line.push(format::count(count), if count == 0 { TextStyle::Plain } else { look });
        line.push(format!(" {what}"), TextStyle::Plain);
    }
    line
}

/// Returns a bar before what it is about, or nothing if there is no room for both.
fn meter(width: usize, parts: &[(f64, TextStyle)]) -> StyledLine {
    if width < WIDE { StyledLine::new() } else { bar(room(width), parts).text("  ") }
}

/// Who works, and how fast.
fn runners(screen: &ProgressModel, width: usize) -> Option<StyledLine> {
    let Beat { runners, busy, .. } = screen.beat?;
    let mut line = label("runners");
    let part = f64::from(busy) / f64::from(runners.max(1));
    line.append(meter(width, &[(part, TextStyle::Magenta)]));
    line.push(
        format!("{} of {} busy", format::count(busy.into()), format::count(runners.into())),
        TextStyle::Plain,
    );
    if let Some(speed) = screen.speed() {
        line.push(" · ", TextStyle::Faint);
        line.push(format!("{} tokens/s", format::short(speed)), TextStyle::Plain);
    }
    Some(line)
}

/// Columns of bars and curves: all end below each other.
fn room(width: usize) -> usize {
    match width {
        // Few words stand beside them.
        ..WIDE => width.saturating_sub(LABEL + 28).clamp(12, 24),
        _ => width.saturating_sub(LABEL + 42).clamp(16, 40),
    }
}

/// Rewards and scores, over the same steps.
fn curves(screen: &ProgressModel, width: usize) -> Vec<Ranked> {
    let mut lines = Vec::new();
    if let Some((_, last)) = screen.rewards.last() {
        let mut line = curve(screen, "reward", &screen.rewards, TextStyle::Cyan, width);
        line.push(format::score(last), TextStyle::Bold);
        if let Some(trend) = screen.rewards.trend() {
            let (arrow, look) = arrow(trend);
            line.push(format!("  {arrow} {}", format::score(trend.abs())), look);
        }
        lines.push((2, line));
    }
    for (at, (set, scores)) in screen.evals.iter().enumerate() {
        if at == SETS {
            let more = format!("and {} more sets", screen.evals.len() - SETS);
            lines.push((8, label("").with(more, TextStyle::Faint)));
            break;
        }
        let name = if at == 0 { "held out" } else { "" };
        let mut line = curve(screen, name, scores, TextStyle::Green, width);
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

/// Begins a line with a curve.
pub(super) fn curve(
    screen: &ProgressModel,
    name: &str,
    series: &Series,
    look: TextStyle,
    width: usize,
) -> StyledLine {
    let (from, to) = screen.span();
    let room = room(width);
    let mut line = label(name).with(series.spark(from, to, room), look);
    line.pad(LABEL + room + 2);
    line
}

/// What the servers have, and how they got it.
fn weights(screen: &ProgressModel) -> Option<StyledLine> {
    let mut parts = Vec::new();
    if let Some(version) = screen.version {
        parts.push(format!("version {}", format::count(version)));
    }
    if let Some((waited, loading)) = screen.exchange {
        let mut part = format!("exchange {}", format::time(waited + loading));
        if waited > Duration::from_secs(1) && waited > loading * 2 {
            part += ", most of it waiting";
        }
        parts.push(part);
    }
    if let Some(step) = screen.trained {
        parts.push(format!("trainer step {}", format::count(step)));
    }
    let mut line = label("weights");
    for (at, part) in parts.iter().enumerate() {
        line.push(if at > 0 { " · " } else { "" }, TextStyle::Faint);
        line.push(part, TextStyle::Plain);
    }
    (!parts.is_empty()).then_some(line)
}
