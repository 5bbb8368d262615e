//! Where a reader stands.

use std::fmt;
use std::str::FromStr;

/// Before which sample a reader stands: `LOT:ROW`. Lots are counted from 1, rows from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::buffer) struct Position {
    /// The lot; 0 is before the first.
    pub(super) lot: u64,
    /// How many of its samples have been read.
    pub(super) row: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.lot, self.row)
    }
}

impl FromStr for Position {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (lot, row) = text.split_once(':').ok_or(())?;
        let number = |text: &str| text.parse().map_err(drop);
        Ok(Self { lot: number(lot)?, row: number(row)? })
    }
}
