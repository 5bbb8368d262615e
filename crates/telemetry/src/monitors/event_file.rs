//! Records of an event file: length, checksum of the length, bytes, checksum of the bytes.

use crc32c::crc32c;
use prost::Message;

/// Appends a message as one record.
pub(super) fn append(message: &impl Message, to: &mut Vec<u8>) {
    let length = message.encoded_len() as u64;
    let head = length.to_le_bytes();
    to.extend(head);
    to.extend(masked(&head).to_le_bytes());
    let begin = to.len();
    message.encode_raw(to);
    let sum = masked(&to[begin..]);
    to.extend(sum.to_le_bytes());
}

/// Returns the checksum of the format: rotated and shifted, since a checksum over bytes that
/// contain checksums is weak.
fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Examples of RFC 3720, appendix B.4, and the usual check value.
    #[test]
    fn crc32c_matches_published_values() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }
}
