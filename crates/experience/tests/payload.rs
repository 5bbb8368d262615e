//! Untrusted and old payloads: old ones stay readable; malformed ones give an error, never a panic,
//! and allocate little.

#![expect(unsafe_code, reason = "only an allocator knows how much is allocated")]

mod golden;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bytes::Bytes;
use golden::golden;
use proptest::collection::vec;
use proptest::prelude::*;
use rollway_experience::payload::{self, PayloadHeader};
use rollway_experience::{
    Experience, ExperienceKind, PayloadError, deserialize_many, serialize_many,
};

/// Two experiences as version 1.0 of the format writes them. Never to be changed: a later version
/// that writes something else adds its own dump.
const GOLDEN_1_0: &str = "
    5257585001000000000000000200000068000000000000001901000000000000
    2c25648dadde2acb00000000120bc71601000000ffffffffffffff7f00000000
    000000bf0000008001000000000000000000803f000000800000004000000080
    0000404000000080000080400000008001020304050600000100000002000000
    0300000000000000040000000500000006000000000000000adb010a11080c22
    0133280130023a063061316232631002184820012a0508051201033207080912
    010218103a070801120102181841000000000000d03f4a137b226d6f64656c5f
    76657273696f6e223a347d52130a08616363757261637911000000000000e03f
    580262080a020101120208016a04322b323f7202c3a97a115b7b22726f6c6522
    3a2275736572227d5d8201025b5d9a010708091201021820a201070809120102
    1828aa010708091201021830b2010708091201021838ca01120a06706978656c
    7312080808120201031840d201080a016112016218070a390a0a1206372f6576
    616c18001003182020022a0508051201028a01035b315d9201035b325dba0107
    08051201011808c2010708051201031810
";

/// Key of an item in the metadata.
const ITEM: u8 = 10;

/// Maximum bytes allocated per byte read.
const ALLOCATED_PER_BYTE_MAX: usize = 64;

/// Maximum bytes allocated regardless of size: one decoded item and the text of an error.
const ALLOCATED_MAX: usize = 8 * 1024;

#[test]
fn the_golden_payload_stays_readable() {
    let bytes = Bytes::from(unhex(GOLDEN_1_0));
    let read = deserialize_many(bytes.clone()).expect("the golden payload");
    assert_eq!(read, golden());
    assert_eq!(
        read.iter().map(Experience::kind).collect::<Vec<_>>(),
        [ExperienceKind::MultiTurn, ExperienceKind::Dpo]
    );
    // Not guaranteed by the format, but a change must be intended.
    let written = serialize_many(&golden()).expect("experiences that keep to the rules");
    assert_eq!(written, bytes, "now written: {}", hex(&written));
}

#[test]
fn every_truncation_is_detected() {
    let bytes = small();
    for end in 0..bytes.len() {
        assert!(read(bytes.slice(..end)).is_err(), "cut off after {end} bytes");
    }
    let longer = [&bytes[..], &[0]].concat();
    let (found, expected) = (longer.len() as u64, bytes.len() as u64);
    assert_eq!(read(longer.into()), Err(PayloadError::Size { found, expected }));
}

#[test]
fn every_flipped_bit_is_detected_and_under_a_valid_checksum_never_panics() {
    let bytes = small();
    for byte in 0..bytes.len() {
        for bit in 0..8 {
            let mut flipped = bytes.to_vec();
            flipped[byte] ^= 1 << bit;
            assert!(read(flipped.clone().into()).is_err(), "bit {bit} of byte {byte}");
            reseal(&mut flipped);
            survive(flipped);
        }
    }
}

#[test]
fn errors_name_the_cause() {
    let bytes = small();
    let message = |change: fn(&mut Vec<u8>)| {
        let mut changed = bytes.to_vec();
        change(&mut changed);
        read(changed.into()).expect_err("it was damaged").to_string()
    };
    assert_eq!(message(Vec::clear), "0 bytes are too few for a payload");
    let pickle = message(|bytes| bytes[..2].copy_from_slice(&[0x80, 4]));
    assert!(pickle.starts_with("not a payload of experiences"), "{pickle}");
    let later = message(|bytes| bytes[4] = 2);
    assert_eq!(later, "format version 2 is not known; this program reads version 1");
    let flags = message(|bytes| {
        bytes[8] = 1;
        reseal(bytes);
    });
    assert_eq!(flags, "unknown flags 0x1");
    let data = message(|bytes| bytes[PayloadHeader::BYTES] ^= 1);
    assert!(data.starts_with("data damaged: checksum "), "{data}");
    let cut = message(|bytes| bytes.truncate(100));
    assert_eq!(cut, format!("100 bytes where the header promises {}", bytes.len()));
}

