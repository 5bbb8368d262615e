//! Standard error as one place that lines and the live view share: a line is printed above the
//! view, and the view stays where it is.
//!
//! The cursor is never hidden and no mode of the terminal is changed for longer than one write, so
//! that there is nothing to restore when the process is killed.

use std::fmt::{self, Debug};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::background_writer::BackgroundWriter;
use crate::log::{self, LogFormat};
use crate::styled_line::StyledLine;

/// The size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalSize {
    /// Characters of a line.
    pub columns: usize,
    /// Lines.
    pub rows: usize,
}

/// What somebody reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputKind {
    /// A terminal with a view that is drawn in place.
    Live,
    /// Lines of text.
    Plain,
    /// Lines with one JSON object each.
    Json,
}

/// Standard error, once it is used as an output.
static STDERR: OnceLock<BackgroundWriter> = OnceLock::new();

/// Where lines and the view go. Clones are the same place.
#[derive(Clone)]
pub struct Output(Arc<Shared>);

struct Shared {
    kind: OutputKind,
    colors: bool,
    size: Box<dyn Fn() -> TerminalSize + Send + Sync>,
    state: Mutex<State>,
}

struct State {
    to: Box<dyn Write + Send>,
    /// The view as it stands on the terminal, above the cursor.
    shown: Vec<StyledLine>,
}

impl Output {
    /// Returns standard error: with `auto` live if it is a terminal that can move its cursor.
    pub fn stderr(form: LogFormat) -> Self {
        let stderr = io::stderr();
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_terminal = stderr.is_terminal();
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let kind = match form {
            LogFormat::Json => OutputKind::Json,
            LogFormat::Auto if is_terminal && !is_dumb => OutputKind::Live,
            LogFormat::Auto | LogFormat::Plain => OutputKind::Plain,
        };
        let colors = is_terminal && !is_dumb && !is_set("NO_COLOR");
        let instead = match kind {
            OutputKind::Json => log::left_out_json,
            OutputKind::Plain | OutputKind::Live => log::left_out,
        };
        let drain = STDERR.get_or_init(|| BackgroundWriter::to(stderr, instead));
        Self::new(kind, colors, Box::new(drain.clone()), Box::new(terminal_size))
    }

    /// Waits until everything is on standard error, or nobody seems to read it.
    pub fn finish() {
        STDERR.get().into_iter().for_each(BackgroundWriter::finish);
    }

    /// Writes the last words of a process to standard error, after everything else.
    pub fn conclude(words: &str) {
        let words = format!("{words}\n");
        // There is nobody to tell that it did not work.
        let _ = match STDERR.get() {
            Some(drain) => drain.clone().write_all(words.as_bytes()),
            None => io::stderr().write_all(words.as_bytes()),
        };
        Self::finish();
    }

    /// Returns an output to anywhere.
    pub fn new(
        kind: OutputKind,
        colors: bool,
        to: Box<dyn Write + Send>,
        size: Box<dyn Fn() -> TerminalSize + Send + Sync>,
    ) -> Self {
        let state = Mutex::new(State { to, shown: Vec::new() });
        Self(Arc::new(Shared { kind, colors, size, state }))
    }

    /// Returns what is written here.
    pub fn kind(&self) -> OutputKind {
        self.0.kind
    }

    /// Returns how large the terminal is now.
    pub fn size(&self) -> TerminalSize {
        (self.0.size)()
    }

    /// Writes lines that stay, above the view.
    pub fn print(&self, lines: &[StyledLine]) {
        self.write(|state, size| {
            // Cleared first: behind a line that fills its row, the cursor still is in that row.
            let mut text = state.rewind(size) + CLEAR_BELOW;
            for line in lines {
                text.push_str(&line.encode(self.0.colors));
                text.push('\n');
            }
            text + &self.frame(&state.shown)
        });
    }

    /// Writes a line of text as it is, for programs.
    pub fn raw(&self, line: &str) {
        self.write(|_, _| format!("{line}\n"));
    }

    /// Draws a view over the one before.
    pub fn show(&self, lines: Vec<StyledLine>) {
        self.write(|state, size| {
            // What looks the same needs no drawing, unless the terminal has moved it.
            if state.shown == lines {
                return String::new();
            }
            let text = state.rewind(size) + &self.frame(&lines) + CLEAR_BELOW;
            state.shown = lines;
            text
        });
    }

    /// Takes the view away and writes what stays in its place.
    pub fn end(&self, lines: &[StyledLine]) {
        self.show(Vec::new());
        self.print(lines);
    }

    fn frame(&self, lines: &[StyledLine]) -> String {
        let line = |line: &StyledLine| line.encode(self.0.colors) + CLEAR_REST + "\n";
        lines.iter().map(line).collect()
    }

    /// Writes everything at once, so that a terminal never shows half of it.
    fn write(&self, text: impl FnOnce(&mut State, TerminalSize) -> String) {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        let text = text(&mut state, self.size());
        if text.is_empty() {
            return;
        }
        let text = match self.0.kind {
            OutputKind::Live => format!("{HOLD}{text}{RELEASE}"),
            OutputKind::Plain | OutputKind::Json => {
                text.replace(CLEAR_REST, "").replace(CLEAR_BELOW, "")
            }
        };
        // A log that cannot be written to is no reason to stop.
        let _ = state.to.write_all(text.as_bytes()).and_then(|()| state.to.flush());
    }
}

/// Clears from the cursor to the end of its line.
const CLEAR_REST: &str = "\x1b[K";
/// Clears from the cursor to the end of the terminal.
const CLEAR_BELOW: &str = "\x1b[J";
/// Asks terminals that can to show nothing until [`RELEASE`]; others ignore it.
const HOLD: &str = "\x1b[?2026h";
const RELEASE: &str = "\x1b[?2026l";

impl State {
    /// Returns what moves the cursor to the first line of the view.
    fn rewind(&self, size: TerminalSize) -> String {
        // A terminal that became narrower has broken longer lines into several.
        let rows = |line: &StyledLine| line.width().div_ceil(size.columns.max(1)).max(1);
        match self.shown.iter().map(rows).sum::<usize>().min(size.rows) {
            0 => String::new(),
            rows => format!("\r\x1b[{rows}A"),
        }
    }
}

impl Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").field("kind", &self.0.kind).finish_non_exhaustive()
    }
}

fn terminal_size() -> TerminalSize {
    size_of(io::stderr())
}

/// Asks a terminal for its size.
pub fn size_of(terminal: impl AsFd) -> TerminalSize {
    let size = rustix::termios::tcgetwinsize(terminal).ok();
    let number = |name| std::env::var(name).ok()?.parse().ok();
    let told = |cells: Option<u16>, name, usual| {
        let cells = cells.filter(|cells| *cells > 0).map(usize::from);
        cells.or_else(|| number(name)).unwrap_or(usual)
    };
    TerminalSize {
        columns: told(size.map(|size| size.ws_col), "COLUMNS", 80),
        rows: told(size.map(|size| size.ws_row), "LINES", 24),
    }
}
