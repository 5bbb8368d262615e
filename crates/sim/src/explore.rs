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

use crate::dice::Dice;
use crate::trace::{To, Trace};
use crate::world::Outcome;
use checkers::Checkers;
use mutants::Mutant;
use options::Options;
use world::World;

/// What can come up in such a world, by heading.
pub(crate) const KNOWN: &[(&str, &[&str])] = &[
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
pub fn run(seed: u64, trace: To, checkers: Checkers, mutant: Option<&Mutant>) -> Outcome {
    let mut dice = Dice::new(seed);
    let options = Options::draw(&mut dice);
    World::new(options, dice, mutant, checkers, Trace::new(trace)).run()
}

/// Lets the world of a seed run to its end, with all checkers watching.
pub fn run_seed(seed: u64, trace: To) -> Outcome {
    run(seed, trace, Checkers::all(), None)
}
