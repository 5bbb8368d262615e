//! Splits the metadata into items.
//!
//! Items are decoded one by one: a decoded list of forged empty items would be hundreds of times as
//! large as its bytes.

use bytes::{Buf, Bytes};

use super::PayloadError;

/// Key of `Metadata.items`: field 1, length-delimited.
pub(super) const ITEM_KEY: u8 = 1 << 3 | LENGTH;

// Wire types: the last three bits of a key.
const VARINT: u8 = 0;
const EIGHT_BYTES: u8 = 1;
const LENGTH: u8 = 2;
const FOUR_BYTES: u8 = 5;

/// Iterates over the items.
pub(super) struct Items {
    rest: Bytes,
    bytes: usize,
}

impl Items {
    pub(super) fn new(metadata: Bytes) -> Self {
        Self { bytes: metadata.len(), rest: metadata }
    }

    /// Returns the next item and skips unknown fields before it.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, PayloadError> {
        while !self.rest.is_empty() {
            let at = self.bytes - self.rest.len();
            let (key, value) = self.field().ok_or(PayloadError::Metadata { at })?;
            if key == usize::from(ITEM_KEY) {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Reads a field: its key and, if length-delimited, its value.
    fn field(&mut self) -> Option<(usize, Bytes)> {
        // There is no field 0.
        let key = self.varint().filter(|key| key >> 3 != 0)?;
        let bytes = match (key & 7) as u8 {
            VARINT => {
                self.varint()?;
                0
            }
            EIGHT_BYTES => 8,
            LENGTH => self.varint()?,
            FOUR_BYTES => 4,
            _ => return None,
        };
        (bytes <= self.rest.len()).then(|| (key, self.rest.split_to(bytes)))
    }

    /// Reads a number. `None`: it is invalid or does not fit `usize`.
    fn varint(&mut self) -> Option<usize> {
        // A copy of the slice, so that an invalid number consumes nothing.
        let mut rest = self.rest.chunk();
        let number = prost::decode_length_delimiter(&mut rest).ok()?;
        let read = self.rest.len() - rest.len();
        self.rest.advance(read);
        Some(number)
    }
}
