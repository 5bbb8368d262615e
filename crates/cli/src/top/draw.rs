//! The lines of `rollway top`, for a terminal of any size.

use rollway::view::{Beat, JobState, Runner};

use super::board::{Board, Mode, Target};
use crate::line::{Line, Look, width};
use crate::output::Size;
use crate::view::words::{count, short};

/// How far back the throughput reaches, in seconds.
const WINDOW: f64 = 30.0;

/// How many alarms are shown.
const ALARMS_MAX: usize = 3;

/// The keys, for those who ask.
const HELP: [(&str, &str); 9] = [
    ("up, down, k, j", "move the cursor"),
    ("page up, page down", "move by a page"),
    ("home, end", "to the first, to the last"),
    ("s", "another order: stuck, age, work, stage, number"),
    ("/", "only runners with these words; escape shows all"),
    ("c", "cancel the run under the cursor; it is asked first"),
    ("h, ?", "this"),
    ("q, escape, Ctrl-C", "quit"),
    ("", "! has been at one thing for much longer than others, or than it may."),
];

/// Returns the whole screen, as many lines as there are rows at most. Says the board how many rows
/// of the table are seen.
pub fn draw(board: &mut Board, size: Size) -> Vec<Line> {
    let mut lines = header(board);
    lines.push(Line::new());
    if board.mode == Mode::Help {
        lines.extend(HELP.iter().map(|(keys, what)| {
            let mut line = Line::new().with(format!("  {keys}"), Look::Bold);
            line.pad(if keys.is_empty() { 2 } else { 24 });
            line.text(*what)
        }));
        lines.push(Line::new().with("  any key goes back", Look::Faint));
    } else {
        // Headings and the last line need room too.
        let room = size.rows.saturating_sub(lines.len() + 2);
        board.resize(room);
        lines.extend(table(board, size.columns, Some(room)));
    }
    lines.truncate(size.rows.saturating_sub(1));
    while lines.len() + 1 < size.rows {
        lines.push(Line::new());
    }
    lines.push(footer(board));
    lines.into_iter().map(|line| line.fit(size.columns)).collect()
}

/// Returns everything once, for a file or a pipe.
pub fn once(board: &Board, columns: usize) -> Vec<Line> {
    let mut lines = header(board);
    lines.push(Line::new());
    lines.extend(table(board, columns, None));
    lines
}

/// Returns what there is to say about the job.
fn header(board: &Board) -> Vec<Line> {
    let (job, overview) = (&board.news.job, &board.news.overview);
    let mut first = Line::new().with(&job.name, Look::Bold);
    let (state, look) = match job.state {
        JobState::Running => ("running", Look::Green),
        JobState::Finished => ("finished", Look::Green),
        JobState::Failed => ("failed", Look::Red),
        JobState::Stopped => ("stopped", Look::Yellow),
        JobState::Unknown => ("unknown", Look::Yellow),
    };
    first = first.text("  ").with(state, look).text(format!("  {}", job.mode));
    let step = count(job.step);
    first.push(
        job.total_steps.map_or_else(
            || format!("  step {step}"),
            |total| format!("  step {step} of {}", count(total)),
        ),
        Look::Plain,
    );
    first.push(format!("  weights {}", job.version), Look::Faint);
    if let Some(started) = job.started {
        first.push(format!("  up {}", age(job.now - started)), Look::Faint);
    }
    let runs = &overview.runs;
    let total = |counts: &std::collections::BTreeMap<String, u64>| counts.values().sum::<u64>();
    let (failed, cancelled) = (total(&runs.failed), total(&runs.cancelled));
    let second = Line::new()
        .with("runs    ", Look::Faint)
        .with(format!("{} running", count(runs.running)), Look::Yellow)
        .text(format!("  {} waiting  ", count(runs.pending)))
        .with(format!("{} done", count(runs.succeeded)), Look::Green)
        .text("  ")
        .with(format!("{} failed", count(failed)), if failed > 0 { Look::Red } else { Look::Plain })
        .text(format!("  {} cancelled", count(cancelled)));
    let mut lines = vec![first, second, runners(board)];
    for alarm in overview.alarms.iter().take(ALARMS_MAX) {
        let words = format!("  {}", alarm.words);
        lines.push(Line::new().with("alarm ", Look::Red).text(words.trim_start()));
    }
    if let Some(message) = job.message.as_ref().filter(|message| !message.is_empty()) {
        lines.push(Line::new().with(message, Look::Yellow));
    }
    lines
}

