//! State of `rollway top` and its response to keys. Has no clock and no terminal.

use std::cmp::Reverse;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rollway::view::{RunnerCounts, RunnerRow};

use super::client::{JobEnd, TopError, TopSnapshot};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunnerSort {
    /// Stuck runners first, otherwise as the job sorts them.
    #[default]
    Stuck,
    /// By time in the current state, longest first.
    Age,
    /// By batch, task and run.
    Work,
    Stage,
    Number,
}

impl RunnerSort {
    /// Names in the footer, in the order of the enum, which is also the order of the key `s`.
    const NAMES: [(Self, &str); 5] = [
        (Self::Stuck, "stuck first"),
        (Self::Age, "by age"),
        (Self::Work, "by work"),
        (Self::Stage, "by stage"),
        (Self::Number, "by number"),
    ];

    const fn next(self) -> Self {
        Self::NAMES[(self as usize + 1) % Self::NAMES.len()].0
    }

    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CancelTarget {
    pub batch: String,
    pub task: u32,
    pub run: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum InputMode {
    /// Keys move the cursor and give commands.
    #[default]
    Table,
    /// Keys edit the filter.
    Filter,
    /// The next key confirms or rejects a cancel.
    Confirm(CancelTarget),
    /// The help is shown; any key closes it.
    Help,
}

/// Action that a key requests from the event loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopAction {
    None,
    Quit,
    Cancel(CancelTarget),
}

#[derive(Clone, Debug, Default)]
pub struct TopModel {
    pub snapshot: TopSnapshot,
    /// Error of the last request. `None`: the snapshot is current.
    pub error: Option<String>,
    /// Result of the last action.
    pub notice: Option<String>,
    pub mode: InputMode,
    /// Text that shown runners contain.
    pub filter: String,
    pub sort: RunnerSort,
    /// Runner under the cursor; the cursor follows it when rows move.
    pub cursor: Option<u32>,
    pub first_row: usize,
    pub page_rows: usize,
}

impl TopModel {
    /// Applies a snapshot or the error of its request.
    pub fn on_snapshot(&mut self, snapshot: Result<TopSnapshot, TopError>) {
        match snapshot {
            Ok(snapshot) => {
                self.snapshot = snapshot;
                self.error = None;
            }
            Err(TopError::NoResponse(error)) => self.error = Some(error),
            Err(TopError::Ended(JobEnd { state, message })) => {
                let TopSnapshot { job, overview, runners } = &mut self.snapshot;
                (job.state, job.message) = (state, Some(message));
                (overview.wait, overview.runners) = (None, RunnerCounts::default());
                (overview.runs.running, overview.runs.pending) = (0, 0);
                overview.samples.clear();
                runners.clear();
                self.error = None;
            }
        }
        self.scroll_to_cursor();
    }

    /// Returns the filtered runners in order.
    pub fn rows(&self) -> Vec<&RunnerRow> {
        let filter = self.filter.to_lowercase();
        let matches =
            |runner: &&RunnerRow| filter.is_empty() || searchable_text(runner).contains(&filter);
        let mut rows: Vec<&RunnerRow> = self.snapshot.runners.iter().filter(matches).collect();
        match self.sort {
            RunnerSort::Stuck => rows.sort_by_key(|runner| !runner.stuck),
            RunnerSort::Number => rows.sort_by_key(|runner| runner.runner),
            RunnerSort::Age => rows.sort_by(|one, other| other.age.total_cmp(&one.age)),
            RunnerSort::Work => rows.sort_by_key(|runner| {
                let work = (runner.batch.clone(), runner.task, runner.run);
                (Reverse(runner.batch.is_some()), work)
            }),
            RunnerSort::Stage => rows.sort_by_key(|runner| {
                (Reverse(runner.stage.is_some()), runner.stage.clone(), runner.runner)
            }),
        }
        rows
    }

    pub fn cursor_index(&self, rows: &[&RunnerRow]) -> usize {
        let index = self.cursor.and_then(|cursor| rows.iter().position(|row| row.runner == cursor));
        index.unwrap_or(0)
    }

    pub fn resize(&mut self, page_rows: usize) {
        self.page_rows = page_rows.max(1);
        self.scroll_to_cursor();
    }

