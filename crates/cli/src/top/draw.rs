//! Layout of `rollway top` for any terminal size.

use ratatui::Frame;
use ratatui::text::{Line, Text};
use rollway::view::{JobState, RunnerRow, StatsSample};

use super::columns::{COLUMNS, cell_style, elapsed, fit_columns};
use super::model::{CancelTarget, InputMode, TopModel};
use crate::progress::format::{count, short};
use crate::styled_line::{StyledLine, TextStyle, sanitize};

/// Seconds that the throughput is averaged over.
const THROUGHPUT_WINDOW: f64 = 30.0;

/// Maximum number of alarms in the header.
const MAX_ALARMS: usize = 3;

/// Help: keys and their effect.
const HELP: [(&str, &str); 9] = [
    ("up, down, k, j", "move the cursor"),
    ("page up, page down", "move by a page"),
    ("home, end", "to the first, to the last"),
    ("s", "change the order: stuck, age, work, stage, number"),
    ("/", "filter runners by text; escape shows all"),
    ("c", "cancel the run under the cursor, after a confirmation"),
    ("h, ?", "this help"),
    ("q, escape, Ctrl-C", "quit"),
    ("", "! stuck: in one stage much longer than typical, or than half of its timeout."),
];

/// Renders the screen: header, table or help, and footer.
pub fn render(model: &mut TopModel, frame: &mut Frame<'_>, colors: bool) {
    let area = frame.area();
    let lines = screen(model, area.width.into(), area.height.into());
    let lines: Vec<Line<'_>> = lines.iter().map(|line| line.to_ratatui(colors)).collect();
    frame.render_widget(Text::from(lines), area);
}

/// Returns the lines of the screen and sets the model's number of visible rows.
fn screen(model: &mut TopModel, columns: usize, rows: usize) -> Vec<StyledLine> {
    let mut lines = header(model);
    lines.push(StyledLine::new());
    if model.mode == InputMode::Help {
        lines.extend(HELP.iter().map(|(keys, effect)| {
            let mut line = StyledLine::new().with(format!("  {keys}"), TextStyle::Bold);
            line.pad(if keys.is_empty() { 2 } else { 24 });
            line.text(*effect)
        }));
        lines.push(StyledLine::new().with("  any key closes the help", TextStyle::Faint));
    } else {
        let heading_and_footer = 2;
        let page_rows = rows.saturating_sub(lines.len() + heading_and_footer);
        model.resize(page_rows);
        lines.extend(table(model, columns, Some(page_rows)));
    }
    lines.resize(rows.saturating_sub(1), StyledLine::new());
    lines.push(footer(model));
    lines.into_iter().map(|line| line.fit(columns)).collect()
}

/// Returns header and all rows of the table, for a file or a pipe.
pub fn full_table(model: &TopModel, columns: usize) -> Vec<StyledLine> {
    let mut lines = header(model);
    lines.push(StyledLine::new());
    lines.extend(table(model, columns, None));
    lines
}

