//! What keeps bytes from being a payload, or experiences from becoming one.

use crate::FieldError;

/// Why bytes cannot be read, or experiences cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// There is no room for a header.
    #[error("{found} bytes are too few for a payload")]
    NoHeader {
        /// How many bytes there are.
        found: usize,
    },
    /// It does not begin like a payload.
    #[error("not a payload of experiences: it begins with {0:02x?} instead of `RWXP`")]
    Magic([u8; 4]),
    /// It is of a later format.
    #[error("format version {major} is not known; this program reads version {known}")]
    Version {
        /// The payload's major version.
        major: u16,
        known: u16,
    },
    /// It asks for something that this version does not know.
    #[error("unknown flags {0:#x}")]
    Flags(u32),
    /// A part of it is not as it was written.
    #[error("{part} damaged: checksum {found:08x} where {expected:08x} is expected")]
    Checksum {
        /// Which part: `header`, `data` or `metadata`.
        part: &'static str,
        /// The checksum of what is there.
        found: u32,
        /// The checksum of what was written.
        expected: u32,
    },
    /// It is cut off, or something follows it.
    #[error("{found} bytes where the header promises {expected}")]
    Size {
        /// How many bytes there are.
        found: u64,
        expected: u64,
    },
    /// There is more of something than there may be.
    #[error("{found} {what}, but at most {limit} are allowed")]
    Limit {
        /// What it is: `items`, `bytes of data` or `bytes of metadata`.
        what: &'static str,
        found: u64,
        /// How much there may be.
        limit: u64,
    },
    /// The header and the metadata disagree about the number of experiences.
    #[error("{found} items where the header promises {expected}")]
    Items {
        /// How many were found or, if there is no room for what is promised, how many would fit.
        found: u64,
        expected: u64,
    },
    /// The items do not share out the data section.
    #[error("the items use {found} bytes of data where there are {expected}")]
    DataUse {
        /// How many bytes they use.
        found: u64,
        expected: u64,
    },
    /// The metadata is not protobuf.
    #[error("metadata cannot be read at byte {at} of it")]
    Metadata {
        /// Where the first field begins that cannot be read.
        at: usize,
    },
    /// An item of the metadata is not as the schema says.
    #[error("item {item}: {error}")]
    Schema {
        item: usize,
        /// What protobuf says.
        error: prost::DecodeError,
    },
    /// A field of an experience has no valid value.
    #[error("item {item}: {error}")]
    Field {
        item: usize,
        /// Which field, and what is wrong.
        error: FieldError,
    },
    /// A single experience was expected.
    #[error("{0} experiences where exactly 1 is expected")]
    NotOne(u64),
}
