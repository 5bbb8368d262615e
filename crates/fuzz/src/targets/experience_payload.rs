//! Experience payloads, whole or with correct lengths and checksums around any content.

use bytes::Bytes;
use rollway_experience::payload::{self, PayloadHeader};
use rollway_experience::{
    Array, Eid, Experience, ExperienceFields, ExperienceKind, Json, ModelVersions, Tensor,
    VersionSpan, deserialize_many, serialize_many,
};
use serde_json::json;

use crate::FuzzTarget;
use crate::input::{choice, with_bytes};

pub(crate) const TARGET: FuzzTarget = FuzzTarget {
    name: "experience_payload",
    max_bytes: 16 << 10,
    memory: 1 << 20,
    per_byte: 512,
    parse,
    seeds,
};

/// Bytes of the header before its checksum.
const CHECKED: usize = PayloadHeader::BYTES - 4;

fn parse(input: &[u8]) {
    let (choice, rest) = choice(input);
    let payload = if choice == 0 { rest.to_vec() } else { sealed(rest) };
    let _ = payload::count(&payload);
    let Ok(experiences) = deserialize_many(payload.into()) else { return };
    for experience in &experiences {
        let _ = (experience.check(), experience.check_lengths(), experience.to_json());
        let _ = (experience.eid.uid(), experience.response_length());
    }
    // What was decoded is encoded, and decoded again to the same.
    let Ok(encoded) = serialize_many(&experiences) else { return };
    let again = deserialize_many(encoded.clone()).expect("an encoded payload is decoded");
    assert_eq!(format!("{again:?}"), format!("{experiences:?}"));
    let twice = payload::concat(&[encoded.clone(), encoded]).expect("two payloads are one");
    let twice = deserialize_many(twice).expect("a joined payload is decoded");
    assert_eq!(twice.len(), 2 * experiences.len());
}

/// Returns a payload with a correct header: two bytes with the number of experiences, two with the
/// length of the metadata, the metadata, and the data.
fn sealed(input: &[u8]) -> Vec<u8> {
    let Some((numbers, rest)) = input.split_first_chunk::<4>() else { return input.to_vec() };
    let number = |at: usize| u16::from_le_bytes([numbers[at], numbers[at + 1]]);
    let (metadata, data) = rest.split_at(usize::from(number(2)).min(rest.len()));
    let mut header = [0; PayloadHeader::BYTES];
    let mut put = |at: usize, part: &[u8]| header[at..at + part.len()].copy_from_slice(part);
    put(0, b"RWXP");
    put(4, &PayloadHeader::MAJOR.to_le_bytes());
    put(12, &u32::from(number(0)).to_le_bytes());
    put(16, &(data.len() as u64).to_le_bytes());
    put(24, &(metadata.len() as u64).to_le_bytes());
    put(32, &crc32fast::hash(data).to_le_bytes());
    put(36, &crc32fast::hash(metadata).to_le_bytes());
    let checksum = crc32fast::hash(&header[..CHECKED]);
    header[CHECKED..].copy_from_slice(&checksum.to_le_bytes());
    [&header, data, metadata].concat()
}

/// Reverses [`sealed`].
fn opened(payload: &[u8]) -> Vec<u8> {
    let header = payload::header(payload).expect("a payload of this process");
    let (data, metadata) = payload[PayloadHeader::BYTES..].split_at(header.data_bytes as usize);
    let numbers = [header.items as u16, metadata.len() as u16].map(u16::to_le_bytes).concat();
    [&[1], &*numbers, metadata, data].concat()
}

/// Returns one experience with few fields and one with all.
pub(super) fn experiences() -> Vec<Experience> {
    let tokens = || Array::from_iter([1, 2, 3, 4]);
    let floats = || Some(Array::from_iter([0.5_f32, -0.25]));
    let versions =
        [VersionSpan { version: Some(3), tokens: 1 }, VersionSpan { version: None, tokens: 1 }];
    let json = |value| Json::from_value(&value).expect("a small value");
    let small = ExperienceFields { tokens: tokens(), prompt_length: 2, ..Default::default() };
    let whole = ExperienceFields {
        eid: Eid { batch: 7.into(), task: "gsm8k".into(), run: 1, step: 2, suffix: "ab".into() },
        logprobs: floats(),
        reward: Some(1.0),
        token_level_reward: floats(),
        advantages: floats(),
        returns: floats(),
        action_mask: Some(Array::from_iter([true, false])),
        model_versions: ModelVersions::from_spans(versions).ok(),
        info: json(json!({"model_version": 3})),
        metrics: [("reward".to_owned(), 0.5)].into(),
        prompt_text: Some("What?".to_owned()),
        response_text: Some("That.".to_owned()),
        messages: Some(json(json!([{"role": "user", "content": "What?"}]))),
        multi_modal_inputs: [("image".to_owned(), image())].into(),
        ..small.clone()
    };
    let new = |kind, fields| Experience::with_kind(kind, fields).expect("valid fields");
    vec![new(ExperienceKind::SingleTurn, small), new(ExperienceKind::MultiTurn, whole)]
}

fn image() -> Tensor {
    let data = Bytes::from_static(&[0; 8]);
    Tensor::new(rollway_experience::Dtype::ALL[0], vec![1], data.slice(..size())).expect("a tensor")
}

fn size() -> usize {
    rollway_experience::Dtype::ALL[0].size()
}

fn seeds() -> Vec<Vec<u8>> {
    let experiences = experiences();
    let payload = |some: &[Experience]| serialize_many(some).expect("valid experiences");
    let payloads = [payload(&experiences[..1]), payload(&experiences), payload(&[])];
    let whole = payloads.iter().map(|payload| with_bytes(0, payload));
    whole.chain(payloads.iter().map(|payload| opened(payload))).collect()
}
