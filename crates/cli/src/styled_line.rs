//! Lines of styled text: measured, truncated, and encoded for a terminal or for `ratatui`.
//!
//! Colors are from the terminal's own palette, so that light and dark themes both work, and no
//! information is conveyed by color alone.

use std::fmt::{self, Write as _};

use ratatui::style::Style;
use ratatui::text::{Line, Span};
use unicode_width::UnicodeWidthChar;

/// Style of a piece of text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextStyle {
    /// Normal text.
    #[default]
    Plain,
    /// Emphasized.
    Bold,
    /// De-emphasized.
    Faint,
    /// Success.
    Green,
    /// Warning, or in progress.
    Yellow,
    /// Failure.
    Red,
    /// First accent.
    Cyan,
    /// Second accent.
    Magenta,
}

impl TextStyle {
    const fn code(self) -> &'static str {
        match self {
            Self::Plain => "0",
            Self::Bold => "1",
            Self::Faint => "2",
            Self::Red => "31",
            Self::Green => "32",
            Self::Yellow => "33",
            Self::Magenta => "35",
            Self::Cyan => "36",
        }
    }

    fn to_ratatui(self) -> Style {
        let style = Style::new();
        match self {
            Self::Plain => style,
            Self::Bold => style.bold(),
            Self::Faint => style.dim(),
            Self::Red => style.red(),
            Self::Green => style.green(),
            Self::Yellow => style.yellow(),
            Self::Magenta => style.magenta(),
            Self::Cyan => style.cyan(),
        }
    }
}

/// One line of styled pieces. Control characters are replaced when a piece is added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StyledLine(Vec<(String, TextStyle)>);

impl StyledLine {
    /// Returns an empty line.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Appends a piece of text.
    #[must_use]
    pub fn with(mut self, text: impl AsRef<str>, style: TextStyle) -> Self {
        self.push(text, style);
        self
    }

    /// Appends a piece of plain text.
    #[must_use]
    pub fn text(self, text: impl AsRef<str>) -> Self {
        self.with(text, TextStyle::Plain)
    }

    /// Appends a piece of text in place.
    pub fn push(&mut self, text: impl AsRef<str>, style: TextStyle) {
        let text = sanitize(text.as_ref());
        match self.0.last_mut() {
            Some((last, same)) if *same == style => last.push_str(&text),
            _ if text.is_empty() => {}
            _ => self.0.push((text, style)),
        }
    }

    /// Appends the pieces of another line.
    pub fn append(&mut self, other: Self) {
        for (text, style) in other.0 {
            self.push(text, style);
        }
    }

    /// Appends spaces up to a width.
    pub fn pad(&mut self, width: usize) {
        self.push(" ".repeat(width.saturating_sub(self.width())), TextStyle::Plain);
    }

    /// Returns the width in terminal columns.
    pub fn width(&self) -> usize {
        self.0.iter().map(|(text, _)| width(text)).sum()
    }

    /// Returns the line truncated to a width; an ellipsis marks the cut.
    #[must_use]
    pub fn fit(self, max_width: usize) -> Self {
        if self.width() <= max_width {
            return self;
        }
        let mut line = Self::new();
        let mut left = max_width;
        for (text, style) in self.0 {
            let used = width(&text);
            if used < left {
                left -= used;
                line.push(text, style);
            } else {
                line.push(shorten(&text, left, used > left), style);
                // More text follows even if this piece fits exactly.
                return if used == left { line.end_open() } else { line };
            }
        }
        line
    }

    /// Replaces the last character by an ellipsis.
    fn end_open(mut self) -> Self {
        if let Some((text, _)) = self.0.last_mut() {
            let used = width(text);
            *text = shorten(text, used, true);
        }
        self
    }

    /// Returns the line with ANSI escape sequences for its styles, or without.
    pub fn encode(&self, colors: bool) -> String {
        let mut encoded = String::new();
        for (text, style) in &self.0 {
            // Writing to a string cannot fail.
            let _ = if colors && *style != TextStyle::Plain {
                write!(encoded, "\x1b[{}m{text}\x1b[0m", style.code())
            } else {
                write!(encoded, "{text}")
            };
        }
        encoded
    }
}

impl StyledLine {
    /// Returns the line for `ratatui`, with its styles or without.
    pub fn to_ratatui(&self, colors: bool) -> Line<'static> {
        let span = |(text, style): &(String, TextStyle)| match colors {
            true => Span::styled(text.clone(), style.to_ratatui()),
            false => Span::raw(text.clone()),
        };
        self.0.iter().map(span).collect()
    }
}

impl fmt::Display for StyledLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.encode(false))
    }
}

/// Returns the width of a text in terminal columns.
pub fn width(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// Returns the part of a text that fits, ending with an ellipsis if `open`.
fn shorten(text: &str, max_width: usize, open: bool) -> String {
    let max_text = if open { max_width.saturating_sub(1) } else { max_width };
    let mut short = String::new();
    let mut used = 0;
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used > max_text {
            break;
        }
        short.push(c);
    }
    if open && max_width > 0 {
        short.push('…');
    }
    short
}

/// Replaces control characters, so that text from servers and models cannot move the cursor.
pub fn sanitize(text: &str) -> String {
    let replace = |c: char| match c {
        '\n' | '\t' | '\r' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.chars().map(replace).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncation_counts_columns_and_adds_an_ellipsis() {
        let line = StyledLine::new().with("漢字", TextStyle::Bold).text(" and more");
        assert_eq!(line.width(), 13);
        assert_eq!(line.clone().fit(13).to_string(), "漢字 and more");
        assert_eq!(line.clone().fit(9).to_string(), "漢字 and…");
        assert_eq!(line.clone().fit(4).to_string(), "漢…", "wide characters are not split");
        assert_eq!(line.clone().fit(1).to_string(), "…");
        assert_eq!(line.fit(0).to_string(), "");
    }

    #[test]
    fn control_characters_are_replaced() {
        let line = StyledLine::new().with("a\x1b[2Jb\nc", TextStyle::Red);
        assert_eq!(line.encode(true), "\x1b[31ma\u{fffd}[2Jb c\x1b[0m");
        assert_eq!(line.encode(false), "a\u{fffd}[2Jb c");
    }
}