fn runners(board: &Board) -> Line {
    let counts = &board.news.overview.runners;
    let stuck = board.news.runners.iter().filter(|runner| runner.stuck).count();
    let mut line = Line::new().with("runners ", Look::Faint);
    line.push(format!("{} busy", counts.busy), Look::Plain);
    if stuck > 0 {
        line.push(format!(" ({stuck} stuck)"), Look::Red);
    }
    line.push(format!("  {} idle", counts.idle), Look::Plain);
    let rest = [
        (counts.starting, "starting", Look::Plain),
        (counts.cancelling, "cancelling", Look::Yellow),
        (counts.broken, "broken", Look::Red),
        (counts.gone, "gone", Look::Plain),
    ];
    for (number, name, look) in rest.into_iter().filter(|(number, ..)| *number > 0) {
        line.push("  ", Look::Plain);
        line.push(format!("{number} {name}"), look);
    }
    if let Some((runs, tokens)) = speed(&board.news.overview.beats) {
        line.push(format!("   {runs:.1} runs/s  {} tokens/s", short(tokens)), Look::Plain);
    }
    line
}

/// Returns runs and tokens a second, lately.
fn speed(beats: &[Beat]) -> Option<(f64, f64)> {
    let last = beats.last()?;
    let first = beats.iter().find(|beat| beat.at >= last.at - WINDOW)?;
    let seconds = last.at - first.at;
    let more = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
    let runs = more(last.done + last.failed, first.done + first.failed);
    (seconds > 0.5).then(|| (runs, more(last.answer_tokens, first.answer_tokens)))
}

/// A column: its heading, how wide it is to be, the least it is cut to, and how soon it goes when
/// there is no room: first those with the highest number; 0: never.
struct Column {
    name: &'static str,
    good: usize,
    least: usize,
    goes: u8,
    show: fn(&Runner) -> String,
}

const COLUMNS: [Column; 9] = [
    Column { name: "runner", good: 7, least: 6, goes: 0, show: number },
    Column { name: "state", good: 10, least: 5, goes: 0, show: |one| one.state.clone() },
    Column { name: "for", good: 6, least: 5, goes: 2, show: |one| age(one.age) },
    Column { name: "work", good: 14, least: 6, goes: 0, show: work },
    Column { name: "stage", good: 24, least: 12, goes: 0, show: stage },
    Column { name: "since", good: 6, least: 5, goes: 0, show: since },
    Column { name: "place", good: 24, least: 10, goes: 1, show: place },
    Column { name: "model", good: 16, least: 6, goes: 3, show: model },
    Column { name: "node", good: 10, least: 6, goes: 4, show: |one| said(&one.node) },
];

/// Returns the rows of the table that are seen, or all, below their headings.
fn table(board: &Board, columns: usize, room: Option<usize>) -> Vec<Line> {
    let rows = board.rows();
    if rows.is_empty() {
        let words = match (board.news.runners.is_empty(), board.filter.is_empty()) {
            (true, _) => "no runners".to_owned(),
            (false, _) => format!("no runner has `{}`", board.filter),
        };
        return vec![Line::new().with(words, Look::Faint)];
    }
    let cursor = room.map(|_| board.position(&rows));
    let (top, most) = room.map_or((0, usize::MAX), |room| (board.top, room));
    let seen: Vec<&Runner> = rows.iter().skip(top).take(most).copied().collect();
    let cells: Vec<Vec<String>> =
        seen.iter().map(|runner| COLUMNS.iter().map(|it| (it.show)(runner)).collect()).collect();
    let widths = fit(&cells, columns.saturating_sub(2));
    let last = widths.iter().rposition(|wide| *wide > 0).unwrap_or(0);
    let mut head = Line::new().text("  ");
    for (column, (name, wide)) in COLUMNS.iter().map(|it| it.name).zip(&widths).enumerate() {
        if *wide > 0 {
            head.append(cell(name, *wide, Look::Faint, column == last));
        }
    }
    let mut lines = vec![head];
    for (at, (runner, row)) in seen.iter().zip(&cells).enumerate() {
        let here = cursor == Some(top + at);
        let mut line = Line::new().with(if here { "> " } else { "  " }, Look::Cyan);
        for (column, (text, wide)) in row.iter().zip(&widths).enumerate() {
            if *wide > 0 {
                let look = look(runner, COLUMNS[column].name, here);
                line.append(cell(text, *wide, look, column == last));
            }
        }
        lines.push(line);
    }
    lines
}

fn cell(text: &str, wide: usize, look: Look, is_last: bool) -> Line {
    let mut line = Line::new().with(text, look).fit(wide);
    if !is_last {
        line.pad(wide + 2);
    }
    line
}

fn look(runner: &Runner, column: &str, here: bool) -> Look {
    match (column, runner.state.as_str()) {
        ("runner" | "stage" | "since", _) if runner.stuck => Look::Red,
        ("state" | "stage", "broken") => Look::Red,
        ("state", "cancelling" | "starting") => Look::Yellow,
        ("state", "busy") => Look::Green,
        (_, "idle" | "gone") => Look::Faint,
        _ if here => Look::Bold,
        _ => Look::Plain,
    }
}