/// Returns state, counts and alarms of the job.
fn header(model: &TopModel) -> Vec<StyledLine> {
    let (job, overview) = (&model.snapshot.job, &model.snapshot.overview);
    let mut first = StyledLine::new().with(&job.name, TextStyle::Bold);
    let (state, style) = match job.state {
        JobState::Running => ("running", TextStyle::Green),
        JobState::Finished => ("finished", TextStyle::Green),
        JobState::Failed => ("failed", TextStyle::Red),
        JobState::Stopped => ("stopped", TextStyle::Yellow),
        JobState::Unknown => ("unknown", TextStyle::Yellow),
    };
    first = first.text("  ").with(state, style).text(format!("  {}", job.mode));
    let step = count(job.step);
    first.push(
        job.total_steps.map_or_else(
            || format!("  step {step}"),
            |total| format!("  step {step} of {}", count(total)),
        ),
        TextStyle::Plain,
    );
    first.push(format!("  weights {}", job.version), TextStyle::Faint);
    if let Some(started) = job.started {
        first.push(format!("  up {}", elapsed(job.now - started)), TextStyle::Faint);
    }
    let runs = &overview.runs;
    let total = |counts: &std::collections::BTreeMap<String, u64>| counts.values().sum::<u64>();
    let (failed, cancelled) = (total(&runs.failed), total(&runs.cancelled));
    let second = StyledLine::new()
        .with("runs    ", TextStyle::Faint)
        .with(format!("{} running", count(runs.running)), TextStyle::Yellow)
        .text(format!("  {} waiting  ", count(runs.pending)))
        .with(format!("{} done", count(runs.succeeded)), TextStyle::Green)
        .text("  ")
        .with(
            format!("{} failed", count(failed)),
            if failed > 0 { TextStyle::Red } else { TextStyle::Plain },
        )
        .text(format!("  {} cancelled", count(cancelled)));
    let mut lines = vec![first, second, runners(model)];
    if let Some(wait) = &overview.wait {
        let lasts = elapsed(job.now - wait.since);
        let text = format!("{} (for {lasts}); {}", wait.message, wait.remedy);
        lines.push(StyledLine::new().with("waiting ", TextStyle::Yellow).text(text));
    }
    for alarm in overview.alarms.iter().take(MAX_ALARMS) {
        lines.push(StyledLine::new().with("alarm ", TextStyle::Red).text(&alarm.message));
    }
    if let Some(message) = job.message.as_ref().filter(|message| !message.is_empty()) {
        lines.push(StyledLine::new().with(message, TextStyle::Yellow));
    }
    lines
}

fn runners(model: &TopModel) -> StyledLine {
    let counts = &model.snapshot.overview.runners;
    let stuck = model.snapshot.runners.iter().filter(|runner| runner.stuck).count();
    let mut line = StyledLine::new().with("runners ", TextStyle::Faint);
    line.push(format!("{} busy", counts.busy), TextStyle::Plain);
    if stuck > 0 {
        line.push(format!(" ({stuck} stuck)"), TextStyle::Red);
    }
    line.push(format!("  {} idle", counts.idle), TextStyle::Plain);
    let rest = [
        (counts.starting, "starting", TextStyle::Plain),
        (counts.cancelling, "cancelling", TextStyle::Yellow),
        (counts.broken, "broken", TextStyle::Red),
        (counts.stopped, "stopped", TextStyle::Plain),
    ];
    for (number, name, style) in rest.into_iter().filter(|(number, ..)| *number > 0) {
        line.push("  ", TextStyle::Plain);
        line.push(format!("{number} {name}"), style);
    }
    if let Some((runs, tokens)) = throughput(&model.snapshot.overview.samples) {
        line.push(format!("   {runs:.1} runs/s  {} tokens/s", short(tokens)), TextStyle::Plain);
    }
    line
}

/// Returns current runs and tokens per second.
fn throughput(samples: &[StatsSample]) -> Option<(f64, f64)> {
    let last = samples.last()?;
    let first = samples.iter().find(|beat| beat.at >= last.at - THROUGHPUT_WINDOW)?;
    let seconds = last.at - first.at;
    let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
    let runs = rate(last.done + last.failed, first.done + first.failed);
    (seconds > 0.5).then(|| (runs, rate(last.answer_tokens, first.answer_tokens)))
}

