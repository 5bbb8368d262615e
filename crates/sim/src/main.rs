//! The `rollway-sim` command: runs seeds, reports failures and how to replay them.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

mod args;

use std::io::{self, Write};
use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use rollway_sim::campaign::{Campaign, SeedFailure, try_seed};
use rollway_sim::mutants::{MUTANTS, find_seed};
use rollway_sim::{TraceTarget, WorldKind, WorldResult, explore};

use crate::args::{SimCommand, SimRequest};

const USAGE: u8 = 2;
const PANIC: u8 = 101;
const LIVENESS: u8 = 102;
const CORRECTNESS: u8 = 103;

/// Maximum number of seeds for one planted bug.
const SEEDS_PER_MUTANT: u64 = 400;

fn main() -> ExitCode {
    match args::parse(std::env::args().skip(1)) {
        Ok(SimRequest { stage, command }) => execute(stage, command),
        Err(wrong) => {
            eprint!("error: {wrong}\n\n{}", args::USAGE);
            ExitCode::from(USAGE)
        }
    }
}

fn execute(stage: WorldKind, command: SimCommand) -> ExitCode {
    match command {
        SimCommand::Seeds { first, count, jobs, coverage } => {
            let cores = || thread::available_parallelism().map_or(1, usize::from);
            many(stage, first..first.saturating_add(count), jobs.unwrap_or_else(cores), coverage)
        }
        SimCommand::Seed { seed, trace } => one(stage, seed, trace),
        SimCommand::Mutants { first } => mutants(stage, first),
        SimCommand::Help => {
            print!("{}", args::USAGE);
            ExitCode::SUCCESS
        }
    }
}

fn many(stage: WorldKind, seeds: Range<u64>, jobs: usize, coverage: bool) -> ExitCode {
    let start = Instant::now();
    let campaign = run_all(stage, seeds, jobs);
    let seconds = start.elapsed().as_secs_f64();
    for failure in &campaign.failures {
        let seed = failure.seed;
        match &failure.violation {
            Some(violation) => println!("seed {seed}: {violation}"),
            None => println!("seed {seed}: panicked"),
        }
        println!("  replay: rollway-sim{} --seed {seed} --trace", flag(stage));
    }
    if coverage {
        print!("{}", campaign.coverage);
        for missing in campaign.coverage.missing() {
            println!("never occurred: {missing}");
        }
    }
    eprintln!("{} inputs in {seconds:.1} s", campaign.inputs);
    let failed = campaign.failures.len() as u64;
    println!("{} passed, {failed} failed", campaign.seeds - failed);
    exit_code(&campaign)
}

/// Runs seeds on several threads; each thread takes the next free seed.
fn run_all(stage: WorldKind, seeds: Range<u64>, jobs: usize) -> Campaign {
    let (next, count) = (AtomicU64::new(seeds.start), seeds.end - seeds.start);
    let (sender, receiver) = mpsc::sync_channel(64);
    let mut campaign = Campaign::new(stage);
    thread::scope(|scope| {
        for _ in 0..jobs {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || sender.send(try_seed(stage, seed)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let step = (count / 20).max(1);
        for tried in receiver {
            campaign.add(tried);
            if campaign.seeds.is_multiple_of(step) {
                let failed = campaign.failures.len();
                eprintln!("{} of {count} seeds, {failed} failed", campaign.seeds);
            }
        }
    });
    campaign.failures.sort_by_key(|failure| failure.seed);
    campaign
}

const fn flag(stage: WorldKind) -> &'static str {
    match stage {
        WorldKind::Core => "",
        WorldKind::Explorers => " --explorers",
    }
}

fn exit_code(campaign: &Campaign) -> ExitCode {
    let worst = campaign.failures.iter().map(code).max_by_key(|code| match *code {
        CORRECTNESS => 3,
        PANIC => 2,
        _ => 1,
    });
    worst.map_or(ExitCode::SUCCESS, ExitCode::from)
}

fn code(failure: &SeedFailure) -> u8 {
    match &failure.violation {
        None => PANIC,
        Some(violation) if violation.is_liveness() => LIVENESS,
        Some(_) => CORRECTNESS,
    }
}

fn one(stage: WorldKind, seed: u64, trace: bool) -> ExitCode {
    let mut to = TraceTarget::Hash;
    if trace {
        to = TraceTarget::Lines(Box::new(io::LineWriter::new(io::stdout())));
    }
    let WorldResult { violation, inputs, lasted, trace, .. } = stage.run_seed(seed, to);
    println!("seed {seed}: {inputs} inputs, {lasted} s, trace {:016x}", trace.hash());
    let Some(violation) = violation else {
        println!("1 passed, 0 failed");
        return ExitCode::SUCCESS;
    };
    println!("{violation}");
    println!("0 passed, 1 failed");
    ExitCode::from(if violation.is_liveness() { LIVENESS } else { CORRECTNESS })
}

fn mutants(stage: WorldKind, first: u64) -> ExitCode {
    // Panics of mutants are expected and not shown.
    std::panic::set_hook(Box::new(|_| {}));
    println!("{:<16} {:<46} {:>5}  message", "checker", "planted bug", "seeds");
    let reported: Vec<bool> = match stage {
        WorldKind::Core => (MUTANTS.iter())
            .map(|it| show(it.checker, it.name, find_seed(it, first, SEEDS_PER_MUTANT)))
            .collect(),
        WorldKind::Explorers => (explore::mutants::MUTANTS.iter())
            .map(|it| {
                show(it.checker, it.name, explore::mutants::find_seed(it, first, SEEDS_PER_MUTANT))
            })
            .collect(),
    };
    let passed = reported.iter().filter(|reported| **reported).count();
    let failed = reported.len() - passed;
    println!("{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(CORRECTNESS) }
}

/// Prints the result of a planted bug, and returns whether it was reported.
fn show(checker: &str, name: &str, caught: Option<(u64, String)>) -> bool {
    let reported = caught.is_some();
    let (seeds, message) = match caught {
        Some((seeds, message)) => (seeds.to_string(), message),
        None => ("-".to_owned(), "NOT REPORTED".to_owned()),
    };
    let message: String = message.chars().take(72).collect();
    println!("{checker:<16} {name:<46} {seeds:>5}  {message}");
    // Shows the lines as they come, also through a pipe.
    let _ = io::stdout().flush();
    reported
}