#[test]
fn fields_of_later_versions_are_skipped() {
    let header = payload::header(&small()).expect("a header");
    let metadata = &small()[PayloadHeader::BYTES + header.data_bytes as usize..];
    let data = &small()[PayloadHeader::BYTES..PayloadHeader::BYTES + header.data_bytes as usize];
    // Unknown fields 100: a number, eight bytes, a text and four bytes.
    let unknown = b"\xa0\x06\x07\xa1\x0612345678\xa2\x06\x03abc\xa5\x061234";
    let mut later = seal(1, data, &[&unknown[..], metadata, unknown].concat());
    // Minor version 9.
    later[6] = 9;
    reseal(&mut later);
    assert_eq!(payload::header(&later).expect("a header").minor, 9);
    assert_eq!(read(later.into()), read(small()));

    // The same inside of the item.
    let mut item = &metadata[1..];
    prost::decode_length_delimiter(&mut item).expect("a length");
    let metadata = delimited(&[ITEM], &[item, unknown].concat());
    assert_eq!(read(seal(1, data, &metadata).into()), read(small()));
}

#[test]
fn count_needs_only_the_header() {
    let bytes = Bytes::from(unhex(GOLDEN_1_0));
    assert_eq!(payload::count(&bytes[..PayloadHeader::BYTES]), Ok(2));
    let found = PayloadHeader::BYTES - 1;
    assert_eq!(payload::count(&bytes[..found]), Err(PayloadError::NoHeader { found }));
}

#[test]
fn concat_skips_empty_and_refuses_truncated_payloads() {
    let joined = payload::concat(&[small(), Bytes::new(), small()]).expect("whole payloads");
    assert_eq!(deserialize_many(joined).map(|read| read.len()), Ok(2));
    let cut = payload::concat(&[small(), small().slice(..60)]);
    assert!(matches!(cut, Err(PayloadError::Size { found: 60, .. })), "{cut:?}");
    // Damage does not get a valid checksum on the way.
    let mut damaged = small().to_vec();
    damaged[PayloadHeader::BYTES] ^= 1;
    let joined = payload::concat(&[small(), damaged.into()]).expect("whole payloads");
    assert!(matches!(read(joined), Err(PayloadError::Checksum { part: "data", .. })));
    assert_eq!(payload::concat::<Bytes>(&[]), serialize_many(&[]));
}

