//! Training steps: cross-entropy on examples, and GRPO.

use std::thread;

use crate::adam::{Adam, Rate};
use crate::attention::softmax;
use crate::backward::backward;
use crate::forward::forward;
use crate::weights::ModelWeights;

/// Number of parts of a step, whatever the number of cores: the sum of their gradients is then the
/// same everywhere.
const PARTS: usize = 4;

/// One training sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainSample {
    /// Prompt and completion.
    pub tokens: Vec<u32>,
    /// At least 1.
    pub prompt_length: usize,
    /// Completion tokens that contribute to the loss.
    pub mask: Vec<bool>,
    /// Log-probability of each completion token when it was sampled. Unused by `imitate`.
    pub logprobs: Vec<f32>,
    /// Advantage of each completion token. Unused by `imitate`.
    pub advantages: Vec<f32>,
}

/// Hyperparameters of GRPO.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GrpoConfig {
    /// Clipping range of the probability ratio.
    pub clip: f32,
    /// Coefficient of the entropy bonus.
    pub entropy: f32,
    /// Sampling temperature of the samples.
    pub temperature: f32,
}

impl Default for GrpoConfig {
    fn default() -> Self {
        Self { clip: 0.2, entropy: 0.0, temperature: 1.0 }
    }
}

/// Metrics of a step: means over the tokens of the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TrainStepReport {
    pub tokens: u64,
    pub loss: f32,
    /// In nats.
    pub entropy: f32,
    /// Fraction of tokens with a clipped ratio.
    pub clipped: f32,
    /// Estimated KL divergence from the sampling policy.
    pub drift: f32,
    /// Norm of the gradient before clipping.
    pub gradient: f32,
}

/// A model and its optimizer.
#[derive(Clone, Debug)]
pub struct ModelTrainer {
    weights: ModelWeights,
    adam: Adam,
}

impl ModelTrainer {
    pub fn new(weights: ModelWeights) -> Self {
        let adam = Adam::new(weights.values.len());
        Self { weights, adam }
    }

    pub(crate) fn resumed(weights: ModelWeights, adam: Adam) -> Self {
        Self { weights, adam }
    }

    pub fn weights(&self) -> &ModelWeights {
        &self.weights
    }

    pub(crate) fn adam(&self) -> &Adam {
        &self.adam
    }

    pub fn steps(&self) -> u64 {
        self.adam.steps
    }

    /// Makes one step of cross-entropy.
    pub fn imitate(&mut self, samples: &[TrainSample], rate: &Rate) -> TrainStepReport {
        self.step(samples, rate, |_, _, logprob| (-logprob, -1.0, false))
    }

    /// Makes one step of GRPO.
    pub fn reinforce(
        &mut self,
        samples: &[TrainSample],
        grpo: &GrpoConfig,
        rate: &Rate,
    ) -> TrainStepReport {
        let clip = grpo.clip;
        let weigh = |sample: &TrainSample, at: usize, logprob: f32| {
            let ratio = (logprob - sample.logprobs[at]).exp();
            let advantage = sample.advantages[at];
            let beyond = if advantage > 0.0 { ratio > 1.0 + clip } else { ratio < 1.0 - clip };
            if beyond {
                (-ratio.clamp(1.0 - clip, 1.0 + clip) * advantage, 0.0, true)
            } else {
                (-ratio * advantage, -ratio * advantage, false)
            }
        };
        self.step_with(samples, rate, grpo, weigh)
    }

    fn step(
        &mut self,
        samples: &[TrainSample],
        rate: &Rate,
        weigh: impl Fn(&TrainSample, usize, f32) -> (f32, f32, bool) + Sync,
    ) -> TrainStepReport {
        let plain = GrpoConfig { clip: 0.0, entropy: 0.0, temperature: 1.0 };
        self.step_with(samples, rate, &plain, weigh)
    }

