//! A simulated world of explorers, a trainer and the board at which they meet. Each explorer is a
//! [`Plan`](rollway_core::explore::Plan) with a process around it that can die at any moment; what
//! it has kept, and what it has submitted and delivered, survives.
//!
//! `world` is what happens, `checkers` what must be true, `mutants` the proof that they notice.

pub mod checkers;
pub mod mutants;
mod options;
mod process;
mod subject;
mod trainer;
mod world;

use crate::random::SimRandom;
use crate::trace::{SimTrace, TraceTarget};
use crate::world::WorldResult;
use checkers::ExploreCheckers;
use mutants::ExploreMutant;
use options::ExploreWorldOptions;
use world::ExploreWorld;

/// What can come up in such a world, by heading.
pub(crate) const COVERAGE_ITEMS: &[(&str, &[&str])] = &[
    ("order", &["begin", "finalize", "evaluate", "finish_eval", "sync", "load", "close", "end"]),
    (
        "fact",
        &[
            "begun",
            "exhausted",
            "finalized",
            "eval_begun",
            "eval_finished",
            "synced:version",
            "synced:nothing_new",
            "synced:trainer_done",
            "published",
            "loaded",
            "elsewhere",
            "trainer_done",
            "stopped",
        ],
    ),
    ("style", &["fixed", "explorer_driven", "trainer_driven", "fully_async"]),
    ("wait", &["new", "nothing_new", "trainer_done", "trainer_failed", "timed_out"]),
    ("explorer", &["crashed", "stopped", "restarted", "forced"]),
    ("trainer", &["step", "idle", "crashed", "restarted", "left", "never", "at its goal"]),
    ("experiences", &["delivered", "lost", "delivered again"]),
    ("end", &["done", "trainer_failed", "timed_out"]),
];

/// Lets the world of a seed run to its end, with chosen checkers and perhaps a planted bug.
pub fn run(
    seed: u64,
    trace: TraceTarget,
    checkers: ExploreCheckers,
    mutant: Option<&ExploreMutant>,
) -> WorldResult {
    let mut dice = SimRandom::new(seed);
    let options = ExploreWorldOptions::draw(&mut dice);
    ExploreWorld::new(options, dice, mutant, checkers, SimTrace::new(trace)).run()
}

/// Lets the world of a seed run to its end, with all checkers watching.
pub fn run_seed(seed: u64, trace: TraceTarget) -> WorldResult {
    run(seed, trace, ExploreCheckers::all(), None)
}
