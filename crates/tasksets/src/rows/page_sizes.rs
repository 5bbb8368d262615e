//! Sizes of the pages of a Parquet file after decompression, from their headers.
//!
//! A header is a structure in Thrift's compact protocol. The library allocates what the header
//! states, so that a small file could take all memory.

use super::column_error::{ColumnFault, ColumnResult};
use super::file_handle::FileHandle;
use super::unpacked::UnpackedLimit;
use crate::Result;

/// Maximum number of values of a page; each takes some bytes, however small the page is.
const MAX_VALUES: i64 = 1 << 26;

/// First and largest number of bytes that are read for a header, which contains statistics.
const WINDOWS: (u64, u64) = (1 << 10, 16 << 20);

/// Maximum nesting of structures in a header.
const MAX_DEPTH: u32 = 16;

/// Kinds of fields in the compact protocol.
mod kind {
    pub(super) const BYTE: u8 = 3;
    pub(super) const I32: u8 = 5;
    pub(super) const I64: u8 = 6;
    pub(super) const DOUBLE: u8 = 7;
    pub(super) const BINARY: u8 = 8;
    pub(super) const LIST: u8 = 9;
    pub(super) const SET: u8 = 10;
    pub(super) const MAP: u8 = 11;
    pub(super) const STRUCT: u8 = 12;
}

/// Facts of the header of a page.
#[derive(Debug, Default, PartialEq, Eq)]
struct PageHeader {
    unpacked: i64,
    packed: i64,
    values: i64,
    /// Length of the header itself.
    length: u64,
}

/// Checks the pages of a column chunk, which has `length` bytes from `start`.
pub(super) fn check(
    handle: &mut FileHandle,
    (start, length): (u64, u64),
    limit: UnpackedLimit,
) -> Result<ColumnResult<()>> {
    let end = start.saturating_add(length);
    if end > handle.len() {
        return Ok(Err(fault("a column ends behind the end of the file")));
    }
    let mut at = start;
    while at < end {
        let page = match header(handle, at, end)? {
            Ok(page) => page,
            Err(fault) => return Ok(Err(fault)),
        };
        if !(0..=MAX_VALUES).contains(&page.values) {
            let found =
                format!("a page of {} values, above the limit of {MAX_VALUES}", page.values);
            return Ok(Err(fault(found)));
        }
        let sizes = u64::try_from(page.unpacked).ok().zip(u64::try_from(page.packed).ok());
        let Some((unpacked, packed)) = sizes else {
            return Ok(Err(fault("a page of negative size")));
        };
        if let Err(fault) = limit.check("a page", unpacked) {
            return Ok(Err(fault));
        }
        at = at.saturating_add(page.length).saturating_add(packed);
    }
    Ok(Ok(()))
}

/// Reads the header at an offset, from more and more bytes until it is complete.
fn header(handle: &mut FileHandle, at: u64, end: u64) -> Result<ColumnResult<PageHeader>> {
    let mut window = WINDOWS.0;
    loop {
        let until = at.saturating_add(window).min(end);
        let bytes = handle.read(at, until)?;
        if let Some(page) = parse(&bytes) {
            return Ok(Ok(page));
        }
        if until == end || window >= WINDOWS.1 {
            return Ok(Err(fault("the header of a page is damaged")));
        }
        window *= 16;
    }
}

fn fault(text: impl Into<String>) -> ColumnFault {
    ColumnFault::Other(text.into())
}

/// Returns the header at the beginning of the bytes. `None`: it is cut off, or none.
fn parse(bytes: &[u8]) -> Option<PageHeader> {
    let mut input = CompactReader { bytes, at: 0 };
    let mut page = PageHeader::default();
    let mut last = 0;
    while let Some((id, kind)) = input.field(&mut last)? {
        match (id, kind) {
            (2, kind::I32) => page.unpacked = input.integer()?,
            (3, kind::I32) => page.packed = input.integer()?,
            // Headers of data and dictionary pages begin with the number of values.
            (5 | 7 | 8, kind::STRUCT) => {
                let mut inner = 0;
                while let Some((id, kind)) = input.field(&mut inner)? {
                    match (id, kind) {
                        (1, kind::I32) => page.values = input.integer()?,
                        _ => input.skip(kind, 1)?,
                    }
                }
            }
            _ => input.skip(kind, 0)?,
        }
    }
    page.length = input.at as u64;
    Some(page)
}

