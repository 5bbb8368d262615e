//! What `rollway top` shows, and what keys do to it. Has no clock and no terminal.

use std::cmp::Reverse;

use rollway::view::Runner;

use super::ask::News;
use super::keys::Key;

/// In which order runners are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Those that are stuck first, then those that are longest at it.
    #[default]
    Stuck,
    /// By number.
    Number,
    /// Those that are longest in their state first.
    Age,
    /// By what they work on.
    Work,
    /// By what they are at.
    Stage,
}

impl Order {
    const fn next(self) -> Self {
        match self {
            Self::Stuck => Self::Age,
            Self::Age => Self::Work,
            Self::Work => Self::Stage,
            Self::Stage => Self::Number,
            Self::Number => Self::Stuck,
        }
    }

    /// Returns it in words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stuck => "stuck first",
            Self::Number => "by number",
            Self::Age => "by age",
            Self::Work => "by work",
            Self::Stage => "by stage",
        }
    }
}

/// A run that somebody wants to cancel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its batch.
    pub batch: String,
    /// Its task.
    pub task: u32,
    /// Its number.
    pub run: u32,
}

/// What the last line is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The table.
    #[default]
    Table,
    /// A filter is typed.
    Filter,
    /// It is asked whether a run is to be cancelled.
    Confirm(Target),
    /// The keys are explained.
    Help,
}

/// What is to be done about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Nothing but draw.
    None,
    /// End.
    Quit,
    /// Cancel a run.
    Cancel(Target),
}

/// What is shown.
#[derive(Clone, Debug, Default)]
pub struct Board {
    /// What the job said last.
    pub news: News,
    /// What is wrong with that, if anything is.
    pub trouble: Option<String>,
    /// What became of the last deed.
    pub note: Option<String>,
    /// What is typed or asked.
    pub mode: Mode,
    /// Only runners with these words are shown.
    pub filter: String,
    /// In which order.
    pub order: Order,
    /// The runner under the cursor: it stays there when others come and go.
    pub cursor: Option<u32>,
    /// The first row of the table that is shown.
    pub top: usize,
    /// How many rows are shown.
    pub page: usize,
}

impl Board {
    /// Takes in what the job says, or why it does not.
    pub fn hear(&mut self, heard: Result<News, String>) {
        match heard {
            Ok(news) => {
                self.news = news;
                self.trouble = None;
            }
            Err(words) => self.trouble = Some(words),
        }
        self.keep_in_view();
    }

    /// Returns the runners to show, in order.
    pub fn rows(&self) -> Vec<&Runner> {
        let words = self.filter.to_lowercase();
        let fits = |runner: &&Runner| words.is_empty() || text(runner).contains(&words);
        let mut rows: Vec<&Runner> = self.news.runners.iter().filter(fits).collect();
        match self.order {
            // As the job has it.
            Order::Stuck => rows.sort_by_key(|runner| !runner.stuck),
            Order::Number => rows.sort_by_key(|runner| runner.runner),
            Order::Age => rows.sort_by(|one, other| other.age.total_cmp(&one.age)),
            Order::Work => rows.sort_by_key(|runner| {
                let work = (runner.batch.clone(), runner.task, runner.run);
                (Reverse(runner.batch.is_some()), work)
            }),
            Order::Stage => rows.sort_by_key(|runner| {
                (Reverse(runner.stage.is_some()), runner.stage.clone(), runner.runner)
            }),
        }
        rows
    }

    /// Returns where the cursor is among the rows.
    pub fn position(&self, rows: &[&Runner]) -> usize {
        let under = self.cursor.and_then(|cursor| rows.iter().position(|row| row.runner == cursor));
        under.unwrap_or(0)
    }

    /// Says how many rows there is room for.
    pub fn resize(&mut self, page: usize) {
        self.page = page.max(1);
        self.keep_in_view();
    }

    /// A key was pressed.
    pub fn press(&mut self, key: Key) -> Deed {
        if key == Key::Interrupt {
            return Deed::Quit;
        }
        match &self.mode {
            Mode::Table => return self.press_in_table(key),
            Mode::Filter => self.press_in_filter(key),
            Mode::Help => self.mode = Mode::Table,
            Mode::Confirm(target) => {
                let target = target.clone();
                self.mode = Mode::Table;
                if key == Key::Char('y') || key == Key::Char('Y') {
                    return Deed::Cancel(target);
                }
                self.note = Some("nothing was cancelled".to_owned());
            }
        }
        Deed::None
    }

    fn press_in_table(&mut self, key: Key) -> Deed {
        self.note = None;
        match key {
            Key::Char('q') => return Deed::Quit,
            Key::Escape if self.filter.is_empty() => return Deed::Quit,
            Key::Escape => self.filter.clear(),
            Key::Char('h' | '?') => self.mode = Mode::Help,
            Key::Char('/') => self.mode = Mode::Filter,
            Key::Char('s') => self.order = self.order.next(),
            Key::Char('c') => self.ask(),
            Key::Up | Key::Char('k') => self.move_by(-1),
            Key::Down | Key::Char('j') => self.move_by(1),
            Key::PageUp => self.move_by(-(self.page as isize)),
            Key::PageDown => self.move_by(self.page as isize),
            Key::Home => self.move_by(isize::MIN / 2),
            Key::End => self.move_by(isize::MAX / 2),
            Key::Enter | Key::Backspace | Key::Char(_) | Key::Interrupt => {}
        }
        self.keep_in_view();
        Deed::None
    }

    fn press_in_filter(&mut self, key: Key) {
        match key {
            Key::Char(c) => self.filter.push(c),
            Key::Backspace => drop(self.filter.pop()),
            Key::Enter => self.mode = Mode::Table,
            Key::Escape => {
                self.filter.clear();
                self.mode = Mode::Table;
            }
            _ => {}
        }
        self.keep_in_view();
    }

    /// Asks whether the run under the cursor is to be cancelled.
    fn ask(&mut self) {
        let rows = self.rows();
        let target = rows.get(self.position(&rows)).and_then(|runner| {
            let (batch, task, run) = (runner.batch.clone()?, runner.task?, runner.run?);
            Some(Target { batch, task, run })
        });
        match target {
            Some(target) => self.mode = Mode::Confirm(target),
            None => self.note = Some("this runner executes no run".to_owned()),
        }
    }

    fn move_by(&mut self, by: isize) {
        let rows = self.rows();
        let last = rows.len().saturating_sub(1) as isize;
        let to = (self.position(&rows) as isize).saturating_add(by).clamp(0, last);
        let cursor = rows.get(to as usize).map(|runner| runner.runner);
        self.cursor = cursor;
    }

    /// Scrolls so that the cursor is seen.
    fn keep_in_view(&mut self) {
        let rows = self.rows();
        let (at, count) = (self.position(&rows), rows.len());
        let page = self.page.max(1);
        let top = self.top.min(count.saturating_sub(page)).min(at);
        self.top = top.max((at + 1).saturating_sub(page));
    }
}

/// Returns everything that a filter looks at.
fn text(runner: &Runner) -> String {
    let Runner { batch, task, run, .. } = runner;
    let number = |number: &Option<u32>| number.map_or_else(String::new, |it| it.to_string());
    let work = format!("{}/{}/{}", batch.as_deref().unwrap_or(""), number(task), number(run));
    let texts = [&runner.node, &runner.stage, &runner.model, &runner.server, &runner.message];
    let texts: Vec<&str> = texts.into_iter().filter_map(|text| text.as_deref()).collect();
    format!("{} {} {work} {}", runner.runner, runner.state, texts.join(" ")).to_lowercase()
}
