//! The command: runs seeds and says what went wrong and how to see it again.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command talks to its user")]

mod args;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use rollway_sim::campaign::{Campaign, Failure, Tried};
use rollway_sim::mutants::{Hunt, MUTANTS, hunt};
use rollway_sim::{Outcome, To, run_seed};

use crate::args::Command;

const USAGE: u8 = 2;
const PANIC: u8 = 101;
const LIVENESS: u8 = 102;
const CORRECTNESS: u8 = 103;

/// How many seeds are tried for one planted bug.
const SEEDS_PER_MUTANT: u64 = 400;

fn main() -> ExitCode {
    match args::parse(std::env::args().skip(1)) {
        Ok(Command::Seeds { first, count, jobs, coverage }) => many(first, count, jobs, coverage),
        Ok(Command::Seed { seed, trace }) => one(seed, trace),
        Ok(Command::Mutants { first }) => mutants(first),
        Ok(Command::Help) => {
            print!("{}", args::USAGE);
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            eprint!("error: {wrong}\n\n{}", args::USAGE);
            ExitCode::from(USAGE)
        }
    }
}

fn many(first: u64, count: u64, jobs: Option<usize>, coverage: bool) -> ExitCode {
    let cores = || thread::available_parallelism().map_or(1, usize::from);
    let start = Instant::now();
    let campaign = run_all(first, count, jobs.unwrap_or_else(cores));
    let seconds = start.elapsed().as_secs_f64();
    for failure in &campaign.failures {
        let seed = failure.seed;
        match &failure.violation {
            Some(violation) => println!("seed {seed}: {violation}"),
            None => println!("seed {seed}: panicked"),
        }
        println!("  replay: rollway-sim --seed {seed} --trace");
    }
    if coverage {
        print!("{}", campaign.coverage);
        for missing in campaign.coverage.missing() {
            println!("never came up: {missing}");
        }
    }
    eprintln!("{} inputs in {seconds:.1} s", campaign.inputs);
    let failed = campaign.failures.len() as u64;
    println!("{} passed, {failed} failed", campaign.seeds - failed);
    exit_code(&campaign)
}

/// Runs seeds on several threads; each thread takes the next seed when it is done with one.
fn run_all(first: u64, count: u64, jobs: usize) -> Campaign {
    let next = AtomicU64::new(0);
    let (sender, receiver) = mpsc::sync_channel(64);
    let mut campaign = Campaign::default();
    thread::scope(|scope| {
        for _ in 0..jobs {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count || sender.send(Tried::seed(first.wrapping_add(at))).is_err() {
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

fn exit_code(campaign: &Campaign) -> ExitCode {
    let worst = campaign.failures.iter().map(code).max_by_key(|code| match *code {
        CORRECTNESS => 3,
        PANIC => 2,
        _ => 1,
    });
    worst.map_or(ExitCode::SUCCESS, ExitCode::from)
}

fn code(failure: &Failure) -> u8 {
    match &failure.violation {
        None => PANIC,
        Some(violation) if violation.is_liveness() => LIVENESS,
        Some(_) => CORRECTNESS,
    }
}

fn one(seed: u64, trace: bool) -> ExitCode {
    let mut to = To::Hash;
    if trace {
        to = To::Lines(Box::new(io::LineWriter::new(io::stdout())));
    }
    let Outcome { violation, inputs, lasted, trace, .. } = run_seed(seed, to);
    println!("seed {seed}: {inputs} inputs, {lasted} s, trace {:016x}", trace.hash());
    let Some(violation) = violation else {
        println!("1 passed, 0 failed");
        return ExitCode::SUCCESS;
    };
    println!("{violation}");
    println!("0 passed, 1 failed");
    ExitCode::from(if violation.is_liveness() { LIVENESS } else { CORRECTNESS })
}

fn mutants(first: u64) -> ExitCode {
    // A planted bug may make the core panic again and again, which is of no interest.
    std::panic::set_hook(Box::new(|_| {}));
    let mut failed = 0;
    println!("{:<10} {:<46} {:>5}  in which words", "checker", "planted bug", "seeds");
    for mutant in MUTANTS {
        let Hunt { mutant, caught } = hunt(mutant, first, SEEDS_PER_MUTANT);
        let (seeds, words) = match &caught {
            Some((seeds, words)) => (seeds.to_string(), words.as_str()),
            None => ("-".to_owned(), "NOT NOTICED"),
        };
        let words: String = words.chars().take(72).collect();
        println!("{:<10} {:<46} {seeds:>5}  {words}", mutant.checker, mutant.name);
        // Whoever watches sees the lines as they come, also through a pipe.
        let _ = io::stdout().flush();
        failed += usize::from(caught.is_none());
    }
    println!("{} passed, {failed} failed", MUTANTS.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(CORRECTNESS) }
}
