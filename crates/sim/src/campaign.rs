//! Results of many seeds.

use std::panic;

use crate::checkers::Violation;
use crate::coverage::Coverage;
use crate::{TraceTarget, WorldKind, WorldResult};

/// Results of many seeds.
#[derive(Debug)]
pub struct Campaign {
    pub seeds: u64,
    /// Inputs applied to the core, or to the plans of explorers.
    pub inputs: u64,
    /// Failed seeds, in the order in which they were added.
    pub failures: Vec<SeedFailure>,
    pub coverage: Coverage,
}

#[derive(Debug)]
pub struct SeedFailure {
    pub seed: u64,
    /// `None`: it panicked.
    pub violation: Option<Violation>,
}

/// Runs one seed. `None`: it panicked, which is a failure like others, so that the other seeds
/// continue.
pub fn try_seed(stage: WorldKind, seed: u64) -> (u64, Option<WorldResult>) {
    (seed, panic::catch_unwind(|| stage.run_seed(seed, TraceTarget::Nowhere)).ok())
}

impl Campaign {
    pub fn new(stage: WorldKind) -> Self {
        Self { seeds: 0, inputs: 0, failures: Vec::new(), coverage: stage.coverage() }
    }

    pub fn add(&mut self, (seed, result): (u64, Option<WorldResult>)) {
        self.seeds += 1;
        let Some(WorldResult { violation, inputs, coverage, .. }) = result else {
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
