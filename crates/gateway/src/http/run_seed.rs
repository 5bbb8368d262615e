//! Seeds of the calls of a run.

use sha2::{Digest, Sha256};

/// Seed of a run, from which those of its calls are derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunSeed(u64);

impl RunSeed {
    pub(super) fn new(job_seed: u64, task: &str, run: u32) -> Self {
        Self(hash(&format!("{job_seed}\0{task}\0{run}")))
    }

    /// Returns the seed of a call by its number in the run: 31 bits, which all servers take.
    pub(super) fn of_call(self, number: u64) -> u64 {
        hash(&format!("{}\0{number}", self.0)) >> 33
    }
}

fn hash(text: &str) -> u64 {
    let digest: [u8; 32] = Sha256::digest(text).into();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_differ_and_repeat() {
        let seed = |job, task, run, call| RunSeed::new(job, task, run).of_call(call);
        let one = seed(1, "train/0", 0, 0);
        assert_eq!(one, seed(1, "train/0", 0, 0));
        for other in [
            seed(2, "train/0", 0, 0),
            seed(1, "train/1", 0, 0),
            seed(1, "train/0", 1, 0),
            seed(1, "train/0", 0, 1),
        ] {
            assert_ne!(one, other);
        }
        assert!((0..1000).all(|call| seed(1, "a", 0, call) < 1 << 31));
    }
}
