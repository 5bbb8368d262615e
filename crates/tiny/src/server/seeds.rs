//! Seeds of requests without one, from the job's seed, the weights, the prompt, and the number of
//! earlier requests for that prompt under these weights.
//!
//! The completions of a group of requests for one prompt are thus independent of other requests and
//! of the order of arrival; only their assignment within the group is not.

use std::collections::HashMap;

use rollway_tiny_model::ModelWeights;
use sha2::{Digest, Sha256};

/// Maximum number of counted prompts; then counting restarts in another round.
const MAX_PROMPTS: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Seeds {
    job: u64,
    weights_digest: [u8; 32],
    round: u64,
    counts: HashMap<Vec<u32>, u64>,
}

impl Seeds {
    pub(super) fn new(job: u64, weights: &ModelWeights) -> Self {
        let digest = Sha256::digest(weights.to_bytes());
        Self { job, weights_digest: digest.into(), round: 0, counts: HashMap::new() }
    }

    /// Restarts for other weights.
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
        hash.update(self.weights_digest);
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
