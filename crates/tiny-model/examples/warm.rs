//! Makes the bundled parameters: trains a fresh model on sums, seven in ten of which have a last
//! digit that is one too high. The model learns the form and how to add, and an error that rewards
//! can correct.
//!
//! `cargo run --release -p rollway-tiny-model --example warm -- [SEED] [STEPS] [FILE]`; without
//! arguments it writes `weights/arithmetic.safetensors`, bit for bit the same on the same kind of
//! processor.
#![expect(clippy::print_stdout, reason = "command-line output")]

mod sums;

use std::path::PathBuf;

use rollway_tiny_model::{
    ModelShape, ModelTrainer, ModelWeights, Rate, SeededRng, TrainSample, Vocabulary,
};

/// Wrong examples per ten.
const WRONG_PER_TEN: u32 = 7;

/// Enough for a few turns.
const CONTEXT: usize = 32;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let seed: u64 = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let steps: u64 = arguments.next().map_or(Ok(600), |text| text.parse())?;
    let path = arguments.next().map_or_else(
        || concat!(env!("CARGO_MANIFEST_DIR"), "/weights/arithmetic.safetensors").into(),
        PathBuf::from,
    );
    let vocabulary = Vocabulary::new("0123456789+=");
    let shape = ModelShape {
        vocabulary: vocabulary.size(),
        width: 64,
        layers: 2,
        heads: 4,
        context: CONTEXT,
    };
    let mut chance = SeededRng::new(seed);
    let mut trainer = ModelTrainer::new(ModelWeights::random(shape, seed));
    let rate = Rate { learning_rate: 3e-3, ..Rate::default() };
    for step in 1..=steps {
        let samples: Vec<TrainSample> =
            (0..256).map(|_| example(&vocabulary, &mut chance)).collect();
        trainer.imitate(&samples, &rate);
        if step % 50 == 0 || step == steps {
            let [greedy, sampled] = [0.0, 1.0]
                .map(|temperature| sums::score(trainer.weights(), &vocabulary, temperature));
            println!("{step:>5}: {:.1} % (sampled {:.1} %)", 100.0 * greedy, 100.0 * sampled);
        }
    }
    trainer.weights().save(&path)?;
    println!("{}", path.display());
    Ok(())
}

/// A problem with a solution that may be wrong.
fn example(vocabulary: &Vocabulary, chance: &mut SeededRng) -> TrainSample {
    let problem = sums::problem(chance);
    let mut sum: Vec<char> = sums::sum(problem).chars().collect();
    if chance.below(10) < WRONG_PER_TEN {
        let last = sum.pop().and_then(|last| last.to_digit(10)).unwrap_or_default();
        sum.extend(char::from_digit((last + 1) % 10, 10));
    }
    let prompt = sums::prompt(vocabulary, problem);
    let mut answer = vocabulary.encode(&String::from_iter(sum)).unwrap_or_default();
    answer.push(Vocabulary::END);
    TrainSample {
        prompt_length: prompt.len(),
        mask: vec![true; answer.len()],
        tokens: [prompt, answer].concat(),
        logprobs: Vec::new(),
        advantages: Vec::new(),
    }
}
