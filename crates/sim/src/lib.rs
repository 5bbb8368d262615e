//! A simulated world around Rollway's core. A seed decides the configuration, the users, the
//! runners and the faults. Checkers examine every step.
//!
//! Start with [`run_seed`]. `world` runs the simulation, `checkers` state the guarantees,
//! `reference_model` is the state that the core is compared with, `mutants` test the checkers.
//! `explore` is the same for the loop of explorers.

pub mod campaign;
pub mod checkers;
pub mod coverage;
pub mod explore;
pub mod faults;
pub mod job;
pub mod ledger;
pub mod mutants;
pub mod options;
pub mod process;
pub mod queue;
pub mod random;
pub mod reference_model;
pub mod sink;
pub mod trace;
pub mod world;

pub use crate::checkers::{Checkers, Violation};
pub use crate::trace::{SimTrace, TraceTarget};
pub use crate::world::WorldResult;

use crate::coverage::Coverage;
use crate::mutants::{CoreSubject, Mutant};
use crate::options::WorldOptions;
use crate::random::SimRandom;
use crate::world::SimWorld;

/// Subject of a simulated world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorldKind {
    /// The core, with users, runners and a sink.
    #[default]
    Core,
    /// Explorers, a trainer and the synchronizer.
    Explorers,
}

impl WorldKind {
    /// Runs the world of a seed to its end with all checkers.
    pub fn run_seed(self, seed: u64, trace: TraceTarget) -> WorldResult {
        match self {
            Self::Core => run_seed(seed, trace),
            Self::Explorers => explore::run_seed(seed, trace),
        }
    }

    /// Returns empty counts with the names of all events.
    pub fn coverage(self) -> Coverage {
        match self {
            Self::Core => Coverage::default(),
            Self::Explorers => Coverage::of(explore::COVERAGE_ITEMS),
        }
    }
}

/// Name of the check that a seed gives the same trace twice.
pub const REPEAT: &str = "repeat";

/// Runs the world of a seed to its end with all checkers.
pub fn run_seed(seed: u64, trace: TraceTarget) -> WorldResult {
    run(seed, trace, Checkers::all(), None)
}

/// Runs the world of a seed to its end with chosen checkers and an optional planted bug.
pub fn run(
    seed: u64,
    trace: TraceTarget,
    checkers: Checkers,
    mutant: Option<&Mutant>,
) -> WorldResult {
    let mut rng = SimRandom::new(seed);
    let options = WorldOptions::draw(&mut rng);
    let subject = CoreSubject::new(options.config.clone(), mutant);
    SimWorld::new(options, rng, subject, checkers, SimTrace::new(trace)).run()
}

/// Runs a world twice and compares the traces.
///
/// # Errors
/// The traces differ.
pub(crate) fn same_trace(seed: u64, run: impl Fn() -> WorldResult) -> Result<u64, String> {
    let (first, second) = (run().trace.hash(), run().trace.hash());
    if first == second {
        return Ok(first);
    }
    Err(format!("seed {seed} gave the trace {first:016x}, and then {second:016x}"))
}

/// Runs a seed twice and compares all inputs and actions.
///
/// # Errors
/// The two traces differ.
pub fn repeats(seed: u64, mutant: Option<&Mutant>) -> Result<u64, String> {
    same_trace(seed, || run(seed, TraceTarget::Hash, Checkers::none(), mutant))
}