/// Returns the heading and the visible rows of the table, or all of them.
fn table(model: &TopModel, columns: usize, page_rows: Option<usize>) -> Vec<StyledLine> {
    let rows = model.rows();
    if rows.is_empty() {
        let text = match (model.snapshot.runners.is_empty(), model.filter.is_empty()) {
            (true, _) => "no runners".to_owned(),
            (false, _) => format!("no runner matches `{}`", model.filter),
        };
        return vec![StyledLine::new().with(text, TextStyle::Faint)];
    }
    let cursor = page_rows.map(|_| model.cursor_index(&rows));
    let (first, count) = page_rows.map_or((0, usize::MAX), |count| (model.first_row, count));
    let visible: Vec<&RunnerRow> = rows.iter().skip(first).take(count).copied().collect();
    let cells: Vec<Vec<String>> = visible
        .iter()
        .map(|runner| COLUMNS.iter().map(|it| sanitize(&(it.text)(runner))).collect())
        .collect();
    let widths = fit_columns(&cells, columns.saturating_sub(2));
    let last = widths.iter().rposition(|wide| *wide > 0).unwrap_or(0);
    let mut heading = StyledLine::new().text("  ");
    for (column, (name, wide)) in COLUMNS.iter().map(|it| it.name).zip(&widths).enumerate() {
        if *wide > 0 {
            heading.append(cell(name, *wide, TextStyle::Faint, column == last));
        }
    }
    let mut lines = vec![heading];
    for (index, (runner, row)) in visible.iter().zip(&cells).enumerate() {
        let is_cursor = cursor == Some(first + index);
        let mut line = StyledLine::new().with(if is_cursor { "> " } else { "  " }, TextStyle::Cyan);
        for (column, (text, wide)) in row.iter().zip(&widths).enumerate() {
            if *wide > 0 {
                let style = cell_style(runner, COLUMNS[column].name, is_cursor);
                line.append(cell(text, *wide, style, column == last));
            }
        }
        lines.push(line);
    }
    lines
}

fn cell(text: &str, wide: usize, style: TextStyle, is_last: bool) -> StyledLine {
    let mut line = StyledLine::new().with(text, style).fit(wide);
    if !is_last {
        line.pad(wide + 2);
    }
    line
}

/// Returns the last line: a confirmation, the filter, an error, a notice or the keys.
fn footer(model: &TopModel) -> StyledLine {
    match &model.mode {
        InputMode::Confirm(CancelTarget { batch, task, run }) => StyledLine::new()
            .with(format!("cancel run {run} of task {task} of batch {batch}? "), TextStyle::Red)
            .with("y", TextStyle::Bold)
            .text(" cancels it, any other key does not"),
        InputMode::Filter => {
            StyledLine::new().with("/", TextStyle::Bold).text(&model.filter).text("_")
        }
        InputMode::Table | InputMode::Help => {
            if let Some(error) = &model.error {
                return StyledLine::new().with(error, TextStyle::Red);
            }
            if let Some(notice) = &model.notice {
                return StyledLine::new().with(notice, TextStyle::Yellow);
            }
            let rows = model.rows().len();
            let mut line = StyledLine::new().with("q", TextStyle::Bold).text(" quit  ");
            line = line.with("c", TextStyle::Bold).text(" cancel  ").with("/", TextStyle::Bold);
            line = line.text(" filter  ").with("s", TextStyle::Bold);
            line = line.text(format!(" {}  ", model.sort.name())).with("h", TextStyle::Bold);
            line = line.text(" help");
            if model.first_row > 0 || model.first_row + model.page_rows < rows {
                let last = (model.first_row + model.page_rows).min(rows);
                line.push(format!("   {}-{last} of {rows}", model.first_row + 1), TextStyle::Faint);
            }
            if !model.filter.is_empty() {
                line.push(format!("   only `{}`", model.filter), TextStyle::Cyan);
            }
            line
        }
    }
}

#[cfg(test)]
mod tests {
    use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::style::Color;

    use super::*;
    use crate::top::client::TopSnapshot;
    use crate::top::model::TopAction;

    fn model(runners: u32) -> TopModel {
        let mut snapshot = TopSnapshot::default();
        snapshot.job.name = "arithmetic".to_owned();
        snapshot.runners = (0..runners)
            .map(|runner| RunnerRow {
                runner,
                state: "busy".to_owned(),
                stuck: runner == 7,
                age: f64::from(runner),
                batch: Some("12/eval".to_owned()),
                task: Some(runner),
                run: Some(2),
                stage: Some(format!("stage of\n{runner}")),
                ..RunnerRow::default()
            })
            .collect();
        let mut model = TopModel::default();
        model.on_snapshot(Ok(snapshot));
        model
    }

