//! What one coordinator carries: thousands of workers with a connection each, in another process,
//! and a hundred thousand tasks through them. The workers are of the kind that does nothing, or
//! waits for a moment, so that what is measured is the way to them and back.
//!
//! `cargo xtask bench scale`; `ROLLWAY_SCALE_WORKERS` (such as `250,1000,2000`) and
//! `ROLLWAY_SCALE_TASKS` say how many. Three processes take part: this one, which only starts the
//! others anew for every number of workers, the coordinator, and the workers.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

mod coordinator;
mod usage;
mod workers;

use std::process::{Command, ExitCode};

/// Words that say which of the processes this is.
const COORDINATOR: &str = "--coordinator";
const WORKERS: &str = "--workers";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    let role = |name: &str| words.iter().any(|word| word == name);
    if role(COORDINATOR) {
        coordinator::main();
    } else if role(WORKERS) {
        workers::main();
    } else {
        // `cargo test --benches` only wants to know that it runs.
        return lead(role("--bench"));
    }
    ExitCode::SUCCESS
}

fn lead(whole: bool) -> ExitCode {
    let set = |name: &str, usual: &str| std::env::var(name).unwrap_or_else(|_| usual.to_owned());
    let (workers, tasks) = if whole { ("250,1000,2000", "100000") } else { ("20", "200") };
    let tasks = set("ROLLWAY_SCALE_TASKS", tasks);
    let program = std::env::current_exe().expect("a program knows its own path");
    println!("load of the machine before: {}", usage::load());
    for workers in set("ROLLWAY_SCALE_WORKERS", workers).split(',') {
        let mut coordinator = Command::new(&program);
        coordinator.args([COORDINATOR, workers, &tasks]);
        let status = coordinator.status().expect("a program can be started again");
        if !status.success() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
