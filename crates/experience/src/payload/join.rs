//! Concatenation of payloads.

use bytes::Bytes;

use super::{PayloadError, PayloadHeader, header};

/// Joins payloads into one with all their experiences in order, without decoding.
///
/// Empty byte strings stand for no experiences and are skipped. Lengths are checked, checksums only
/// combined: damage of a part stays detectable in the result.
pub fn concat<P: AsRef<[u8]>>(payloads: &[P]) -> Result<Bytes, PayloadError> {
    let mut data_checksum = crc32fast::Hasher::new();
    let mut metadata_checksum = crc32fast::Hasher::new();
    let mut parts = Vec::with_capacity(payloads.len());
    let mut joined = PayloadHeader { minor: PayloadHeader::MINOR, ..PayloadHeader::default() };
    for payload in payloads.iter().map(AsRef::as_ref).filter(|payload| !payload.is_empty()) {
        let header = header(payload)?;
        parts.push(header.sections(payload)?);
        joined.minor = joined.minor.max(header.minor);
        joined.items += header.items;
        joined.data_bytes += header.data_bytes;
        joined.metadata_bytes += header.metadata_bytes;
        joined.check_limits()?;
        data_checksum.combine(&hasher(header.data_checksum, header.data_bytes));
        metadata_checksum.combine(&hasher(header.metadata_checksum, header.metadata_bytes));
    }
    joined.data_checksum = data_checksum.finalize();
    joined.metadata_checksum = metadata_checksum.finalize();

    let mut out = Vec::with_capacity(joined.payload_bytes() as usize);
    out.extend_from_slice(&joined.write());
    for (data, _) in &parts {
        out.extend_from_slice(data);
    }
    // Offsets are relative to the item's data, so the metadata stays valid.
    for (_, metadata) in &parts {
        out.extend_from_slice(metadata);
    }
    Ok(out.into())
}

fn hasher(checksum: u32, bytes: u64) -> crc32fast::Hasher {
    crc32fast::Hasher::new_with_initial_len(checksum, bytes)
}
