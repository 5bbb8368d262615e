//! Binary format of segment headers and frame heads, little-endian; `docs/ledger.md` shows the
//! layout.

use std::path::Path;

use super::error::LogError;

pub(super) const MAGIC: [u8; 8] = *b"ROLLWLOG";

pub(super) const VERSION: u32 = 1;

/// Bytes of the head of a frame.
pub(super) const HEAD: u64 = 12;

/// Last byte of every frame. Non-zero, so that blocks that the file system allocated but never
/// filled differ from changed bytes.
pub(super) const END: u8 = 0xa5;

/// Overhead of a frame in bytes.
pub(super) const FRAME: u64 = HEAD + 1;

/// Magic, version, header length, number, base, two string lengths.
const FIXED: usize = 8 + 4 + 4 + 8 + 8 + 2 + 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header<'a> {
    pub(super) kind: &'a str,
    pub(super) identity: &'a str,
    pub(super) number: u64,
    /// Offset in the log of its first frame.
    pub(super) base: u64,
}

impl Header<'_> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let bytes = FIXED + self.kind.len() + self.identity.len() + 4;
        let mut out = Vec::with_capacity(bytes);
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend((bytes as u32).to_le_bytes());
        out.extend(self.number.to_le_bytes());
        out.extend(self.base.to_le_bytes());
        out.extend((self.kind.len() as u16).to_le_bytes());
        out.extend((self.identity.len() as u16).to_le_bytes());
        out.extend(self.kind.as_bytes());
        out.extend(self.identity.as_bytes());
        out.extend(crc32fast::hash(&out).to_le_bytes());
        out
    }

    /// Checks the first bytes of a segment against this header and returns the base.
    pub(super) fn check(&self, path: &Path, bytes: &[u8]) -> Result<u64, LogError> {
        let foreign = |found: &str| LogError::Foreign { path: path.into(), found: found.into() };
        if bytes.len() < 16 || bytes[..8] != MAGIC {
            return Err(foreign("its first bytes are not those of a segment"));
        }
        let version = number(&bytes[8..12]) as u32;
        let length = number(&bytes[12..16]) as usize;
        if version > VERSION {
            return Err(LogError::Version { path: path.into(), found: version, known: VERSION });
        }
        if !(FIXED + 4..=bytes.len()).contains(&length) {
            return Err(LogError::damaged(path, 12, "the header ends outside of the file"));
        }
        let (body, sum) = bytes[..length].split_at(length - 4);
        if u64::from(crc32fast::hash(body)) != number(sum) {
            return Err(LogError::damaged(path, 0, "the checksum of the header is wrong"));
        }
        let kind = number(&body[32..34]) as usize;
        let texts = (body.get(FIXED..FIXED + kind), body.get(FIXED + kind..));
        let (Some(kind), Some(identity)) = texts else {
            return Err(LogError::damaged(path, 32, "the texts of the header are too long"));
        };
        let other = |what, found: &[u8], expected: &str| LogError::Other {
            path: path.into(),
            what,
            found: String::from_utf8_lossy(found).into_owned(),
            expected: expected.into(),
        };
        if kind != self.kind.as_bytes() {
            return Err(other("kind", kind, self.kind));
        }
        if identity != self.identity.as_bytes() {
            return Err(other("identity", identity, self.identity));
        }
        let found = number(&body[16..24]);
        if found != self.number {
            let found = format!("its header has the number {found}; it may have been renamed");
            return Err(LogError::damaged(path, 16, found));
        }
        Ok(number(&body[24..32]))
    }
}

/// Head of a frame: payload length, a checksum of length and offset, a checksum of the payload.
///
/// The first checksum distinguishes torn from damaged frames, because it confirms the length, and
/// is valid at one offset only: a copy inside a payload is no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHead {
    pub(super) length: u32,
    pub(super) sum: u32,
}

impl FrameHead {
    pub(super) fn encode(self, offset: u64) -> [u8; HEAD as usize] {
        let mut out = [0; HEAD as usize];
        out[..4].copy_from_slice(&self.length.to_le_bytes());
        out[4..8].copy_from_slice(&head_checksum(self.length, offset).to_le_bytes());
        out[8..].copy_from_slice(&self.sum.to_le_bytes());
        out
    }

    /// Returns the head if it was written at this offset.
    pub(super) fn decode(bytes: &[u8], offset: u64) -> Option<Self> {
        let length = number(bytes.get(..4)?) as u32;
        let checksum = number(bytes.get(4..8)?) as u32;
        let sum = number(bytes.get(8..12)?) as u32;
        (checksum == head_checksum(length, offset)).then_some(Self { length, sum })
    }

    /// Returns whether `rest` is the payload and the end byte of this frame.
    pub(super) fn matches(self, rest: &[u8]) -> bool {
        rest.split_last().is_some_and(|(end, body)| {
            *end == END && body.len() == self.length as usize && crc32fast::hash(body) == self.sum
        })
    }
}

fn head_checksum(length: u32, offset: u64) -> u32 {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&offset.to_le_bytes());
    bytes[8..].copy_from_slice(&length.to_le_bytes());
    crc32fast::hash(&bytes)
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}