    pub fn on_key(&mut self, key: KeyEvent) -> TopAction {
        let code = match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return TopAction::Quit;
            }
            // Terminals send it for the backspace key, too.
            KeyCode::Char('h') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                KeyCode::Backspace
            }
            KeyCode::Char(_)
                if key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) =>
            {
                return TopAction::None;
            }
            code => code,
        };
        match &self.mode {
            InputMode::Table => return self.on_table_key(code),
            InputMode::Filter => self.on_filter_key(code),
            InputMode::Help => self.mode = InputMode::Table,
            InputMode::Confirm(target) => {
                let target = target.clone();
                self.mode = InputMode::Table;
                if code == KeyCode::Char('y') || code == KeyCode::Char('Y') {
                    return TopAction::Cancel(target);
                }
                self.notice = Some("nothing was cancelled".to_owned());
            }
        }
        TopAction::None
    }

    fn on_table_key(&mut self, code: KeyCode) -> TopAction {
        self.notice = None;
        match code {
            KeyCode::Char('q') => return TopAction::Quit,
            KeyCode::Esc if self.filter.is_empty() => return TopAction::Quit,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('h' | '?') => self.mode = InputMode::Help,
            KeyCode::Char('/') => self.mode = InputMode::Filter,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('c') => self.confirm_cancel(),
            KeyCode::Up | KeyCode::Char('k') => self.move_cursor(-1),
            KeyCode::Down | KeyCode::Char('j') => self.move_cursor(1),
            KeyCode::PageUp => self.move_cursor(-(self.page_rows as isize)),
            KeyCode::PageDown => self.move_cursor(self.page_rows as isize),
            KeyCode::Home => self.move_cursor(isize::MIN / 2),
            KeyCode::End => self.move_cursor(isize::MAX / 2),
            _ => {}
        }
        self.scroll_to_cursor();
        TopAction::None
    }

    fn on_filter_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char(c) => self.filter.push(c),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Enter => self.mode = InputMode::Table,
            KeyCode::Esc => {
                self.filter.clear();
                self.mode = InputMode::Table;
            }
            _ => {}
        }
        self.scroll_to_cursor();
    }

    /// Requests confirmation to cancel the run under the cursor.
    fn confirm_cancel(&mut self) {
        let rows = self.rows();
        let target = rows.get(self.cursor_index(&rows)).and_then(|runner| {
            let (batch, task, run) = (runner.batch.clone()?, runner.task?, runner.run?);
            Some(CancelTarget { batch, task, run })
        });
        match target {
            Some(target) => self.mode = InputMode::Confirm(target),
            None => self.notice = Some("this runner executes no run".to_owned()),
        }
    }

    fn move_cursor(&mut self, by: isize) {
        let rows = self.rows();
        let last = rows.len().saturating_sub(1) as isize;
        let index = (self.cursor_index(&rows) as isize).saturating_add(by).clamp(0, last);
        let cursor = rows.get(index as usize).map(|runner| runner.runner);
        self.cursor = cursor;
    }

    /// Scrolls so that the cursor is visible and no row of the page is left empty.
    fn scroll_to_cursor(&mut self) {
        let rows = self.rows();
        let (index, count) = (self.cursor_index(&rows), rows.len());
        let page = self.page_rows.max(1);
        let first = self.first_row.min(count.saturating_sub(page)).min(index);
        self.first_row = first.max((index + 1).saturating_sub(page));
    }
}

/// Returns the text that the filter is matched with, in lower case.
fn searchable_text(runner: &RunnerRow) -> String {
    let RunnerRow { batch, task, run, .. } = runner;
    let number = |number: &Option<u32>| number.map_or_else(String::new, |it| it.to_string());
    let work = format!("{}/{}/{}", batch.as_deref().unwrap_or(""), number(task), number(run));
    let texts = [&runner.location, &runner.stage, &runner.model, &runner.server, &runner.message];
    let texts: Vec<&str> = texts.into_iter().filter_map(|text| text.as_deref()).collect();
    format!("{} {} {work} {}", runner.runner, runner.state, texts.join(" ")).to_lowercase()
}
