//! Seeds for requests that bring none: of the job's seed, the weights, the prompt, and how often
//! that prompt came before under these weights.
//!
//! So what a group of requests for one prompt is answered does not depend on what else is asked,
//! nor on the order in which requests for different prompts come. Only who of the group gets which
//! of its answers does.

use std::collections::HashMap;

use rollway_tiny_model::ModelWeights;
use sha2::{Digest, Sha256};

/// How many prompts are counted; then the count begins anew, under another number.
const MAX_PROMPTS: usize = 1 << 16;

/// Makes seeds.
#[derive(Debug)]
pub(super) struct Seeds {
    job: u64,
    /// What the parameters are known by.
    weights: [u8; 32],
    round: u64,
    counts: HashMap<Vec<u32>, u64>,
}

impl Seeds {
    pub(super) fn new(job: u64, weights: &ModelWeights) -> Self {
        let digest = Sha256::digest(weights.to_bytes());
        Self { job, weights: digest.into(), round: 0, counts: HashMap::new() }
    }

    /// Begins anew, for other parameters.
    pub(super) fn replace(&mut self, weights: &ModelWeights) {
        *self = Self::new(self.job, weights);
    }

    /// Returns the seed of the next request for a prompt.
    pub(super) fn next(&mut self, prompt: &[u32]) -> u64 {
        if self.counts.len() >= MAX_PROMPTS && !self.counts.contains_key(prompt) {
            self.counts.clear();
            self.round += 1;
        }
        let count = self.counts.entry(prompt.to_vec()).or_default();
        *count += 1;
        let mut hash = Sha256::new();
        hash.update(self.weights);
        for number in [self.job, self.round, *count] {
            hash.update(number.to_le_bytes());
        }
        for token in prompt {
            hash.update(token.to_le_bytes());
        }
        let bytes: [u8; 32] = hash.finalize().into();
        bytes.iter().take(8).fold(0, |seed, byte| seed << 8 | u64::from(*byte))
    }
}
