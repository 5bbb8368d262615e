//! Compares gradients with finite differences.

use super::*;
use crate::chance::SeededRng;
use crate::shape::ModelShape;

fn shape() -> ModelShape {
    ModelShape { vocabulary: 7, width: 8, layers: 2, heads: 2, context: 10 }
}

fn samples(chance: &mut SeededRng, count: usize) -> Vec<TrainSample> {
    let sample = |_| {
        let length = 4 + chance.below(6) as usize;
        let tokens = (0..length).map(|_| chance.below(7)).collect();
        let prompt_length = 1 + chance.below(2) as usize;
        let rest = length - prompt_length;
        TrainSample {
            tokens,
            prompt_length,
            mask: (0..rest).map(|at| at == 0 || chance.below(3) > 0).collect(),
            logprobs: (0..rest).map(|_| -1.9 - 0.1 * chance.unit()).collect(),
            advantages: (0..rest).map(|_| chance.unit() - 0.5).collect(),
        }
    };
    (0..count).map(sample).collect()
}

fn check(grpo: &GrpoConfig, weigh: impl Fn(&TrainSample, usize, f32) -> (f32, f32, bool) + Sync) {
    let mut chance = SeededRng::new(5);
    let samples = samples(&mut chance, 3);
    let tokens = samples.iter().flat_map(|sample| &sample.mask).filter(|mask| **mask).count();
    let mut weights = ModelWeights::random(shape(), 3);
    let part = BatchPart::of(&weights, &samples, tokens, grpo, &weigh);
    let (mut along, mut lengths) = (0.0_f64, (0.0_f64, 0.0_f64));
    for at in 0..weights.values.len() {
        let value = weights.values[at];
        let mut loss = |change: f32| {
            weights.values[at] = value + change;
            f64::from(BatchPart::of(&weights, &samples, tokens, grpo, &weigh).report.loss)
        };
        let numeric = (loss(3e-3) - loss(-3e-3)) / 6e-3;
        weights.values[at] = value;
        let analytic = f64::from(part.gradient[at]);
        along += numeric * analytic;
        lengths.0 += numeric * numeric;
        lengths.1 += analytic * analytic;
    }
    let cosine = along / (lengths.0 * lengths.1).sqrt();
    assert!(cosine > 0.999, "the gradients point in different directions: {cosine}");
    let ratio = (lengths.0 / lengths.1).sqrt();
    assert!((0.98..1.02).contains(&ratio), "the gradients differ in length: {ratio}");
}

#[test]
fn cross_entropy_gradient_matches_finite_differences() {
    let plain = GrpoConfig { clip: 0.0, entropy: 0.0, temperature: 1.0 };
    check(&plain, |_, _, logprob| (-logprob, -1.0, false));
}

#[test]
fn grpo_gradient_matches_finite_differences() {
    let grpo = GrpoConfig { clip: 0.2, entropy: 0.05, temperature: 0.8 };
    check(&grpo, |sample, at, logprob| {
        let ratio = (logprob - sample.logprobs[at]).exp();
        (-ratio * sample.advantages[at], -ratio * sample.advantages[at], false)
    });
}

#[test]
fn imitation_reduces_the_loss() {
    let mut chance = SeededRng::new(9);
    let samples = samples(&mut chance, 8);
    let mut trainer = ModelTrainer::new(ModelWeights::random(shape(), 1));
    let rate = Rate { learning_rate: 1e-2, ..Rate::default() };
    let first = trainer.imitate(&samples, &rate).loss;
    for _ in 0..30 {
        trainer.imitate(&samples, &rate);
    }
    let last = trainer.imitate(&samples, &rate).loss;
    assert!(last < first / 2.0, "{first} became {last}");
}
