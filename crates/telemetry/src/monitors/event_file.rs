//! Records of an event file: a length, its checksum, the bytes, their checksum.

use crc32c::crc32c;
use prost::Message;

/// Adds a message as one record.
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

/// Returns the checksum in the form that files have: turned and shifted, because a checksum over
/// bytes that contain checksums is weak.
fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 3720, appendix B.4, and the check value of the catalogues.
    #[test]
    fn the_checksum_is_the_known_one() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }
}
