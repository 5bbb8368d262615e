//! A simulated world of explorers, a trainer and the synchronizer. Each explorer is a
//! [`Plan`](rollway_core::explore::Plan) in a process that can die at any moment; its saved
//! progress, submissions and deliveries survive.
//!
//! `world` runs the simulation, `checkers` state the guarantees, `mutants` test the checkers.

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

/// Names of events by heading.
pub(crate) const COVERAGE_ITEMS: &[(&str, &str)] = &[
    ("order", "begin finalize evaluate finish_eval sync load close end"),
    (
        "fact",
        "begun exhausted finalized eval_begun eval_finished synced:version synced:nothing_new \
         synced:trainer_done published loaded elsewhere trainer_done stopped",
    ),
    ("style", "fixed explorer_driven trainer_driven fully_async"),
    ("wait", "new nothing_new trainer_done trainer_failed timed_out"),
    ("explorer", "crashed stopped restarted forced"),
    ("trainer", "step idle crashed restarted left never at_its_goal"),
    ("experiences", "delivered lost delivered_again"),
    ("end", "done trainer_failed timed_out"),
];

/// Runs the world of a seed to its end, with chosen checkers and an optional planted bug.
pub fn run(
    seed: u64,
    trace: TraceTarget,
    checkers: ExploreCheckers,
    mutant: Option<&ExploreMutant>,
) -> WorldResult {
    let mut rng = SimRandom::new(seed);
    let options = ExploreWorldOptions::draw(&mut rng);
    ExploreWorld::new(options, rng, mutant, checkers, SimTrace::new(trace)).run()
}

/// Runs the world of a seed to its end with all checkers.
pub fn run_seed(seed: u64, trace: TraceTarget) -> WorldResult {
    run(seed, trace, ExploreCheckers::all(), None)
}