/// Returns how wide every column is; 0: there is no room for it, or nothing in it.
fn fit(cells: &[Vec<String>], columns: usize) -> Vec<usize> {
    let mut widths: Vec<usize> = (0..COLUMNS.len())
        .map(|at| {
            let widest = cells.iter().map(|row| width(&row[at])).max().unwrap_or(0);
            if widest == 0 { 0 } else { widest.max(width(COLUMNS[at].name)) }
        })
        .collect();
    loop {
        let shown = widths.iter().filter(|wide| **wide > 0).count();
        let taken = widths.iter().sum::<usize>() + 2 * shown.saturating_sub(1);
        if taken <= columns {
            return widths;
        }
        let all = || (0..COLUMNS.len()).filter(|at| widths[*at] > 0);
        let wider = |than: fn(&Column) -> usize| {
            let over = |at: &usize| widths[*at].saturating_sub(than(&COLUMNS[*at]));
            all().filter(|at| over(at) > 0).max_by_key(over)
        };
        // What is unusually wide is cut first. Then columns go, and what is left is cut further.
        let goes = all().filter(|at| COLUMNS[*at].goes > 0).max_by_key(|at| COLUMNS[*at].goes);
        if let Some(wide) = wider(|column| column.good) {
            widths[wide] -= 1;
        } else if let Some(last) = goes.filter(|at| last_to_go(*at, widths[*at])) {
            widths[last] -= 1;
        } else if let Some(goes) = goes {
            widths[goes] = 0;
        } else if let Some(wide) = wider(|column| column.least) {
            widths[wide] -= 1;
        } else {
            return widths;
        }
    }
}

/// Tells whether a column is the last that goes, and can be cut before.
fn last_to_go(at: usize, wide: usize) -> bool {
    COLUMNS[at].goes == 1 && wide > COLUMNS[at].least
}

fn number(runner: &Runner) -> String {
    format!("{}{}", runner.runner, if runner.stuck { " !" } else { "" })
}

fn work(runner: &Runner) -> String {
    let number = |number: Option<u32>| number.map_or_else(|| "-".to_owned(), |it| it.to_string());
    match &runner.batch {
        Some(batch) => format!("{batch}/{}/{}", number(runner.task), number(runner.run)),
        None => String::new(),
    }
}

fn stage(runner: &Runner) -> String {
    said(if runner.stage.is_some() { &runner.stage } else { &runner.message })
}

fn since(runner: &Runner) -> String {
    runner.stage_for.map(age).unwrap_or_default()
}

/// Returns where it is, without the folders of the file.
fn place(runner: &Runner) -> String {
    let place = said(&runner.place);
    let file = place.find(':').unwrap_or(0);
    let name = place[..file].rfind('/').map_or(0, |slash| slash + 1);
    place[name..].to_owned()
}

fn model(runner: &Runner) -> String {
    match (&runner.model, &runner.server) {
        (model, Some(server)) => format!("{} at {server}", said(model)).trim_start().to_owned(),
        (model, None) => said(model),
    }
}

fn said(text: &Option<String>) -> String {
    text.clone().unwrap_or_default()
}

/// Returns seconds in short: `0.4s`, `12s`, `3m05s`, `2h10m`, `3d04h`.
fn age(seconds: f64) -> String {
    if seconds < 9.95 {
        return format!("{:.1}s", seconds.max(0.0));
    }
    match seconds as u64 {
        whole @ 0..60 => format!("{whole}s"),
        whole @ 60..3600 => format!("{}m{:02}s", whole / 60, whole % 60),
        whole @ 3600..86_400 => format!("{}h{:02}m", whole / 3600, whole % 3600 / 60),
        whole => format!("{}d{:02}h", whole / 86_400, whole % 86_400 / 3600),
    }
}

/// Returns the last line: what is asked, typed or possible.
fn footer(board: &Board) -> Line {
    match &board.mode {
        Mode::Confirm(Target { batch, task, run }) => Line::new()
            .with(format!("cancel run {run} of task {task} of batch {batch}? "), Look::Red)
            .with("y", Look::Bold)
            .text(" cancels it, any other key does not"),
        Mode::Filter => Line::new().with("/", Look::Bold).text(&board.filter).text("_"),
        Mode::Table | Mode::Help => {
            if let Some(trouble) = &board.trouble {
                return Line::new().with(trouble, Look::Red);
            }
            if let Some(note) = &board.note {
                return Line::new().with(note, Look::Yellow);
            }
            let rows = board.rows().len();
            let mut line = Line::new().with("q", Look::Bold).text(" quit  ");
            line = line.with("c", Look::Bold).text(" cancel  ").with("/", Look::Bold);
            line = line.text(" filter  ").with("s", Look::Bold);
            line = line.text(format!(" {}  ", board.order.name())).with("h", Look::Bold);
            line = line.text(" help");
            if board.top > 0 || board.top + board.page < rows {
                let last = (board.top + board.page).min(rows);
                line.push(format!("   {}-{last} of {rows}", board.top + 1), Look::Faint);
            }
            if !board.filter.is_empty() {
                line.push(format!("   only `{}`", board.filter), Look::Cyan);
            }
            line
        }
    }
}
