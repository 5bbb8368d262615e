//! The live view as lines: from a screen and a size, and nothing else.

use std::time::Duration;

use rollway::config::Mode;
use rollway::explorer::Beat;

use super::screen::Screen;
use super::series::Series;
use super::summary::arrow;
use super::words;
use crate::line::{Line, Look, width as width_of};
use crate::output::Size;

/// Columns of the labels, with what stands before them.
pub(super) const LABEL: usize = 12;

/// The narrowest terminal that lines are made for; narrower ones cut them.
const NARROW: usize = 40;

/// From here on there is room for bars and words in one line.
const WIDE: usize = 70;

/// Sets whose curves are shown.
const SETS: usize = 3;

/// A line, and how gladly it is left out when there are too few rows.
type Ranked = (u8, Line);

/// Returns the lines of the view, no wider and no more than fit.
pub fn draw(screen: &Screen, size: Size) -> Vec<Line> {
    // The last column stays free: some terminals break a line that fills it.
    let width = size.columns.saturating_sub(1).max(NARROW);
    let mut lines: Vec<Ranked> = vec![(9, Line::new()), (0, header(screen, width))];
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
pub(super) fn label(text: &str) -> Line {
    let mut line = Line::new().with(format!("   {text}"), Look::Faint);
    line.pad(LABEL);
    line
}

/// A turning mark, the job's name, and the time.
fn header(screen: &Screen, width: usize) -> Line {
    const TURNS: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
    let turn = TURNS[(screen.now.as_millis() / 125 % 10) as usize];
    let title = &screen.title;
    let what = match screen.has_begun {
        true => words::mode(title.mode),
        false => "getting ready",
    };
    let clock = words::clock(screen.now);
    let room = width.saturating_sub(clock.len() + 2);
    let name = Line::new().with(format!(" {turn} "), Look::Cyan).with(&title.name, Look::Bold);
    // A long name takes the place of the model before it is cut itself.
    let mut line = name.fit(room.saturating_sub(what.len() + 2));
    line.push(format!("  {what}"), Look::Faint);
    let model = format!(" · {}", title.model);
    if line.width() + width_of(&model) <= room {
        line.push(model, Look::Faint);
    }
    line.pad(width - clock.len());
    line.with(clock, Look::Faint)
}

/// How far the job is.
fn steps(screen: &Screen, width: usize) -> Option<Line> {
    let is_known = |total: &u64| *total > 0 && screen.title.mode != Mode::Bench;
    let total = screen.total.filter(is_known)?;
    let done = screen.done.min(total);
    let part = done as f64 / total as f64;
    let mut after = Line::new()
        .with(format!("  {}", words::count(done)), Look::Bold)
        .text(format!(" of {}", words::count(total)));
    match screen.left() {
        _ if done == total => {}
        Some(left) => after.push(format!(" · {} left", words::roughly(left)), Look::Plain),
        None => after.push(format!(" · {:.0} %", part * 100.0), Look::Plain),
    }
    let mut line = label("steps");
    let look = if done == total { Look::Green } else { Look::Cyan };
    let room = room(width).min(width.saturating_sub(LABEL + after.width())).max(8);
    line.append(bar(room, &[(part, look)]));
    line.append(after);
    Some(line)
}

/// What goes wrong at the moment.
fn alarms(screen: &Screen) -> Option<Line> {
    let kinds: Vec<String> = screen.alarms.keys().map(|kind| kind.replace('_', " ")).collect();
    (!kinds.is_empty()).then(|| label("alarms").with(kinds.join(" · "), Look::Red))
}

/// Returns a bar that is filled from the left, part by part.
fn bar(width: usize, parts: &[(f64, Look)]) -> Line {
    let mut line = Line::new();
    let (mut sum, mut filled) = (0.0, 0);
    for (part, look) in parts {
        sum += part;
        let end = ((sum * width as f64).round() as usize).min(width);
        line.push("━".repeat(end - filled), *look);
        filled = end;
    }
    line.push("─".repeat(width - filled), Look::Faint);
    line
}

/// What becomes of the steps in flight.
fn runs(screen: &Screen, width: usize) -> Line {
    let flight = &screen.flight;
    let Some(Beat { pending: waiting, running, .. }) = screen.beat else {
        let tasks = flight.values().map(|(tasks, _)| tasks).sum();
        let steps = words::counted(flight.len() as u64, "step");
        return label("tasks").text(format!("{} in flight, of {steps}", words::count(tasks)));
    };
    let (done, failed) = screen.ended();
    let all = (waiting + running + done + failed).max(1) as f64;
    let part = |count: u64| count as f64 / all;
    let parts =
        [(part(done), Look::Green), (part(failed), Look::Red), (part(running), Look::Yellow)];
    let mut line = label("runs");
    line.append(meter(width, &parts));
    let counts = [
        (done, "done", Look::Green),
        (failed, "failed", Look::Red),
        (running, "running", Look::Yellow),
        (waiting, "waiting", Look::Plain),
    ];
    // Failures are rare, and news when they come.
    let is_shown = |(count, what, _): &(u64, &str, Look)| *count > 0 || *what != "failed";
    let mut texts = list(counts.into_iter().filter(is_shown));
    if line.width() + texts.width() > width {
        // How many are running is also said by how many runners are busy.
        texts = list(counts.into_iter().filter(is_shown).filter(|(_, what, _)| *what != "running"));
    }
    line.append(texts);
    line
}

/// Returns counts with their words.
fn list(counts: impl Iterator<Item = (u64, &'static str, Look)>) -> Line {
    let mut line = Line::new();
    for (at, (count, what, look)) in counts.enumerate() {
        line.push(if at > 0 { " · " } else { "" }, Look::Faint);
        line.push(words::count(count), if count == 0 { Look::Plain } else { look });
        line.push(format!(" {what}"), Look::Plain);
    }
    line
}

/// Returns a bar before what it is about, or nothing if there is no room for both.
fn meter(width: usize, parts: &[(f64, Look)]) -> Line {
    if width < WIDE { Line::new() } else { bar(room(width), parts).text("  ") }
}

/// Who works, and how fast.
fn runners(screen: &Screen, width: usize) -> Option<Line> {
    let Beat { runners, busy, .. } = screen.beat?;
    let mut line = label("runners");
    let part = f64::from(busy) / f64::from(runners.max(1));
    line.append(meter(width, &[(part, Look::Magenta)]));
    line.push(
        format!("{} of {} busy", words::count(busy.into()), words::count(runners.into())),
        Look::Plain,
    );
    if let Some(speed) = screen.speed() {
        line.push(" · ", Look::Faint);
        line.push(format!("{} tokens/s", words::short(speed)), Look::Plain);
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
fn curves(screen: &Screen, width: usize) -> Vec<Ranked> {
    let mut lines = Vec::new();
    if let Some((_, last)) = screen.rewards.last() {
        let mut line = curve(screen, "reward", &screen.rewards, Look::Cyan, width);
        line.push(words::score(last), Look::Bold);
        if let Some(trend) = screen.rewards.trend() {
            let (arrow, look) = arrow(trend);
            line.push(format!("  {arrow} {}", words::score(trend.abs())), look);
        }
        lines.push((2, line));
    }
    for (at, (set, scores)) in screen.evals.iter().enumerate() {
        if at == SETS {
            let more = format!("and {} more sets", screen.evals.len() - SETS);
            lines.push((8, label("").with(more, Look::Faint)));
            break;
        }
        let name = if at == 0 { "held out" } else { "" };
        let mut line = curve(screen, name, scores, Look::Green, width);
        let (Some((_, first)), Some((_, last))) = (scores.first(), scores.last()) else { continue };
        if scores.first() != scores.last() {
            line.push(format!("{} → ", words::score(first)), Look::Plain);
        }
        line.push(words::score(last), Look::Bold);
        line.push(format!("  {set}"), Look::Faint);
        lines.push((if at == 0 { 3 } else { 7 }, line));
    }
    lines
}

/// Begins a line with a curve.
pub(super) fn curve(
    screen: &Screen,
    name: &str,
    series: &Series,
    look: Look,
    width: usize,
) -> Line {
    let (from, to) = screen.span();
    let room = room(width);
    let mut line = label(name).with(series.spark(from, to, room), look);
    line.pad(LABEL + room + 2);
    line
}

/// What the servers have, and how they got it.
fn weights(screen: &Screen) -> Option<Line> {
    let mut parts = Vec::new();
    if let Some(version) = screen.version {
        parts.push(format!("version {}", words::count(version)));
    }
    if let Some((waited, loading)) = screen.exchange {
        let mut part = format!("exchange {}", words::time(waited + loading));
        if waited > Duration::from_secs(1) && waited > loading * 2 {
            part += ", most of it waiting";
        }
        parts.push(part);
    }
    if let Some(step) = screen.trained {
        parts.push(format!("trainer step {}", words::count(step)));
    }
    let mut line = label("weights");
    for (at, part) in parts.iter().enumerate() {
        line.push(if at > 0 { " · " } else { "" }, Look::Faint);
        line.push(part, Look::Plain);
    }
    (!parts.is_empty()).then_some(line)
}
