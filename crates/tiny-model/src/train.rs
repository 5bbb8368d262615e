//! Steps of learning: imitation of examples, and GRPO.

use std::thread;

use crate::adam::{Adam, Rate};
use crate::attention::softmax;
use crate::backward::backward;
use crate::forward::forward;
use crate::weights::ModelWeights;

/// Into how many parts a step is divided, whatever the number of cores: the sum of their gradients
/// is then the same everywhere.
const PARTS: usize = 4;

/// One sequence to learn from.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainSample {
    /// The tokens: a prompt, then what followed.
    pub tokens: Vec<u32>,
    /// How many of them are the prompt; at least one.
    pub prompt_length: usize,
    /// Which of the tokens after the prompt are to be learned.
    pub mask: Vec<bool>,
    /// The logarithm of how likely each token after the prompt was when it was drawn. Not looked at
    /// in imitation.
    pub logprobs: Vec<f32>,
    /// How much better than others each token after the prompt was. Not looked at in imitation.
    pub advantages: Vec<f32>,
}

/// How GRPO weighs samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GrpoConfig {
    /// How far the likelihood of a token may move from that when it was drawn and still count.
    pub clip: f32,
    /// How much a spread of likelihoods is worth: keeps the model from settling too soon.
    pub entropy: f32,
    /// The temperature at which the samples were drawn.
    pub temperature: f32,
}

impl Default for GrpoConfig {
    fn default() -> Self {
        Self { clip: 0.2, entropy: 0.0, temperature: 1.0 }
    }
}

/// What a step did, as means over the tokens that were learned.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TrainStepReport {
    /// How many tokens were learned.
    pub tokens: u64,
    /// What was made smaller.
    pub loss: f32,
    /// How undecided the model was, in nats.
    pub entropy: f32,
    /// The part of tokens that had moved too far to count.
    pub clipped: f32,
    /// How far likelihoods are from those when the tokens were drawn: an estimate of the
    /// divergence.
    pub drift: f32,
    /// The length of the gradient before it was cut.
    pub gradient: f32,
}

/// A model that learns.
#[derive(Clone, Debug)]
pub struct ModelTrainer {
    weights: ModelWeights,
    adam: Adam,
}

impl ModelTrainer {
    /// Returns a trainer that begins with these parameters.
    pub fn new(weights: ModelWeights) -> Self {
        let adam = Adam::new(weights.values.len());
        Self { weights, adam }
    }

    pub(crate) fn resumed(weights: ModelWeights, adam: Adam) -> Self {
        Self { weights, adam }
    }

    /// The parameters now.
    pub fn weights(&self) -> &ModelWeights {
        &self.weights
    }

    pub(crate) fn adam(&self) -> &Adam {
        &self.adam
    }

    /// How many steps were made.
    pub fn steps(&self) -> u64 {
        self.adam.steps
    }

    /// Makes one step towards what the samples say.
    pub fn imitate(&mut self, samples: &[TrainSample], rate: &Rate) -> TrainStepReport {
        self.step(samples, rate, |_, _, logprob| (-logprob, -1.0, false))
    }

    /// Makes one step towards the samples with an advantage, and away from those without.
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

/// What a part of a step's samples gives.
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
        // The last token predicts nothing that is known.
        let cut = |sample: &'_ TrainSample| sample.tokens.len() - 1;
        let sequences: Vec<&[u32]> =
            samples.iter().map(|sample| &sample.tokens[..cut(sample)]).collect();
        let pass = forward(weights, &sequences);
        let mut dlogits = vec![0.0; pass.logits.len()];
        let mut report = TrainStepReport::default();
        let share = 1.0 / tokens as f32;
        let mut likely = vec![0.0; vocabulary];
        for (sample, range) in samples.iter().zip(&pass.sequences) {
            for (at, _) in sample.mask.iter().enumerate().filter(|(_, learned)| **learned) {
                let row = (range.start + sample.prompt_length - 1 + at) * vocabulary;
                let target = sample.tokens[sample.prompt_length + at] as usize;
                likely.copy_from_slice(&pass.logits[row..row + vocabulary]);
                for score in &mut likely {
                    *score /= grpo.temperature;
                }
                softmax(&mut likely);
                let logprob = likely[target].max(f32::MIN_POSITIVE).ln();
                let spread = -likely.iter().map(|p| p * p.max(f32::MIN_POSITIVE).ln()).sum::<f32>();
                let (loss, slope, clipped) = weigh(sample, at, logprob);
                report.loss += share * (loss - grpo.entropy * spread);
                report.entropy += share * spread;
                report.clipped += if clipped { share } else { 0.0 };
                if let Some(drawn) = sample.logprobs.get(at) {
                    let moved = drawn - logprob;
                    report.drift += share * (moved.exp() - 1.0 - moved);
                }
                let row = &mut dlogits[row..row + vocabulary];
                for (token, (slot, p)) in row.iter_mut().zip(&likely).enumerate() {
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