/// Inputs that maximize allocation.
#[test]
fn decoding_allocates_little_for_any_bytes() {
    // Just above a power of two, where a grown list has the most spare capacity.
    const MANY: usize = 65_600;
    // The smallest item that there is: kind, size of data, length of prompt, tokens.
    let smallest = [16, 1, 24, 8, 32, 1, 42, 5, 8, 5, 18, 1, 2];
    let items = delimited(&[ITEM], &smallest).repeat(MANY);
    let data = vec![1; 8 * MANY];
    let read = read(seal(MANY as u32, &data, &items).into());
    assert_eq!(read.map(|read| read.len()), Ok(MANY));
    // Items without content; as many as the header says, and more.
    survive(seal(MANY as u32 / 10, &data, &[ITEM, 0].repeat(MANY)));
    survive(seal(1, &data, &[ITEM, 0].repeat(MANY)));

    // An item that has much of something.
    let keys: Vec<String> =
        ('\u{10000}'..).take(MANY).map(|character| character.to_string()).collect();
    let map = |key: &[u8]| -> Vec<u8> {
        let entry = |name: &String| delimited(key, &delimited(&[10], name.as_bytes()));
        keys.iter().flat_map(entry).collect()
    };
    let long =
        |key: &[u8], inner: u8, byte: u8| delimited(key, &delimited(&[inner], &vec![byte; MANY]));
    let text = |text: &str| delimited(&[122], text.as_bytes());
    let much = [
        ("metrics", map(&[82])),
        ("multi_modal_inputs", map(&[202, 1])),
        ("custom_fields", delimited(&[210, 1], &[24, 1]).repeat(MANY)),
        ("custom_fields", delimited(&[210, 1], &[]).repeat(MANY)),
        ("shape of logprobs", long(&[50], 18, 0)),
        ("tokens of model_versions", long(&[98], 10, 1)),
        ("versions of model_versions", long(&[98], 18, 1)),
        ("messages", text(&"[".repeat(MANY))),
        ("messages", text(&format!("[0{}]", r#",{"":0}"#.repeat(MANY)))),
        ("messages", text(&format!("\"{}\"", r"\n".repeat(MANY)))),
    ];
    for (_, much) in much {
        let content = [&smallest[..], &much].concat();
        survive(seal(1, &[1; 8], &delimited(&[ITEM], &content)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        survive(bytes);
    }

    #[test]
    fn random_sections_never_panic(
        items in 0..4_u32,
        data in vec(any::<u8>(), 0..64),
        metadata in vec(any::<u8>(), 0..100),
    ) {
        survive(seal(items, &data, &metadata));
    }

    #[test]
    fn damage_under_valid_checksums_never_panics(
        damage in vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = unhex(GOLDEN_1_0);
        let length = bytes.len();
        for (index, byte) in damage {
            bytes[index.index(length)] = byte;
        }
        reseal(&mut bytes);
        survive(bytes);
    }
}

/// Decodes bytes; what decodes must encode again.
fn survive(bytes: Vec<u8>) {
    if let Ok(experiences) = read(bytes.into()) {
        let written = serialize_many(&experiences).expect("what was read keeps to the rules");
        let again = deserialize_many(written.clone()).expect("what was written can be read");
        // Not the experiences themselves: a reward may be NaN, which equals nothing.
        assert_eq!(serialize_many(&again), Ok(written));
    }
}

fn read(bytes: Bytes) -> Result<Vec<Experience>, PayloadError> {
    let size = bytes.len();
    let before = Counting::start();
    let read = deserialize_many(bytes);
    let peak = Counting::peak() - before;
    let limit = ALLOCATED_MAX + ALLOCATED_PER_BYTE_MAX * size;
    assert!(peak <= limit, "{peak} bytes were allocated to read {size}");
    read
}

/// Builds a payload from sections with a matching header.
fn seal(items: u32, data: &[u8], metadata: &[u8]) -> Vec<u8> {
    let mut bytes = b"RWXP\x01\0\0\0\0\0\0\0".to_vec();
    bytes.extend(items.to_le_bytes());
    bytes.extend((data.len() as u64).to_le_bytes());
    bytes.extend((metadata.len() as u64).to_le_bytes());
    bytes.resize(PayloadHeader::BYTES, 0);
    bytes.extend([data, metadata].concat());
    reseal(&mut bytes);
    bytes
}

/// Recomputes the checksums, as far as the lengths in the header allow.
fn reseal(bytes: &mut [u8]) {
    let length = |at: usize| {
        let length =
            bytes[at..at + 8].iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        usize::try_from(length).unwrap_or(usize::MAX)
    };
    let data = PayloadHeader::BYTES..PayloadHeader::BYTES.saturating_add(length(16));
    let metadata = data.end..data.end.saturating_add(length(24));
    let checksum = |range| crc32fast::hash(bytes.get(range).unwrap_or_default()).to_le_bytes();
    let checksums = [checksum(data), checksum(metadata)].concat();
    bytes[32..40].copy_from_slice(&checksums);
    let header = crc32fast::hash(&bytes[..44]).to_le_bytes();
    bytes[44..48].copy_from_slice(&header);
}

fn small() -> Bytes {
    serialize_many(&golden()[..1]).expect("experiences that keep to the rules")
}

/// Encodes a length-delimited protobuf field.
fn delimited(key: &[u8], content: &[u8]) -> Vec<u8> {
    let mut field = key.to_vec();
    prost::encode_length_delimiter(content.len(), &mut field).expect("a vector has room");
    field.extend_from_slice(content);
    field
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let (pairs, _) = digits.as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(&String::from_utf8_lossy(pair), 16);
    pairs.iter().map(|pair| byte(pair).expect("two hexadecimal digits")).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Allocator that counts the bytes held per thread, and their peak.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

impl Counting {
    /// Resets the peak and returns the bytes held.
    fn start() -> usize {
        PEAK.set(HELD.get());
        Self::peak()
    }

    fn peak() -> usize {
        // Memory may be freed by another thread than its owner, but not in these tests.
        usize::try_from(PEAK.get()).unwrap_or_default()
    }

    fn add(bytes: isize) {
        HELD.set(HELD.get() + bytes);
        PEAK.set(PEAK.get().max(HELD.get()));
    }
}

// SAFETY: all work is the system's; a layout is never larger than `isize::MAX`.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::add(layout.size() as isize);
        // SAFETY: the caller keeps to the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        Self::add(-(layout.size() as isize));
        // SAFETY: the caller keeps to the contract, which is the same.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;
