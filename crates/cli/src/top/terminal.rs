//! Terminal session of `rollway top`: raw mode and alternate screen, left again on drop and on
//! panic.

use std::io::{self, IsTerminal, Write, stdout};
use std::thread;

use crossterm::execute;
use crossterm::terminal::{BeginSynchronizedUpdate, EndSynchronizedUpdate, EnterAlternateScreen};
use ratatui::layout::Rect;
use ratatui::{DefaultTerminal, TerminalOptions, Viewport};

use super::draw;
use super::model::TopModel;
use crate::output::{TerminalSize, size_of};

/// Terminal in raw mode. Dropping it restores the terminal.
#[derive(Debug)]
pub struct RawTerminal {
    terminal: DefaultTerminal,
    area: Rect,
    colors: bool,
}

impl RawTerminal {
    /// Enters raw mode and the alternate screen, and installs a panic hook that leaves both.
    pub fn enter() -> io::Result<Self> {
        let area = current_area();
        // The size is read by `size_of`, which knows `COLUMNS` and `LINES`, hence fixed.
        let viewport = Viewport::Fixed(area);
        let terminal = ratatui::try_init_with_options(TerminalOptions { viewport })?;
        let terminal = Self { terminal, area, colors: has_colors() };
        execute!(stdout(), EnterAlternateScreen)?;
        Ok(terminal)
    }

    /// Draws a frame at the current size of the terminal.
    pub fn draw(&mut self, model: &mut TopModel) -> io::Result<()> {
        let area = current_area();
        execute!(stdout(), BeginSynchronizedUpdate)?;
        if area != self.area {
            self.terminal.resize(area)?;
            self.area = area;
        }
        self.terminal.draw(|frame| draw::render(model, frame, self.colors))?;
        execute!(stdout(), EndSynchronizedUpdate)
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // A terminal that is closed cannot be restored.
        let _ = self.terminal.show_cursor();
        // On panic the hook has restored it already. Leaving the alternate screen a second time
        // would move the cursor back over the panic message.
        if !thread::panicking() {
            let _ = ratatui::try_restore();
        }
    }
}

fn current_area() -> Rect {
    let TerminalSize { columns, rows } = size_of(stdout());
    let cells = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
    Rect::new(0, 0, cells(columns), cells(rows))
}

/// Returns whether standard output shows colors.
pub fn has_colors() -> bool {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    stdout().is_terminal() && !is_dumb() && !no_color
}

/// Returns whether standard input and output are a terminal that can be drawn on.
pub fn is_interactive() -> bool {
    stdout().is_terminal() && io::stdin().is_terminal() && !is_dumb()
}

fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term == "dumb")
}

/// Writes text to standard output and flushes it.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