/// Reader of Thrift's compact protocol. `None`: the bytes end, or are invalid.
struct CompactReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl CompactReader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn advance(&mut self, count: u64) -> Option<()> {
        let at = self.at.checked_add(usize::try_from(count).ok()?)?;
        self.at = at;
        (at <= self.bytes.len()).then_some(())
    }

    fn unsigned(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn integer(&mut self) -> Option<i64> {
        let number = self.unsigned()?;
        Some((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    /// Returns number and kind of the next field; the inner `None` is the end of the structure.
    #[expect(clippy::option_option, reason = "the outer one is the end of the bytes")]
    fn field(&mut self, last: &mut i64) -> Option<Option<(i64, u8)>> {
        let head = self.byte()?;
        if head == 0 {
            return Some(None);
        }
        *last = match head >> 4 {
            0 => self.integer()?,
            delta => last.checked_add(delta.into())?,
        };
        Some(Some((*last, head & 0x0f)))
    }

    fn skip(&mut self, kind: u8, depth: u32) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        match kind {
            // Booleans are part of the head of a field.
            1 | 2 => Some(()),
            kind::BYTE => self.advance(1),
            4 | kind::I32 | kind::I64 => self.unsigned().map(drop),
            kind::DOUBLE => self.advance(8),
            kind::BINARY => {
                let length = self.unsigned()?;
                self.advance(length)
            }
            kind::LIST | kind::SET => {
                let head = self.byte()?;
                let count = if head >> 4 == 15 { self.unsigned()? } else { u64::from(head >> 4) };
                self.skip_items(&[head & 0x0f], count, depth)
            }
            kind::MAP => {
                let count = self.unsigned()?;
                let kinds = if count == 0 { 0 } else { self.byte()? };
                self.skip_items(&[kinds >> 4, kinds & 0x0f], count, depth)
            }
            kind::STRUCT => {
                let mut last = 0;
                while let Some((_, kind)) = self.field(&mut last)? {
                    self.skip(kind, depth + 1)?;
                }
                Some(())
            }
            _ => None,
        }
    }

    /// Skips the items of a list, a set or a map. Each has at least one byte.
    fn skip_items(&mut self, kinds: &[u8], count: u64, depth: u32) -> Option<()> {
        if count > self.bytes.len() as u64 {
            return None;
        }
        for _ in 0..count {
            for kind in kinds {
                match kind {
                    1 | 2 => self.advance(1)?,
                    kind => self.skip(*kind, depth + 1)?,
                }
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_and_never_beyond_their_end() {
        // Type 0, sizes 2,000,000,000 and 30, a data page of 5 values with statistics.
        let bytes = [
            0x15, 0x00, 0x15, 0x80, 0xd0, 0xac, 0xf3, 0x0e, 0x15, 0x3c, 0x2c, 0x15, 0x0a, 0x15,
            0x00, 0x15, 0x06, 0x15, 0x06, 0x1c, 0x18, 0x02, b'a', b'b', 0x16, 0x00, 0x00, 0x00,
            0x00,
        ];
        let expected = PageHeader {
            unpacked: 2_000_000_000,
            packed: 30,
            values: 5,
            length: bytes.len() as u64,
        };
        assert_eq!(parse(&bytes), Some(expected));
        for end in 0..bytes.len() {
            assert_eq!(parse(&bytes[..end]), None, "{end}");
        }
        // A list that claims more items than there are bytes, and endless nesting.
        assert_eq!(parse(&[0x19, 0xf8, 0xff, 0xff, 0xff, 0xff, 0x0f]), None);
        assert_eq!(parse(&[0x1c; 100]), None);
    }
}
