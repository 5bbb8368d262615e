//! The task of the examples: sums of two numbers with two digits, as in `07+35=042`.

use std::sync::Arc;

use rollway_tiny_model::{
    GenerateRequest, Generated, Generator, ModelWeights, SeededRng, Vocabulary,
};

pub(crate) type Problem = (u32, u32);

/// One in ten is held out, scattered so that every pair of digits appears with others.
pub(crate) fn held_out((a, b): Problem) -> bool {
    let scattered = (a * 100 + b).wrapping_mul(2_654_435_761) >> 16;
    scattered.is_multiple_of(10)
}

/// A problem that is not held out.
pub(crate) fn problem(chance: &mut SeededRng) -> Problem {
    loop {
        let problem = (chance.below(100), chance.below(100));
        if !held_out(problem) {
            return problem;
        }
    }
}

pub(crate) fn sum((a, b): Problem) -> String {
    format!("{:03}", a + b)
}

pub(crate) fn question((a, b): Problem) -> String {
    format!("{a:02}+{b:02}=")
}

pub(crate) fn prompt(vocabulary: &Vocabulary, problem: Problem) -> Vec<u32> {
    let text = vocabulary.encode(&question(problem)).unwrap_or_default();
    [vec![Vocabulary::BEGIN], text].concat()
}

/// Completions of the model for problems.
pub(crate) fn answers(
    weights: &ModelWeights,
    vocabulary: &Vocabulary,
    problems: &[Problem],
    (temperature, seed): (f32, u64),
) -> Vec<Generated> {
    let request = |(at, problem): (usize, &Problem)| GenerateRequest {
        prompt: prompt(vocabulary, *problem),
        max_tokens: 5,
        temperature,
        seed: seed.wrapping_mul(1_000_003).wrapping_add(at as u64),
        end: Vocabulary::END,
    };
    let requests = problems.iter().enumerate().map(request).collect();
    Generator::new(Arc::new(weights.clone())).complete(requests)
}

/// Returns whether the completion is exactly the sum.
pub(crate) fn is_right(vocabulary: &Vocabulary, problem: Problem, said: &Generated) -> bool {
    said.tokens.last() == Some(&Vocabulary::END) && vocabulary.decode(&said.tokens) == sum(problem)
}

/// Fraction of the held-out problems that is solved.
pub(crate) fn score(weights: &ModelWeights, vocabulary: &Vocabulary, temperature: f32) -> f32 {
    let every = (0..100).flat_map(|a| (0..100).map(move |b| (a, b)));
    let problems: Vec<Problem> = every.filter(|problem| held_out(*problem)).collect();
    let said = answers(weights, vocabulary, &problems, (temperature, 1));
    let right = problems.iter().zip(&said).filter(|(p, said)| is_right(vocabulary, **p, said));
    right.count() as f32 / problems.len() as f32
}