    fn press(model: &mut TopModel, code: KeyCode) -> TopAction {
        model.on_key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn type_text(model: &mut TopModel, text: &str) {
        for c in text.chars() {
            assert_eq!(press(model, KeyCode::Char(c)), TopAction::None);
        }
    }

    /// Renders into a terminal and returns its rows.
    fn rows(terminal: &mut Terminal<TestBackend>, model: &mut TopModel) -> Vec<String> {
        terminal.draw(|frame| render(model, frame, true)).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |row: &[ratatui::buffer::Cell]| row.iter().map(|cell| cell.symbol()).collect();
        let columns = usize::from(buffer.area.width).max(1);
        let rows: Vec<String> = buffer.content.chunks(columns).map(row).collect();
        rows.iter().map(|row| row.trim_end().to_owned()).collect()
    }

    #[test]
    fn stuck_runner_is_first_marked_and_red() {
        let mut terminal = Terminal::new(TestBackend::new(80, 10)).unwrap();
        let mut model = model(20);
        let rows = rows(&mut terminal, &mut model);
        assert!(rows[0].starts_with("arithmetic"), "{rows:#?}");
        assert_eq!(rows[4], "  runner  state  for   work         stage", "{rows:#?}");
        assert_eq!(rows[5], "> 7 !     busy   7.0s  12/eval/7/2  stage of 7", "{rows:#?}");
        assert!(rows[9].contains("stuck first") && rows[9].ends_with("1-4 of 20"), "{rows:#?}");
        assert_eq!(terminal.backend().buffer()[(2, 5)].fg, Color::Red);
        assert!(!terminal.backend().cursor_visible());
    }

    #[test]
    fn keys_scroll_sort_filter_and_cancel_after_confirmation() {
        let mut terminal = Terminal::new(TestBackend::new(80, 10)).unwrap();
        let mut model = model(20);
        rows(&mut terminal, &mut model);
        press(&mut model, KeyCode::End);
        let shown = rows(&mut terminal, &mut model);
        assert!(shown[8].starts_with("> 19 "), "{shown:#?}");
        assert!(shown[9].ends_with("17-20 of 20"), "{shown:#?}");
        type_text(&mut model, "s");
        press(&mut model, KeyCode::Home);
        let shown = rows(&mut terminal, &mut model);
        assert!(shown[5].contains(" 19 ") && shown[9].contains("by age"), "{shown:#?}");
        type_text(&mut model, "/eval/13");
        let shown = rows(&mut terminal, &mut model);
        assert_eq!(shown[9], "/eval/13_", "{shown:#?}");
        press(&mut model, KeyCode::Enter);
        type_text(&mut model, "c");
        let shown = rows(&mut terminal, &mut model);
        assert!(shown[9].starts_with("cancel run 2 of task 13 of batch 12/eval?"), "{shown:#?}");
        type_text(&mut model, "n");
        let shown = rows(&mut terminal, &mut model);
        assert_eq!(shown[9], "nothing was cancelled", "{shown:#?}");
        type_text(&mut model, "c");
        let target = CancelTarget { batch: "12/eval".to_owned(), task: 13, run: 2 };
        assert_eq!(press(&mut model, KeyCode::Char('y')), TopAction::Cancel(target));
        type_text(&mut model, "h");
        let shown = rows(&mut terminal, &mut model);
        assert!(shown.iter().any(|row| row.contains("page up, page down")), "{shown:#?}");
        press(&mut model, KeyCode::Esc);
        press(&mut model, KeyCode::Esc);
        assert_eq!(rows(&mut terminal, &mut model)[9].matches("only").count(), 0);
        assert_eq!(press(&mut model, KeyCode::Esc), TopAction::Quit);
        let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(model.on_key(ctrl_c), TopAction::Quit);
    }

    #[test]
    fn every_terminal_size_is_filled_and_keeps_its_footer() {
        let mut terminal = Terminal::new(TestBackend::new(80, 10)).unwrap();
        let mut model = model(20);
        for columns in [1, 7, 20, 39, 60, 120] {
            for height in [1, 2, 5, 9, 40] {
                terminal.backend_mut().resize(columns, height);
                let rows = rows(&mut terminal, &mut model);
                assert_eq!(rows.len(), usize::from(height));
                assert!(rows[rows.len() - 1].starts_with(['q', '…']), "{columns}: {rows:#?}");
                if columns >= 20 && height >= 9 {
                    assert!(rows[5].starts_with("> 7 !"), "{columns} × {height}: {rows:#?}");
                }
            }
        }
    }
}
