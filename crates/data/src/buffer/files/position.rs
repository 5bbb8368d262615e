//! Position of a reader in files.

use std::fmt;
use std::str::FromStr;

/// Position before a sample: `BATCH:ROW`. Write batches count from 1, rows from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::buffer) struct Position {
    /// Write batch; 0 is before the first.
    pub(super) batch: u64,
    /// Number of its samples that were read.
    pub(super) row: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.batch, self.row)
    }
}

impl FromStr for Position {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (batch, row) = text.split_once(':').ok_or(())?;
        let number = |text: &str| text.parse().map_err(drop);
        Ok(Self { batch: number(batch)?, row: number(row)? })
    }
}
