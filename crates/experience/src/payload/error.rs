//! Errors of encoding and decoding payloads.

use crate::FieldError;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PayloadError {
    #[error("{found} bytes are too few for a payload")]
    NoHeader { found: usize },
    #[error("not a payload of experiences: it begins with {0:02x?} instead of `RWXP`")]
    Magic([u8; 4]),
    #[error("format version {major} is not known; this program reads version {known}")]
    Version { major: u16, known: u16 },
    #[error("unknown flags {0:#x}")]
    Flags(u32),
    /// `part` is `header`, `data` or `metadata`.
    #[error("{part} damaged: checksum {found:08x} where {expected:08x} is expected")]
    Checksum { part: &'static str, found: u32, expected: u32 },
    #[error("{found} bytes where the header promises {expected}")]
    Size { found: u64, expected: u64 },
    #[error("{found} {quantity}, but at most {limit} are allowed")]
    Limit { quantity: &'static str, found: u64, limit: u64 },
    /// `found`: number of items, or the number that would fit if the header promises more.
    #[error("{found} items where the header promises {expected}")]
    Items { found: u64, expected: u64 },
    #[error("the items use {found} bytes of data where there are {expected}")]
    DataUse { found: u64, expected: u64 },
    /// Metadata that is not protobuf.
    #[error("metadata cannot be read at byte {at} of it")]
    Metadata { at: usize },
    /// An item that does not match the schema.
    #[error("item {item}: {error}")]
    Schema { item: usize, error: prost::DecodeError },
    #[error("item {item}: {error}")]
    Field { item: usize, error: FieldError },
    #[error("{0} experiences where exactly 1 is expected")]
    NotOne(u64),
}
