//! Terminal emulator for the escape sequences of the progress view; panics on any other.

use std::io;
use std::sync::{Arc, Mutex};

/// Rows including those that have scrolled away.
pub(crate) struct Terminal {
    pub(crate) rows: Vec<String>,
    columns: usize,
    height: usize,
    /// Position of the cursor.
    row: usize,
    column: usize,
}

impl Terminal {
    pub(crate) fn new(columns: usize, height: usize) -> Self {
        Self { rows: vec![String::new()], columns, height, row: 0, column: 0 }
    }

    fn feed(&mut self, text: &str) {
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            rest = &rest[c.len_utf8()..];
            match c {
                '\x1b' => rest = self.order(rest),
                '\r' => self.column = 0,
                // A terminal's driver also returns the carriage.
                '\n' => self.next_row(),
                c => self.put(c),
            }
        }
    }

    fn order<'a>(&mut self, text: &'a str) -> &'a str {
        let text = text.strip_prefix('[').expect("an order");
        let end = text.find(|c: char| c.is_ascii_alphabetic()).expect("the end of an order");
        let (argument, order) = (&text[..end], &text[end..=end]);
        match (order, argument) {
            ("m", _) | ("h" | "l", "?2026") => {}
            ("A", rows) => {
                let rows: usize = rows.parse().expect("a number");
                // What has scrolled away cannot be reached.
                let top = self.rows.len().saturating_sub(self.height);
                self.row = self.row.saturating_sub(rows).max(top);
            }
            ("K", "") => self.cut(),
            ("J", "") => {
                self.cut();
                self.rows.truncate(self.row + 1);
            }
            order => panic!("{order:?} is not understood"),
        }
        &text[end + 1..]
    }

    fn cut(&mut self) {
        let column = self.column;
        let row = &mut self.rows[self.row];
        *row = row.chars().take(column).collect();
    }

    fn next_row(&mut self) {
        self.row += 1;
        self.column = 0;
        if self.row == self.rows.len() {
            self.rows.push(String::new());
        }
    }

    fn put(&mut self, c: char) {
        if self.column == self.columns {
            self.next_row();
        }
        let mut row: Vec<char> = self.rows[self.row].chars().collect();
        row.resize(row.len().max(self.column + 1), ' ');
        row[self.column] = c;
        self.rows[self.row] = row.into_iter().collect();
        self.column += 1;
    }
}

/// Writes to a terminal.
pub(crate) struct Writer(pub(crate) Arc<Mutex<Terminal>>);

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = std::str::from_utf8(bytes).map_err(io::Error::other)?;
        self.0.lock().map_err(|error| io::Error::other(error.to_string()))?.feed(text);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
