//! Records of an event file: a length, its checksum, the bytes, their checksum.

use prost::Message;

/// The polynomial of CRC-32C, its bits in reverse.
const POLYNOMIAL: u32 = 0x82f6_3b78;

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ POLYNOMIAL } else { value >> 1 };
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
};

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

fn crc32c(bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| TABLE[((sum ^ u32::from(*byte)) & 0xff) as usize] ^ (sum >> 8);
    !bytes.iter().fold(!0, step)
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
