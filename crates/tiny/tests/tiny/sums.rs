//! Sums as a task: prompts, and experiences of the model's completions.

use std::sync::Arc;

use rollway_data::{Sample, WriteBatch};
use rollway_experience::{Eid, Experience, ExperienceFields, ModelVersions, VersionSpan};
use rollway_tiny_model::{
    GenerateRequest, Generated, Generator, ModelWeights, SeededRng, Vocabulary,
};

pub(crate) type Problem = (u32, u32);

pub(crate) fn question((a, b): Problem) -> String {
    format!("{a:02}+{b:02}=")
}

pub(crate) fn prompt(vocabulary: &Vocabulary, problem: Problem) -> Vec<u32> {
    [vec![Vocabulary::BEGIN], vocabulary.encode(&question(problem)).unwrap()].concat()
}

pub(crate) fn request(prompt: Vec<u32>, temperature: f32, seed: u64) -> GenerateRequest {
    GenerateRequest { prompt, max_tokens: 5, temperature, seed, end: Vocabulary::END }
}

pub(crate) fn problems(chance: &mut SeededRng, count: usize) -> Vec<Problem> {
    (0..count).map(|_| (chance.below(100), chance.below(100))).collect()
}

/// Completions of every problem, `runs` times.
pub(crate) fn answers(
    weights: &ModelWeights,
    vocabulary: &Vocabulary,
    problems: &[Problem],
    runs: u64,
    (temperature, seed): (f32, u64),
) -> Vec<Vec<Generated>> {
    let mut requests = Vec::new();
    for problem in problems {
        for _ in 0..runs {
            let seed = seed.wrapping_mul(1_000_003).wrapping_add(requests.len() as u64);
            requests.push(request(prompt(vocabulary, *problem), temperature, seed));
        }
    }
    let completions = Generator::new(Arc::new(weights.clone())).complete(requests);
    completions.chunks(runs as usize).map(<[_]>::to_vec).collect()
}

pub(crate) fn reward(vocabulary: &Vocabulary, (a, b): Problem, completion: &Generated) -> f64 {
    let is_over = completion.tokens.last() == Some(&Vocabulary::END);
    let is_right = vocabulary.decode(&completion.tokens) == format!("{:03}", a + b);
    if is_over && is_right { 1.0 } else { 0.0 }
}

/// Experiences of one batch.
pub(crate) fn experiences(
    weights: &ModelWeights,
    vocabulary: &Vocabulary,
    problems: &[Problem],
    runs: u64,
    version: u64,
) -> Vec<Experience> {
    let answers = answers(weights, vocabulary, problems, runs, (1.0, version + 1));
    let mut experiences = Vec::new();
    for ((task, problem), completions) in (0_i64..).zip(problems).zip(answers) {
        for (run, completion) in (0..).zip(completions) {
            let prompt = prompt(vocabulary, *problem);
            let length = u32::try_from(completion.tokens.len()).unwrap();
            let versions = [VersionSpan { version: Some(version), tokens: length }];
            let tokens =
                prompt.iter().chain(&completion.tokens).map(|id| i32::try_from(*id).unwrap());
            let eid = Eid {
                batch: i64::try_from(version).unwrap().into(),
                task: task.into(),
                run,
                step: 0,
                suffix: "00000a".into(),
            };
            let fields = ExperienceFields {
                eid,
                tokens: tokens.collect(),
                prompt_length: prompt.len(),
                logprobs: Some(completion.logprobs.iter().copied().collect()),
                reward: Some(reward(vocabulary, *problem, &completion)),
                model_versions: Some(ModelVersions::from_spans(versions).unwrap()),
                ..ExperienceFields::default()
            };
            experiences.push(Experience::new(fields).unwrap());
        }
    }
    experiences
}

pub(crate) fn lot(key: u64, experiences: &[Experience]) -> WriteBatch {
    let samples = experiences.iter().map(|experience| Sample::new(experience).unwrap()).collect();
    WriteBatch { key: format!("lot {key}").into(), samples }
}
