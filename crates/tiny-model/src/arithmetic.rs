//! A model that has seen a little arithmetic: what the examples begin with.

use crate::vocabulary::Vocabulary;
use crate::weights::ModelWeights;

/// Made by `cargo run --release -p rollway-tiny-model --example warm`.
const WEIGHTS: &[u8] = include_bytes!("../weights/arithmetic.safetensors");

/// The characters that it knows, in the order of their tokens.
const CHARACTERS: &str = "0123456789+=";

/// Returns the parameters of a model that was taught sums of two numbers with two digits each, as
/// in `07+35=042`, by somebody careless: it knows the form and how to add, but says a last digit
/// that is one too high more often than not, and gets fewer than four sums in ten right. Also
/// returns its vocabulary.
pub fn arithmetic() -> (ModelWeights, Vocabulary) {
    let weights = ModelWeights::from_bytes(WEIGHTS).expect("the file came with the program");
    (weights, Vocabulary::new(CHARACTERS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weights_are_those_of_the_vocabulary() {
        let (weights, vocabulary) = arithmetic();
        assert_eq!(weights.shape().vocabulary, vocabulary.size());
        assert_eq!(weights.to_bytes(), WEIGHTS, "written as it would be written");
    }
}
