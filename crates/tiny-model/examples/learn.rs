//! Trains the bundled model on sums with rewards alone.
//!
//! `cargo run --release -p rollway-tiny-model --example learn -- [SEED] [STEPS]` prints the
//! learning curve, measured on held-out problems.
#![expect(clippy::print_stdout, reason = "command-line output")]

mod sums;

use std::time::Instant;

use rollway_tiny_model::{
    Generated, GrpoConfig, ModelTrainer, ModelWeights, Rate, SeededRng, TrainSample, Vocabulary,
    arithmetic,
};

/// Samples of one problem.
const GROUP: usize = 8;
/// Problems of one step.
const PROMPTS: usize = 32;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let seed: u64 = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let steps: u64 = arguments.next().map_or(Ok(150), |text| text.parse())?;
    let (weights, vocabulary) = arithmetic();
    let mut chance = SeededRng::new(seed);
    let mut trainer = ModelTrainer::new(weights);
    let begin = Instant::now();
    let mut reward = f32::NAN;
    for step in 0..=steps {
        if step % 10 == 0 {
            let [greedy, sampled] = [0.0, 1.0]
                .map(|temperature| sums::score(trainer.weights(), &vocabulary, temperature));
            println!(
                "step {step:>4}: {:>6.1?}, reward {reward:.3}, held out {:.1} % (sampled {:.1} %)",
                begin.elapsed(),
                100.0 * greedy,
                100.0 * sampled,
            );
        }
        let drawn = draw(trainer.weights(), &vocabulary, &mut chance, seed << 32 | step);
        reward = drawn.1;
        trainer.reinforce(&drawn.0, &GrpoConfig::default(), &Rate::default());
    }
    Ok(())
}

/// Samples completions for a step of GRPO. Returns them and their mean reward.
fn draw(
    weights: &ModelWeights,
    vocabulary: &Vocabulary,
    chance: &mut SeededRng,
    seed: u64,
) -> (Vec<TrainSample>, f32) {
    let problems: Vec<sums::Problem> = (0..PROMPTS).map(|_| sums::problem(chance)).collect();
    let repeated: Vec<sums::Problem> =
        problems.iter().flat_map(|problem| std::iter::repeat_n(*problem, GROUP)).collect();
    let said = sums::answers(weights, vocabulary, &repeated, (1.0, seed));
    let reward =
        |(p, said): (&sums::Problem, &Generated)| f32::from(sums::is_right(vocabulary, *p, said));
    let rewards: Vec<f32> = repeated.iter().zip(&said).map(reward).collect();
    let mut samples = Vec::new();
    for (at, said) in said.into_iter().enumerate() {
        let group = &rewards[at / GROUP * GROUP..][..GROUP];
        let mean = group.iter().sum::<f32>() / GROUP as f32;
        let spread = group.iter().map(|reward| (reward - mean).powi(2)).sum::<f32>();
        let spread = (spread / GROUP as f32).sqrt();
        if spread < 1e-6 {
            continue;
        }
        let prompt = sums::prompt(vocabulary, repeated[at]);
        let length = said.tokens.len();
        samples.push(TrainSample {
            prompt_length: prompt.len(),
            mask: vec![true; length],
            tokens: [prompt, said.tokens].concat(),
            logprobs: said.logprobs,
            advantages: vec![(rewards[at] - mean) / (spread + 1e-4); length],
        });
    }
    (samples, rewards.iter().sum::<f32>() / rewards.len() as f32)
}
