//! Throughput of the pipeline beside decoding and encoding alone. Compare figures of one run only.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::unwrap_used, reason = "a benchmark that fails has no figures")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rollway_data::buffer::{ExperienceWriter, Result, WriteResult};
use rollway_data::pipeline::{Operator, OperatorRegistry, Pipeline};
use rollway_data::{Sample, WriteBatch};
use rollway_experience::{
    Eid, Experience, ExperienceFields, Json, deserialize_many, serialize_many,
};
use serde_json::{Value, json};

const TASKS: u32 = 64;
const RUNS: u32 = 16;
const TOKENS: i32 = 2_000;
const PROMPT: usize = 500;
const ROUNDS: usize = 50;

/// Takes everything and keeps nothing, so that only the pipeline is measured.
struct Sink;

impl ExperienceWriter for Sink {
    fn write(&mut self, batch: &WriteBatch) -> Result<WriteResult> {
        Ok(WriteResult { stored: black_box(batch).samples.len(), ..WriteResult::default() })
    }

    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}

fn main() {
    let count = TASKS * RUNS;
    let experiences: Vec<Experience> = (0..count).map(experience).collect();
    // One payload for each task, as a slice of runs returns it.
    let payloads: Vec<Bytes> =
        experiences.chunks(RUNS as usize).map(|runs| serialize_many(runs).unwrap()).collect();
    let size: usize = payloads.iter().map(Bytes::len).sum();
    println!("{count} experiences of {TOKENS} tokens in {TASKS} payloads: {size} bytes");
    println!("{:44} {:>12} {:>16} {:>16}", "", "best", "best", "median");

    measure("decode", || payloads.iter().cloned().map(deserialize_many).count());
    measure("decode and encode one by one (limit)", || encode(&payloads));
    let (limit, with_advantages) = (&payloads, with_advantages(&experiences));
    measure("the same with advantages in it (limit)", || encode(&with_advantages));
    let filters = [
        ("invalid_reward_filter", json!(null)),
        ("reward_filter", json!({"threshold": -1.0})),
        ("reward_std_filter", json!(null)),
    ];
    let all = [&filters[..], &[("pass_rate_calculator", json!(null)), ("grpo", json!(null))]];
    for (name, operators, saves_input) in [
        ("pipeline without operators", vec![], false),
        ("pipeline: filters", filters.to_vec(), false),
        ("pipeline: filters, pass rate, grpo", all.concat(), false),
        ("pipeline: the same, input saved", all.concat(), true),
    ] {
        let input = saves_input.then(|| Box::new(Sink) as Box<dyn ExperienceWriter>);
        let mut pipeline = Pipeline::new(build(&operators), input, Box::new(Sink));
        pipeline.prepare().unwrap();
        measure(name, || {
            let report = pipeline.process("batch", limit).unwrap();
            assert_eq!(report.stored, count as usize);
            report
        });
    }
}

fn build(operators: &[(&str, Value)]) -> Vec<Box<dyn Operator>> {
    let registry = OperatorRegistry::built_in();
    let build = |(name, args): &(&str, Value)| registry.build(name, args).unwrap();
    operators.iter().map(build).collect()
}

fn encode(payloads: &[Bytes]) -> Vec<Sample> {
    let decoded = payloads.iter().cloned().map(deserialize_many);
    let experiences = decoded.flat_map(|payload| payload.unwrap());
    let encode = |experience| Sample::new(&experience).unwrap();
    experiences.map(encode).collect()
}

fn with_advantages(experiences: &[Experience]) -> Vec<Bytes> {
    let [mut grpo] = build(&[("grpo", json!(null))]).try_into().ok().unwrap();
    let outcome = grpo.process(experiences.to_vec()).unwrap();
    let runs = outcome.experiences.chunks(RUNS as usize);
    runs.map(|runs| serialize_many(runs).unwrap()).collect()
}

/// Prints the best and the median of several rounds, in experiences per second.
fn measure<R>(name: &str, mut work: impl FnMut() -> R) {
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let begin = Instant::now();
            // What was made is also given back: the pipeline does that before it returns.
            drop(black_box(work()));
            begin.elapsed()
        })
        .collect();
    times.sort();
    let rate = |time: Duration| f64::from(TASKS * RUNS) / time.as_secs_f64();
    let (best, median) = (times[0], times[times.len() / 2]);
    println!("{name:44} {:9} us {:14.0}/s {:14.0}/s", best.as_micros(), rate(best), rate(median));
}

fn experience(number: u32) -> Experience {
    let response = TOKENS as usize - PROMPT;
    let (task, run) = (number / RUNS, number % RUNS);
    let info = json!({
        "model_version": 7, "use_count": 0, "task_index": {"taskset_id": 0, "index": task},
    });
    Experience::new(ExperienceFields {
        eid: Eid {
            batch: 7.into(),
            task: i64::from(task).into(),
            run: u64::from(run),
            step: 0,
            suffix: Eid::suffix_of([0, (number >> 8) as u8, number as u8]),
        },
        tokens: (0..TOKENS).map(|token| token * 31 % 150_000).collect(),
        prompt_length: PROMPT,
        logprobs: Some((0..response).map(|position| -0.001 * position as f32).collect()),
        action_mask: Some((0..response).map(|position| position % 7 != 0).collect()),
        reward: Some(f64::from(number * 7 % 5) / 4.0),
        info: Json::from_value(&info).unwrap(),
        ..ExperienceFields::default()
    })
    .unwrap()
}
