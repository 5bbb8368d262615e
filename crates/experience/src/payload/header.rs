//! Fixed-size header of a payload.
//!
//! ```text
//!  0  magic "RWXP"            16  u64 data bytes           32  u32 CRC-32 of the data
//!  4  u16 major, u16 minor    24  u64 metadata bytes       36  u32 CRC-32 of the metadata
//!  8  u32 flags                                            40  u32 zero
//! 12  u32 items                                            44  u32 CRC-32 of bytes 0 to 43
//! ```

use super::{MAX_DATA_BYTES, MAX_ITEMS, MAX_METADATA_BYTES, PayloadError};

const MAGIC: [u8; 4] = *b"RWXP";

/// The part of the header that its own checksum covers.
const CHECKED: usize = PayloadHeader::BYTES - 4;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PayloadHeader {
    /// Minor version of the format. Unknown fields of later ones are ignored.
    pub minor: u16,
    pub items: u64,
    pub data_bytes: u64,
    pub metadata_bytes: u64,
    pub data_checksum: u32,
    pub metadata_checksum: u32,
}

/// Reads the header; the rest of the payload may be missing.
pub fn header(payload: &[u8]) -> Result<PayloadHeader, PayloadError> {
    let bytes: &[u8; PayloadHeader::BYTES] =
        payload.first_chunk().ok_or(PayloadError::NoHeader { found: payload.len() })?;
    PayloadHeader::read(bytes)
}

impl PayloadHeader {
    /// Size of the header, and offset of the data section.
    pub const BYTES: usize = 48;

    /// Major version of the format; others are refused.
    pub const MAJOR: u16 = 1;

    /// Minor version that is written.
    pub const MINOR: u16 = 0;

    /// Size of the whole payload.
    pub fn payload_bytes(&self) -> u64 {
        // Both are limited when a header is read or written, so the sum cannot overflow.
        Self::BYTES as u64 + self.data_bytes + self.metadata_bytes
    }

    fn read(bytes: &[u8; Self::BYTES]) -> Result<Self, PayloadError> {
        let (words, _) = bytes.as_chunks::<4>();
        let word = |at: usize| u32::from_le_bytes(words[at / 4]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        if words[0] != MAGIC {
            return Err(PayloadError::Magic(words[0]));
        }
        // Checked before the checksum: another version may have another header.
        let major = (word(4) & 0xffff) as u16;
        if major != Self::MAJOR {
            return Err(PayloadError::Version { major, known: Self::MAJOR });
        }
        check("header", crc32fast::hash(&bytes[..CHECKED]), word(CHECKED))?;
        if word(8) != 0 {
            return Err(PayloadError::Flags(word(8)));
        }
        let header = Self {
            minor: (word(4) >> 16) as u16,
            items: word(12).into(),
            data_bytes: long(16),
            metadata_bytes: long(24),
            data_checksum: word(32),
            metadata_checksum: word(36),
        };
        header.check_limits()?;
        Ok(header)
    }

    /// Encodes a header that passed [`check_limits`](Self::check_limits).
    pub(super) fn write(&self) -> [u8; Self::BYTES] {
        let Self { minor, items, data_bytes, metadata_bytes, data_checksum, metadata_checksum } =
            *self;
        let version = u32::from(Self::MAJOR) | u32::from(minor) << 16;
        let mut bytes = [0; Self::BYTES];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(0, &MAGIC);
        put(4, &version.to_le_bytes());
        put(12, &(items as u32).to_le_bytes());
        put(16, &data_bytes.to_le_bytes());
        put(24, &metadata_bytes.to_le_bytes());
        put(32, &data_checksum.to_le_bytes());
        put(36, &metadata_checksum.to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..CHECKED]);
        bytes[CHECKED..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    pub(super) fn check_limits(&self) -> Result<(), PayloadError> {
        for (quantity, found, limit) in [
            ("items", self.items, MAX_ITEMS),
            ("bytes of data", self.data_bytes, MAX_DATA_BYTES),
            ("bytes of metadata", self.metadata_bytes, MAX_METADATA_BYTES),
        ] {
            if found > limit {
                return Err(PayloadError::Limit { quantity, found, limit });
            }
        }
        Ok(())
    }

    /// Returns the data section and the metadata.
    pub(super) fn sections<'a>(
        &self,
        payload: &'a [u8],
    ) -> Result<(&'a [u8], &'a [u8]), PayloadError> {
        let (found, expected) = (payload.len() as u64, self.payload_bytes());
        if found != expected {
            return Err(PayloadError::Size { found, expected });
        }
        // The size of an existing slice fits `usize`.
        Ok(payload[Self::BYTES..].split_at(self.data_bytes as usize))
    }
}

pub(super) fn check(part: &'static str, found: u32, expected: u32) -> Result<(), PayloadError> {
    if found == expected { Ok(()) } else { Err(PayloadError::Checksum { part, found, expected }) }
}
