//! Lines of text with colours: measured, cut, and turned into what a terminal understands.
//!
//! Colours are those of the terminal's own palette, so that light and dark themes both work, and
//! nothing is said by a colour alone.

use std::fmt::{self, Write as _};

use unicode_width::UnicodeWidthChar;

/// How a piece of text looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextStyle {
    /// Like all other text.
    #[default]
    Plain,
    /// More important than the rest.
    Bold,
    /// Less important than the rest.
    Faint,
    /// Good news.
    Green,
    /// Something is under way.
    Yellow,
    /// Bad news.
    Red,
    /// Decoration that catches the eye.
    Cyan,
    /// Decoration that stands apart from the other one.
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
}

/// One line of pieces. Has no control characters: whatever brings some has them replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StyledLine(Vec<(String, TextStyle)>);

impl StyledLine {
    /// Returns an empty line.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Returns this line with a piece of text behind it.
    #[must_use]
    pub fn with(mut self, text: impl AsRef<str>, look: TextStyle) -> Self {
        self.push(text, look);
        self
    }

    /// Returns this line with a piece of ordinary text behind it.
    #[must_use]
    pub fn text(self, text: impl AsRef<str>) -> Self {
        self.with(text, TextStyle::Plain)
    }

    /// Adds a piece of text.
    pub fn push(&mut self, text: impl AsRef<str>, look: TextStyle) {
        let text = tame(text.as_ref());
        match self.0.last_mut() {
            Some((last, same)) if *same == look => last.push_str(&text),
            _ if text.is_empty() => {}
            _ => self.0.push((text, look)),
        }
    }

    /// Adds all pieces of another line.
    pub fn append(&mut self, other: Self) {
        for (text, look) in other.0 {
            self.push(text, look);
        }
    }

    /// Adds spaces until the line has a width.
    pub fn pad(&mut self, width: usize) {
        self.push(" ".repeat(width.saturating_sub(self.width())), TextStyle::Plain);
    }

    /// Returns how many columns the line takes.
    pub fn width(&self) -> usize {
        self.0.iter().map(|(text, _)| width(text)).sum()
    }

    /// Returns the line cut to a width; an ellipsis shows that something is missing.
    #[must_use]
    pub fn fit(self, most: usize) -> Self {
        if self.width() <= most {
            return self;
        }
        let mut line = Self::new();
        let mut left = most;
        for (text, look) in self.0 {
            let taken = width(&text);
            if taken < left {
                left -= taken;
                line.push(text, look);
            } else {
                line.push(shorten(&text, left, taken > left), look);
                // Whether this piece filled the line or not, there is more that does not fit.
                return if taken == left { line.end_open() } else { line };
            }
        }
        line
    }

    /// Replaces the last character by an ellipsis.
    fn end_open(mut self) -> Self {
        if let Some((text, _)) = self.0.last_mut() {
            let taken = width(text);
            *text = shorten(text, taken, true);
        }
        self
    }

    /// Returns the line as a terminal takes it, in colours or without.
    pub fn encode(&self, colors: bool) -> String {
        let mut encoded = String::new();
        for (text, look) in &self.0 {
            // Writing to a string cannot fail.
            let _ = if colors && *look != TextStyle::Plain {
                write!(encoded, "\x1b[{}m{text}\x1b[0m", look.code())
            } else {
                write!(encoded, "{text}")
            };
        }
        encoded
    }
}

impl fmt::Display for StyledLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.encode(false))
    }
}

/// Returns how many columns a text takes.
pub fn width(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// Returns as much of a text as fits, with an ellipsis at its end if `open`.
fn shorten(text: &str, most: usize, open: bool) -> String {
    let room = if open { most.saturating_sub(1) } else { most };
    let mut short = String::new();
    let mut taken = 0;
    for c in text.chars() {
        taken += c.width().unwrap_or(0);
        if taken > room {
            break;
        }
        short.push(c);
    }
    if open && most > 0 {
        short.push('…');
    }
    short
}

/// Returns a text without control characters: what a server or a model said must not move the
/// cursor.
fn tame(text: &str) -> String {
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
    fn lines_are_cut_by_columns_and_say_so() {
        let line = StyledLine::new().with("漢字", TextStyle::Bold).text(" and more");
        assert_eq!(line.width(), 13);
        assert_eq!(line.clone().fit(13).to_string(), "漢字 and more");
        assert_eq!(line.clone().fit(9).to_string(), "漢字 and…");
        assert_eq!(line.clone().fit(4).to_string(), "漢…", "a wide character is never halved");
        assert_eq!(line.clone().fit(1).to_string(), "…");
        assert_eq!(line.fit(0).to_string(), "");
    }

    #[test]
    fn nobody_elses_words_reach_the_terminal_as_orders() {
        let line = StyledLine::new().with("a\x1b[2Jb\nc", TextStyle::Red);
        assert_eq!(line.encode(true), "\x1b[31ma\u{fffd}[2Jb c\x1b[0m");
        assert_eq!(line.encode(false), "a\u{fffd}[2Jb c");
    }
}
