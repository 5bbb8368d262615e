//! Lines of styled text: measured, truncated, and encoded for a terminal or for `ratatui`.
//!
//! Colors are from the terminal's own palette, so that light and dark themes both work, and no
//! information is conveyed by color alone.

use std::fmt::{self, Write as _};

use ratatui::style::Style;
use ratatui::text::{Line, Span};
use unicode_width::UnicodeWidthChar;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextStyle {
    #[default]
    Plain,
    Bold,
    Faint,
    /// Success.
    Green,
    /// Warning, or in progress.
    Yellow,
    /// Failure.
    Red,
    Cyan,
    Magenta,
}

impl TextStyle {
    /// Returns the code of the ANSI escape sequence and the style of `ratatui`.
    fn encodings(self) -> (&'static str, Style) {
        let style = Style::new();
        match self {
            Self::Plain => ("0", style),
            Self::Bold => ("1", style.bold()),
            Self::Faint => ("2", style.dim()),
            Self::Red => ("31", style.red()),
            Self::Green => ("32", style.green()),
            Self::Yellow => ("33", style.yellow()),
            Self::Magenta => ("35", style.magenta()),
            Self::Cyan => ("36", style.cyan()),
        }
    }
}

/// One line of styled pieces. Control characters are replaced when a piece is added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StyledLine(Vec<(String, TextStyle)>);

impl StyledLine {
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    #[must_use]
    pub fn with(mut self, text: impl AsRef<str>, style: TextStyle) -> Self {
        self.push(text, style);
        self
    }

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
                write!(encoded, "\x1b[{}m{text}\x1b[0m", style.encodings().0)
            } else {
                write!(encoded, "{text}")
            };
        }
        encoded
    }

    /// Returns the line for `ratatui`, with its styles or without.
    pub fn to_ratatui(&self, colors: bool) -> Line<'static> {
        let span = |(text, style): &(String, TextStyle)| match colors {
            true => Span::styled(text.clone(), style.encodings().1),
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
