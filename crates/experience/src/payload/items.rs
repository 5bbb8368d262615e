//! The metadata, cut into items.
//!
//! Items are decoded one by one and not as a list, because a list of decoded ones would be hundreds
//! of times as large as bytes that only pretend to be items.

use bytes::{Buf, Bytes};

use super::PayloadError;

/// The key of `Metadata.items`: field 1, with a length before it.
pub(super) const ITEM_KEY: u8 = 1 << 3 | LENGTH;

// How a field ends, by the last three bits of its key.
const VARINT: u8 = 0;
const EIGHT_BYTES: u8 = 1;
const LENGTH: u8 = 2;
const FOUR_BYTES: u8 = 5;

/// The items that were not read yet.
pub(super) struct Items {
    rest: Bytes,
    bytes: usize,
}

impl Items {
    pub(super) fn new(metadata: Bytes) -> Self {
        Self { bytes: metadata.len(), rest: metadata }
    }

    /// Returns the next item, and skips fields of later versions before it.
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

    /// Cuts off a field: its key and, if a length stands before it, its value.
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

    /// Cuts off a number. One that this machine cannot count is no length and no key.
    fn varint(&mut self) -> Option<usize> {
        // On its own, so that the buffer is still whole if it does not hold a number.
        let mut rest = self.rest.chunk();
        let number = prost::decode_length_delimiter(&mut rest).ok()?;
        let read = self.rest.len() - rest.len();
        self.rest.advance(read);
        Some(number)
    }
}
