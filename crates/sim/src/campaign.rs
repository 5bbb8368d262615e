//! Many seeds, and what became of them. Who runs them and on how many threads is up to the caller.

use std::panic;

use crate::checkers::Violation;
use crate::coverage::Coverage;
use crate::{TraceTarget, WorldKind, WorldResult};

/// What became of many seeds.
#[derive(Debug)]
pub struct Campaign {
    /// How many seeds were run.
    pub seeds: u64,
    /// How many inputs everything under test took.
    pub inputs: u64,
    /// The seeds that went wrong, in the order in which they were added.
    pub failures: Vec<SeedFailure>,
    /// What came up.
    pub coverage: Coverage,
}

/// A seed that went wrong.
#[derive(Debug)]
pub struct SeedFailure {
    pub seed: u64,
    /// What was found; none: it panicked.
    pub violation: Option<Violation>,
}

/// What became of one seed.
#[derive(Debug)]
pub struct Tried {
    seed: u64,
    /// None: it panicked.
    outcome: Option<WorldResult>,
}

impl Tried {
    /// Runs one seed; a panic is a failure like others, so that the other seeds go on.
    pub fn seed(stage: WorldKind, seed: u64) -> Self {
        let outcome = panic::catch_unwind(|| stage.run_seed(seed, TraceTarget::Nowhere)).ok();
        Self { seed, outcome }
    }
}

impl Campaign {
    /// Returns a campaign without seeds.
    pub fn new(stage: WorldKind) -> Self {
        Self { seeds: 0, inputs: 0, failures: Vec::new(), coverage: stage.coverage() }
    }

    /// Adds what became of one seed.
    pub fn add(&mut self, tried: Tried) {
        let Tried { seed, outcome } = tried;
        self.seeds += 1;
        let Some(WorldResult { violation, inputs, coverage, .. }) = outcome else {
            self.failures.push(SeedFailure { seed, violation: None });
            return;
        };
        self.inputs += inputs;
        self.coverage.merge(&coverage);
        if violation.is_some() {
            self.failures.push(SeedFailure { seed, violation });
        }
    }
}
