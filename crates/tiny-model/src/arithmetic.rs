//! The bundled model.

use crate::vocabulary::Vocabulary;
use crate::weights::ModelWeights;

/// Made by `cargo run --release -p rollway-tiny-model --example warm`.
const WEIGHTS: &[u8] = include_bytes!("../weights/arithmetic.safetensors");

/// Known characters in the order of their tokens.
const CHARACTERS: &str = "0123456789+=";

/// Returns the bundled model and its vocabulary. It was trained on sums of two two-digit numbers,
/// as in `07+35=042`, most of them with a last digit that is one too high. It knows the form and
/// solves fewer than four sums in ten.
pub fn arithmetic() -> (ModelWeights, Vocabulary) {
    let weights = ModelWeights::from_bytes(WEIGHTS).expect("the file came with the program");
    (weights, Vocabulary::new(CHARACTERS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundled_weights_match_the_vocabulary() {
        let (weights, vocabulary) = arithmetic();
        assert_eq!(weights.shape().vocabulary, vocabulary.size());
        assert_eq!(weights.to_bytes(), WEIGHTS, "the file is in canonical form");
    }
}
