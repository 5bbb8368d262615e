//! Columns of the runner table: content, style and width.

use rollway::view::RunnerRow;

use crate::styled_line::{TextStyle, width};

/// Column of the table.
pub(super) struct Column {
    pub(super) name: &'static str,
    /// Width to which wider content is cut first.
    preferred: usize,
    /// Width below which the column is not cut.
    min: usize,
    /// Columns with the highest rank are dropped first; 0: never.
    drop_rank: u8,
    pub(super) text: fn(&RunnerRow) -> String,
}

/// Columns from left to right.
pub(super) const COLUMNS: [Column; 9] = [
    Column { name: "runner", preferred: 7, min: 6, drop_rank: 0, text: number },
    Column { name: "state", preferred: 10, min: 5, drop_rank: 0, text: |one| one.state.clone() },
    Column { name: "for", preferred: 6, min: 5, drop_rank: 2, text: |one| elapsed(one.age) },
    Column { name: "work", preferred: 14, min: 6, drop_rank: 0, text: work },
    Column { name: "stage", preferred: 24, min: 12, drop_rank: 0, text: stage },
    Column { name: "since", preferred: 6, min: 5, drop_rank: 0, text: since },
    Column { name: "code", preferred: 24, min: 10, drop_rank: 1, text: code_location },
    Column { name: "model", preferred: 16, min: 6, drop_rank: 3, text: model },
    Column {
        name: "node",
        preferred: 10,
        min: 6,
        drop_rank: 4,
        text: |one| text_or_empty(&one.location),
    },
];

/// Returns the style of a cell. `is_cursor`: whether the cursor is in its row.
pub(super) fn cell_style(runner: &RunnerRow, column: &str, is_cursor: bool) -> TextStyle {
    match (column, runner.state.as_str()) {
        ("runner" | "stage" | "since", _) if runner.stuck => TextStyle::Red,
        ("state" | "stage", "broken") => TextStyle::Red,
        ("state", "cancelling" | "starting") => TextStyle::Yellow,
        ("state", "busy") => TextStyle::Green,
        (_, "idle" | "stopped") => TextStyle::Faint,
        _ if is_cursor => TextStyle::Bold,
        _ => TextStyle::Plain,
    }
}

/// Returns the width of each column; 0: the column is empty or does not fit.
pub(super) fn fit_columns(cells: &[Vec<String>], columns: usize) -> Vec<usize> {
    let mut widths: Vec<usize> = (0..COLUMNS.len())
        .map(|column| {
            let widest = cells.iter().map(|row| width(&row[column])).max().unwrap_or(0);
            if widest == 0 { 0 } else { widest.max(width(COLUMNS[column].name)) }
        })
        .collect();
    loop {
        let shown = widths.iter().filter(|wide| **wide > 0).count();
        let used = widths.iter().sum::<usize>() + 2 * shown.saturating_sub(1);
        if used <= columns {
            return widths;
        }
        let all = || (0..COLUMNS.len()).filter(|column| widths[*column] > 0);
        let wider = |than: fn(&Column) -> usize| {
            let over = |column: &usize| widths[*column].saturating_sub(than(&COLUMNS[*column]));
            all().filter(|column| over(column) > 0).max_by_key(over)
        };
        // Narrow columns above their preferred width, then drop columns, then narrow the others.
        let dropped = all()
            .filter(|column| COLUMNS[*column].drop_rank > 0)
            .max_by_key(|column| COLUMNS[*column].drop_rank);
        if let Some(wide) = wider(|column| column.preferred) {
            widths[wide] -= 1;
        } else if let Some(last) = dropped.filter(|column| can_narrow(*column, widths[*column])) {
            widths[last] -= 1;
        } else if let Some(dropped) = dropped {
            widths[dropped] = 0;
        } else if let Some(wide) = wider(|column| column.min) {
            widths[wide] -= 1;
        } else {
            return widths;
        }
    }
}

/// Returns whether a column is the last to be dropped and can be narrowed before.
fn can_narrow(column: usize, wide: usize) -> bool {
    COLUMNS[column].drop_rank == 1 && wide > COLUMNS[column].min
}

fn number(runner: &RunnerRow) -> String {
    format!("{}{}", runner.runner, if runner.stuck { " !" } else { "" })
}

fn work(runner: &RunnerRow) -> String {
    let number = |number: Option<u32>| number.map_or_else(|| "-".to_owned(), |it| it.to_string());
    match &runner.batch {
        Some(batch) => format!("{batch}/{}/{}", number(runner.task), number(runner.run)),
        None => String::new(),
    }
}

fn stage(runner: &RunnerRow) -> String {
    text_or_empty(if runner.stage.is_some() { &runner.stage } else { &runner.message })
}

fn since(runner: &RunnerRow) -> String {
    runner.stage_for.map(elapsed).unwrap_or_default()
}

/// Returns the code location without the folders of the file.
fn code_location(runner: &RunnerRow) -> String {
    let location = text_or_empty(&runner.code_location);
    let file = location.find(':').unwrap_or(0);
    let name = location[..file].rfind('/').map_or(0, |slash| slash + 1);
    location[name..].to_owned()
}

fn model(runner: &RunnerRow) -> String {
    match (&runner.model, &runner.server) {
        (model, Some(server)) => {
            format!("{} at {server}", text_or_empty(model)).trim_start().to_owned()
        }
        (model, None) => text_or_empty(model),
    }
}

fn text_or_empty(text: &Option<String>) -> String {
    text.clone().unwrap_or_default()
}

/// Returns a duration in seconds as a table shows it: `0.4s`, `12s`, `3m05s`, `2h10m`, `3d04h`.
pub(super) fn elapsed(seconds: f64) -> String {
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
