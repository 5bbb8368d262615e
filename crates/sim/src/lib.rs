//! A simulated world around Rollway's core. One number, the seed, decides everything: the
//! configuration, the users, the runners, what goes wrong and when. Checkers look at every step.
//!
//! Start with [`run_seed`]; `world` is what happens, `checkers` what must be true, `book` what the
//! checkers measure the core against, `mutants` the proof that they notice. `explore` is the same
//! for the loop of explorers.

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

/// What is in the middle of a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorldKind {
    /// The core: users, runners and a sink around it.
    #[default]
    Core,
    /// Explorers, a trainer, and the board at which they meet.
    Explorers,
}

impl WorldKind {
    /// Lets the world of a seed run to its end, with all checkers watching.
    pub fn run_seed(self, seed: u64, trace: TraceTarget) -> WorldResult {
        match self {
            Self::Core => run_seed(seed, trace),
            Self::Explorers => explore::run_seed(seed, trace),
        }
    }

    /// Returns counts of nothing, with the names of all that can come up.
    pub fn coverage(self) -> Coverage {
        match self {
            Self::Core => Coverage::default(),
            Self::Explorers => Coverage::of(explore::COVERAGE_ITEMS),
        }
    }
}

/// The name under which it is reported that a seed does not repeat itself.
pub const REPEAT: &str = "repeat";

/// Lets the world of a seed run to its end, with all checkers watching.
pub fn run_seed(seed: u64, trace: TraceTarget) -> WorldResult {
    run(seed, trace, Checkers::all(), None)
}

/// Lets the world of a seed run to its end with chosen checkers and perhaps a planted bug.
pub fn run(
    seed: u64,
    trace: TraceTarget,
    checkers: Checkers,
    mutant: Option<&Mutant>,
) -> WorldResult {
    let mut dice = SimRandom::new(seed);
    let options = WorldOptions::draw(&mut dice);
    let subject = CoreSubject::new(options.config.clone(), mutant);
    SimWorld::new(options, dice, subject, checkers, SimTrace::new(trace)).run()
}

/// Runs a seed twice and compares everything that went in and came out.
///
/// # Errors
/// Says that the two runs differ.
pub fn repeats(seed: u64, mutant: Option<&Mutant>) -> Result<u64, String> {
    let hash = || run(seed, TraceTarget::Hash, Checkers::none(), mutant).trace.hash();
    let (first, second) = (hash(), hash());
    if first == second {
        return Ok(first);
    }
    Err(format!("seed {seed} gave the trace {first:016x}, and then {second:016x}"))
}
