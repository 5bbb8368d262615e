//! Standard error, shared by log lines and the live view: lines scroll above the view, which stays
//! at the bottom.
//!
//! The cursor is never hidden and terminal modes change only within one write, so there is nothing
//! to restore when the process is killed.

use std::fmt::{self, Debug};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use clap::ValueEnum;

use crate::background_writer::BackgroundWriter;
use crate::log_line;
use crate::styled_line::StyledLine;

/// Value of `--log`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A live view on a terminal, lines of text elsewhere
    #[default]
    Auto,
    /// Lines of text
    Plain,
    /// One JSON object per line
    Json,
}

/// Size of a terminal in character cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalSize {
    pub columns: usize,
    pub rows: usize,
}

/// Form of an output, as resolved from [`LogFormat`] and the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputKind {
    /// A terminal with a view that is drawn in place.
    Live,
    Plain,
    Json,
}

/// Writer of standard error, set by the first [`Output::stderr`].
static STDERR: OnceLock<BackgroundWriter> = OnceLock::new();

/// Destination of log lines and the live view. Cheap to clone; clones share state.
#[derive(Clone)]
pub struct Output(Arc<Shared>);

struct Shared {
    kind: OutputKind,
    colors: bool,
    size: Box<dyn Fn() -> TerminalSize + Send + Sync>,
    state: Mutex<OutputState>,
}

struct OutputState {
    target: Box<dyn Write + Send>,
    /// Lines of the view that are on the terminal, above the cursor.
    shown: Vec<StyledLine>,
}

impl Output {
    /// Returns standard error. With `auto`, it is live on a terminal that can move its cursor.
    pub fn stderr(format: LogFormat) -> Self {
        let stderr = io::stderr();
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_terminal = stderr.is_terminal();
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let kind = match format {
            LogFormat::Json => OutputKind::Json,
            LogFormat::Auto if is_terminal && !is_dumb => OutputKind::Live,
            LogFormat::Auto | LogFormat::Plain => OutputKind::Plain,
        };
        let colors = is_terminal && !is_dumb && !is_set("NO_COLOR");
        let dropped_notice = match kind {
            OutputKind::Json => log_line::dropped_json,
            OutputKind::Plain | OutputKind::Live => log_line::dropped_text,
        };
        let writer = STDERR.get_or_init(|| BackgroundWriter::start(stderr, dropped_notice));
        Self::new(kind, colors, Box::new(writer.clone()), Box::new(stderr_size))
    }

    /// Waits until queued text is on standard error, or the reader is too slow.
    pub fn flush_at_exit() {
        STDERR.get().into_iter().for_each(BackgroundWriter::flush_at_exit);
    }

    /// Writes the final message of the process to standard error, after all queued text.
    pub fn write_final(message: &str) {
        let message = format!("{message}\n");
        // A failure to write has no other place to be reported.
        let _ = match STDERR.get() {
            Some(writer) => writer.clone().write_all(message.as_bytes()),
            None => io::stderr().write_all(message.as_bytes()),
        };
        Self::flush_at_exit();
    }

    /// Returns an output that writes to `target`.
    pub fn new(
        kind: OutputKind,
        colors: bool,
        target: Box<dyn Write + Send>,
        size: Box<dyn Fn() -> TerminalSize + Send + Sync>,
    ) -> Self {
        let state = Mutex::new(OutputState { target, shown: Vec::new() });
        Self(Arc::new(Shared { kind, colors, size, state }))
    }

    pub fn kind(&self) -> OutputKind {
        self.0.kind
    }

    pub fn size(&self) -> TerminalSize {
        (self.0.size)()
    }

    /// Writes permanent lines above the view.
    pub fn print(&self, lines: &[StyledLine]) {
        self.write(|state, size| {
            // Clear first: after a line that fills its row the cursor is still in that row.
            let mut text = state.rewind(size) + CLEAR_BELOW;
            for line in lines {
                text.push_str(&line.encode(self.0.colors));
                text.push('\n');
            }
            text + &self.frame(&state.shown)
        });
    }

    /// Writes a line of text unchanged, for programs.
    pub fn raw(&self, line: &str) {
        self.write(|_, _| format!("{line}\n"));
    }

    /// Replaces the view.
    pub fn show(&self, lines: Vec<StyledLine>) {
        self.write(|state, size| {
            if state.shown == lines {
                return String::new();
            }
            let text = state.rewind(size) + &self.frame(&lines) + CLEAR_BELOW;
            state.shown = lines;
            text
        });
    }

    /// Removes the view and writes permanent lines in its place.
    pub fn end(&self, lines: &[StyledLine]) {
        self.show(Vec::new());
        self.print(lines);
    }

    fn frame(&self, lines: &[StyledLine]) -> String {
        let line = |line: &StyledLine| line.encode(self.0.colors) + CLEAR_REST + "\n";
        lines.iter().map(line).collect()
    }

    /// Writes in one call, so that a terminal never shows a partial frame.
    fn write(&self, text: impl FnOnce(&mut OutputState, TerminalSize) -> String) {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        let text = text(&mut state, self.size());
        if text.is_empty() {
            return;
        }
        let text = match self.0.kind {
            OutputKind::Live => format!("{BEGIN_UPDATE}{text}{END_UPDATE}"),
            OutputKind::Plain | OutputKind::Json => {
                text.replace(CLEAR_REST, "").replace(CLEAR_BELOW, "")
            }
        };
        // A log that cannot be written is no reason to stop the job.
        let _ = state.target.write_all(text.as_bytes()).and_then(|()| state.target.flush());
    }
}

/// Clears from the cursor to the end of its line.
const CLEAR_REST: &str = "\x1b[K";
/// Clears from the cursor to the end of the terminal.
const CLEAR_BELOW: &str = "\x1b[J";
/// Begins a synchronized update: the terminal shows nothing until [`END_UPDATE`].
const BEGIN_UPDATE: &str = "\x1b[?2026h";
const END_UPDATE: &str = "\x1b[?2026l";

impl OutputState {
    /// Returns the escape sequence that moves the cursor to the first line of the view.
    fn rewind(&self, size: TerminalSize) -> String {
        // A terminal that became narrower has wrapped long lines.
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

fn stderr_size() -> TerminalSize {
    size_of(io::stderr())
}

/// Returns the size of a terminal, else that of `COLUMNS` and `LINES`, else 80 × 24.
pub fn size_of(terminal: impl AsFd) -> TerminalSize {
    let size = rustix::termios::tcgetwinsize(terminal).ok();
    let number = |name| std::env::var(name).ok()?.parse().ok();
    let resolve = |cells: Option<u16>, name, default| {
        let cells = cells.filter(|cells| *cells > 0).map(usize::from);
        cells.or_else(|| number(name)).unwrap_or(default)
    };
    TerminalSize {
        columns: resolve(size.map(|size| size.ws_col), "COLUMNS", 80),
        rows: resolve(size.map(|size| size.ws_row), "LINES", 24),
    }
}
