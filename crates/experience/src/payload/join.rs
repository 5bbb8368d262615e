//! Payloads as wholes: joined, or moved to where their arrays are aligned.

use bytes::Bytes;

use super::{ALIGNMENT, PayloadError, PayloadHeader, header};

/// Joins payloads into one with all their experiences in order. Nothing is decoded.
///
/// Empty byte strings, which stand for no experiences, are skipped. Lengths are compared, but
/// checksums are only combined: damage of a payload is damage of the result.
pub fn concat<P: AsRef<[u8]>>(payloads: &[P]) -> Result<Bytes, PayloadError> {
    let mut data_checksum = crc32fast::Hasher::new();
    let mut metadata_checksum = crc32fast::Hasher::new();
    let mut parts = Vec::with_capacity(payloads.len());
    let mut joined = PayloadHeader {
        minor: PayloadHeader::MINOR,
        items: 0,
        data_bytes: 0,
        metadata_bytes: 0,
        data_checksum: 0,
        metadata_checksum: 0,
    };
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
    for part in &parts {
        out.extend_from_slice(part.data);
    }
    // Offsets count from the begin of their item's data, so the metadata can stay as it is.
    for part in &parts {
        out.extend_from_slice(part.metadata);
    }
    Ok(out.into())
}

/// Returns the payload in memory where its arrays are aligned: itself, if they are, or a copy.
///
/// A payload that came inside of a larger message may begin anywhere.
pub fn aligned(payload: Bytes) -> Bytes {
    if payload.as_ptr().align_offset(ALIGNMENT) == 0 {
        return payload;
    }
    let mut copy: Vec<u8> = Vec::with_capacity(payload.len() + ALIGNMENT);
    let begin = copy.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
    copy.resize(begin, 0);
    copy.extend_from_slice(&payload);
    Bytes::from(copy).slice(begin..)
}

fn hasher(checksum: u32, bytes: u64) -> crc32fast::Hasher {
    crc32fast::Hasher::new_with_initial_len(checksum, bytes)
}
