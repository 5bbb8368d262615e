//! Throughput of encoding and decoding, next to a plain copy of the same bytes. Compare figures of
//! one run only: machines differ from day to day.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rollway_experience::{
    Array, Eid, Experience, ExperienceFields, Json, deserialize_many, payload, serialize_many,
};

const EXPERIENCES: u32 = 1_000;
const TOKENS: i32 = 2_000;
const PROMPT: usize = 500;
const ROUNDS: usize = 200;

fn main() {
    let experiences: Vec<Experience> = (0..EXPERIENCES).map(experience).collect();
    let bytes = serialize_many(&experiences).expect("experiences that keep to the rules");
    let parts: Vec<Bytes> = experiences
        .chunks(10)
        .map(|part| serialize_many(part).expect("experiences that keep to the rules"))
        .collect();
    println!("{EXPERIENCES} experiences of {TOKENS} tokens: {} bytes", bytes.len());
    println!("{:36} {:>12} {:>14} {:>9}", "", "best", "best", "median");

    let size = bytes.len();
    measure("copy of the bytes (limit)", size, || bytes.to_vec());
    measure("serialize_many", size, || serialize_many(&experiences));
    measure("verify (checksums alone)", size, || payload::verify(&bytes));
    measure("deserialize_many", size, || deserialize_many(bytes.clone()));
    measure("deserialize_many, all elements read", size, || {
        let read = deserialize_many(bytes.clone()).expect("a whole payload");
        read.iter().map(sum).sum::<f64>()
    });
    measure("concat of 100 payloads", size, || payload::concat(&parts));
}

/// Prints the best and the median of several rounds. On a shared machine only the best shows the
/// cost: long rounds are interrupted.
fn measure<R>(name: &str, bytes: usize, mut work: impl FnMut() -> R) {
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let begin = Instant::now();
            let result = black_box(work());
            let time = begin.elapsed();
            drop(result);
            time
        })
        .collect();
    times.sort();
    let rate = |time: Duration| bytes as f64 / time.as_secs_f64() / 1e6;
    let (best, median) = (times[0], times[times.len() / 2]);
    println!("{name:36} {:9} us {:9.0} MB/s {:9.0}", best.as_micros(), rate(best), rate(median));
}

fn sum(experience: &Experience) -> f64 {
    let tokens: i64 = experience.tokens.iter().map(i64::from).sum();
    let logprobs: f32 = experience.logprobs.iter().flat_map(Array::iter).sum();
    let counted = experience.action_mask.iter().flat_map(Array::iter).filter(|&own| own).count();
    tokens as f64 + f64::from(logprobs) + counted as f64
}

fn experience(number: u32) -> Experience {
    let response = TOKENS as usize - PROMPT;
    Experience::new(ExperienceFields {
        eid: Eid {
            batch: 7.into(),
            task: i64::from(number / 8).into(),
            run: u64::from(number % 8),
            step: 0,
            suffix: Eid::suffix_of([0, (number >> 8) as u8, number as u8]),
        },
        tokens: (0..TOKENS).map(|token| token * 31 % 150_000).collect(),
        prompt_length: PROMPT,
        logprobs: Some((0..response).map(|position| -0.001 * position as f32).collect()),
        action_mask: Some((0..response).map(|position| position % 7 != 0).collect()),
        reward: Some(f64::from(number % 2)),
        info: Json::new(r#"{"model_version":7,"use_count":0,"task_index":{"index":3}}"#)
            .expect("JSON"),
        metrics: [("accuracy".to_owned(), 0.5)].into(),
        ..ExperienceFields::default()
    })
    .expect("fields that keep to the rules")
}
