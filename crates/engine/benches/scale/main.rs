//! Scale of one coordinator: thousands of workers with a connection each, 100,000 short tasks.
//!
//! `cargo xtask bench scale`; `ROLLWAY_SCALE_WORKERS` (`250,1000,2000`) and `ROLLWAY_SCALE_TASKS`
//! set the numbers. This process starts a coordinator for each number of workers, which starts a
//! process for the workers.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

mod coordinator;
mod usage;
mod workers;

use std::process::{Command, ExitCode};

/// Arguments that select the process.
const COORDINATOR: &str = "--coordinator";
const WORKERS: &str = "--workers";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let role = |name: &str| args.iter().any(|arg| arg == name);
    if role(COORDINATOR) {
        coordinator::main();
    } else if role(WORKERS) {
        workers::main();
    } else {
        // `cargo test --benches` only checks that it runs.
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