    /// Makes one step. `weigh` says of a token what its loss is, how that changes with the
    /// logarithm of its likelihood, and whether it was clipped.
    fn step_with(
        &mut self,
        samples: &[TrainSample],
        rate: &Rate,
        grpo: &GrpoConfig,
        weigh: impl Fn(&TrainSample, usize, f32) -> (f32, f32, bool) + Sync,
    ) -> TrainStepReport {
        let learned = |sample: &TrainSample| sample.mask.iter().filter(|learned| **learned).count();
        let tokens: usize = samples.iter().map(learned).sum();
        if tokens == 0 {
            return TrainStepReport::default();
        }
        let share = samples.len().div_ceil(PARTS);
        let (weights, weigh) = (&self.weights, &weigh);
        let part = |samples: &[TrainSample]| BatchPart::of(weights, samples, tokens, grpo, weigh);
        let parts: Vec<BatchPart> = thread::scope(|scope| {
            let spawn = |samples| scope.spawn(move || part(samples));
            let threads: Vec<_> = samples.chunks(share).map(spawn).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, BatchPart>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        });
        let mut parts = parts.into_iter();
        let Some(mut sum) = parts.next() else {
            return TrainStepReport::default();
        };
        for part in parts {
            sum.add(&part);
        }
        sum.report.tokens = tokens as u64;
        sum.report.gradient = self.adam.step(&mut self.weights.values, &sum.gradient, rate);
        sum.report
    }
}

/// Gradient and metrics of a part of the samples.
struct BatchPart {
    gradient: Vec<f32>,
    report: TrainStepReport,
}

impl BatchPart {
    fn of(
        weights: &ModelWeights,
        samples: &[TrainSample],
        tokens: usize,
        grpo: &GrpoConfig,
        weigh: &(impl Fn(&TrainSample, usize, f32) -> (f32, f32, bool) + Sync),
    ) -> Self {
        let vocabulary = weights.shape().vocabulary;
        // The last token has no target.
        let predicted = |sample: &'_ TrainSample| sample.tokens.len() - 1;
        let sequences: Vec<&[u32]> =
            samples.iter().map(|sample| &sample.tokens[..predicted(sample)]).collect();
        let pass = forward(weights, &sequences);
        let mut dlogits = vec![0.0; pass.logits.len()];
        let mut report = TrainStepReport::default();
        let share = 1.0 / tokens as f32;
        let mut probabilities = vec![0.0; vocabulary];
        for (sample, range) in samples.iter().zip(&pass.sequences) {
            for (at, _) in sample.mask.iter().enumerate().filter(|(_, learned)| **learned) {
                let row = (range.start + sample.prompt_length - 1 + at) * vocabulary;
                let target = sample.tokens[sample.prompt_length + at] as usize;
                probabilities.copy_from_slice(&pass.logits[row..row + vocabulary]);
                for score in &mut probabilities {
                    *score /= grpo.temperature;
                }
                softmax(&mut probabilities);
                let logprob = probabilities[target].max(f32::MIN_POSITIVE).ln();
                let spread =
                    -probabilities.iter().map(|p| p * p.max(f32::MIN_POSITIVE).ln()).sum::<f32>();
                let (loss, slope, clipped) = weigh(sample, at, logprob);
                report.loss += share * (loss - grpo.entropy * spread);
                report.entropy += share * spread;
                report.clipped += if clipped { share } else { 0.0 };
                if let Some(drawn) = sample.logprobs.get(at) {
                    let moved = drawn - logprob;
                    report.drift += share * (moved.exp() - 1.0 - moved);
                }
                let row = &mut dlogits[row..row + vocabulary];
                for (token, (slot, p)) in row.iter_mut().zip(&probabilities).enumerate() {
                    let hit = if token == target { 1.0 } else { 0.0 };
                    let undecided = p * (p.max(f32::MIN_POSITIVE).ln() + spread);
                    let change = slope * (hit - p) + grpo.entropy * undecided;
                    *slot = share * change / grpo.temperature;
                }
            }
        }
        let mut gradient = vec![0.0; weights.values.len()];
        backward(weights, &pass, &sequences, &dlogits, &mut gradient);
        Self { gradient, report }
    }

    fn add(&mut self, other: &Self) {
        for (sum, value) in self.gradient.iter_mut().zip(&other.gradient) {
            *sum += value;
        }
        let (sum, other) = (&mut self.report, &other.report);
        sum.loss += other.loss;
        sum.entropy += other.entropy;
        sum.clipped += other.clipped;
        sum.drift += other.drift;
    }
}

#[cfg(test)]
mod tests;
