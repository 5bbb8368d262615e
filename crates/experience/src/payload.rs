//! Experiences as bytes: language-neutral, self-describing, with a version and checksums.
//!
//! A payload is a header, a data section with the elements of all arrays, and metadata in protobuf
//! that tells where each array lies. Decoding copies no array: it makes slices of the payload. The
//! layout is told in `docs/experience-payload.md` for readers in other languages.

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
pub use self::join::{aligned, concat};
use super::Experience;

/// The messages of the metadata, generated from the schema.
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

/// How many experiences a payload may have.
pub const MAX_ITEMS: u64 = 1 << 24;

/// How many bytes the data section may have.
pub const MAX_DATA_BYTES: u64 = 1 << 40;

/// How many bytes the metadata may have: what protobuf can read in any language.
pub const MAX_METADATA_BYTES: u64 = (1 << 31) - 1;

/// Where arrays begin is a multiple of this, so that they can be used where they lie.
pub const ALIGNMENT: usize = 8;

/// Makes a payload of one experience.
pub fn serialize(experience: &Experience) -> Result<Bytes, PayloadError> {
    serialize_many(std::slice::from_ref(experience))
}

/// Reads a payload of exactly one experience.
pub fn deserialize(payload: Bytes) -> Result<Experience, PayloadError> {
    let not_one = PayloadError::NotOne(count(&payload)?);
    let mut experiences = deserialize_many(payload)?;
    match (experiences.pop(), experiences.is_empty()) {
        (Some(experience), true) => Ok(experience),
        _ => Err(not_one),
    }
}

/// Returns how many experiences a payload has. Only the header is looked at.
pub fn count(payload: &[u8]) -> Result<u64, PayloadError> {
    Ok(header(payload)?.items)
}

/// Checks that a payload is whole, by its lengths and checksums. Nothing is decoded.
pub fn verify(payload: &[u8]) -> Result<PayloadHeader, PayloadError> {
    let header = header(payload)?;
    let sections = header.sections(payload)?;
    header.check(sections)?;
    Ok(header)
}
