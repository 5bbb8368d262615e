//! The project's own commands, started with `cargo xtask <command>`.
//!
//! `args.rs` understands the words after `cargo xtask`, `test.rs` holds the steps of the test
//! command, `venv.rs` the Python environment they need, `wheel.rs` makes the Python package, and
//! `shell.rs` starts every process.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool talks to a person"
)]

mod args;
mod shell;
mod test;
mod venv;
mod wheel;

use std::env;
use std::process::ExitCode;

use args::Request;
use shell::{Failure, Shell};

/// The exit code of a command line that was not understood.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let words: Vec<String> =
        env::args_os().skip(1).map(|word| word.to_string_lossy().into()).collect();
    let request = match args::parse(&words) {
        Ok(request) => request,
        Err(usage) => {
            eprintln!("error: {usage}\nhint: `cargo xtask help` lists the commands");
            return ExitCode::from(USAGE);
        }
    };
    match perform(request) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn perform(request: Request) -> Result<ExitCode, Failure> {
    match request {
        Request::Help => print!("{}", args::help()),
        Request::Test(steps) => return Ok(test::run(&Shell::from_env()?, &steps)),
        Request::Bench { filter } => bench(&Shell::from_env()?, filter.as_deref())?,
        Request::Wheel => wheel::build(&Shell::from_env()?).map(drop)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The benchmarks: package and name.
const BENCHES: &[(&str, &str)] = &[
    ("rollway-core", "core"),
    ("rollway", "engine"),
    ("rollway-wire", "roundtrip"),
    ("rollway-wire", "experience"),
];

/// Runs the benchmarks whose names contain `filter`, or all of them.
fn bench(shell: &Shell, filter: Option<&str>) -> Result<(), Failure> {
    let chosen = |name: &str| filter.is_none_or(|filter| name.contains(filter));
    let benches: Vec<_> = BENCHES.iter().filter(|(_, name)| chosen(name)).collect();
    if benches.is_empty() {
        let names: Vec<&str> = BENCHES.iter().map(|(_, name)| *name).collect();
        let names = names.join(", ");
        return Err(Failure::new("no benchmark has such a name").hint(format!("there is {names}")));
    }
    for (package, name) in benches {
        shell.cargo("bench --locked -p").args([package, &"--bench", name]).run()?;
    }
    Ok(())
}
