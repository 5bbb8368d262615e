//! Encoding of experiences: language-neutral, self-describing, with a version and checksums.
//!
//! A payload is a header, a data section with the elements of all arrays, and protobuf metadata
//! that locates each array. Decoding makes slices of the payload and copies no array.
//! `docs/experience-payload.md` describes the layout.

mod decode;
mod encode;
mod error;
mod header;
mod items;
mod join;

use bytes::Bytes;

pub use self::decode::deserialize_many;
pub use self::encode::serialize_many;
pub use self::error::PayloadError;
pub use self::header::{PayloadHeader, header};
pub use self::join::concat;
use super::Experience;

/// Generated messages of the metadata.
#[allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::use_self,
    reason = "generated code follows the generator's habits, and `Metadata` is read item by item"
)]
mod proto {
    include!("../proto/experience.prost.inc");
}

/// Maximum number of experiences in a payload.
pub const MAX_ITEMS: u64 = 1 << 24;

/// Maximum size of the data section in bytes.
pub const MAX_DATA_BYTES: u64 = 1 << 40;

/// Maximum size of the metadata in bytes: the limit of protobuf in all languages.
pub const MAX_METADATA_BYTES: u64 = (1 << 31) - 1;

/// Offsets of arrays are multiples of this, so that they can be used in place.
pub const ALIGNMENT: usize = 8;

/// Encodes one experience.
pub fn serialize(experience: &Experience) -> Result<Bytes, PayloadError> {
    serialize_many(std::slice::from_ref(experience))
}

/// Decodes a payload of exactly one experience.
pub fn deserialize(payload: Bytes) -> Result<Experience, PayloadError> {
    let not_one = PayloadError::NotOne(count(&payload)?);
    let mut experiences = deserialize_many(payload)?;
    match (experiences.pop(), experiences.is_empty()) {
        (Some(experience), true) => Ok(experience),
        _ => Err(not_one),
    }
}

/// Returns the number of experiences. Reads the header only.
pub fn count(payload: &[u8]) -> Result<u64, PayloadError> {
    Ok(header(payload)?.items)
}

/// Checks lengths and checksums without decoding.
pub fn verify(payload: &[u8]) -> Result<PayloadHeader, PayloadError> {
    let header = header(payload)?;
    let (data, metadata) = header.sections(payload)?;
    header::check("data", crc32fast::hash(data), header.data_checksum)?;
    header::check("metadata", crc32fast::hash(metadata), header.metadata_checksum)?;
    Ok(header)
}
