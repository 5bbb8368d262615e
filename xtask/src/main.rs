//! The project's own commands, started with `cargo xtask <command>`.
//!
//! `args.rs` parses arguments, `test.rs` has the steps of the test command, `services/` installs
//! the programs they need, `venv.rs` the Python environments, `pages.rs` runs the dashboard in a
//! browser, `peers.rs` installs what benchmarks compare with, `wheel.rs` builds the Python package,
//! `docs.rs` builds the documentation site, `fuzz.rs` and `kills.rs` run long campaigns, `shell.rs`
//! starts processes.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool prints")]

mod args;
mod deny;
mod docs;
mod fuzz;
mod kills;
mod pages;
mod peers;
mod services;
mod shell;
mod test;
mod venv;
mod wheel;

use std::env;
use std::process::ExitCode;

use args::XtaskRequest;
use services::{chromium, llama, postgres};
use shell::{CommandFailure, Shell};

/// Exit code of invalid arguments.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let arguments: Vec<String> =
        env::args_os().skip(1).map(|argument| argument.to_string_lossy().into()).collect();
    let request = match args::parse(&arguments) {
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

fn perform(request: XtaskRequest) -> Result<ExitCode, CommandFailure> {
    match request {
        XtaskRequest::Help => print!("{}", args::help()),
        XtaskRequest::Test(steps) => return Ok(test::run(&Shell::from_env()?, &steps)),
        XtaskRequest::Bench { filter } => bench(&Shell::from_env()?, filter.as_deref())?,
        XtaskRequest::Fuzz { target, seconds } => {
            fuzz::run(&Shell::from_env()?, target.as_deref(), seconds)?;
        }
        XtaskRequest::Kills { kills } => kills::run(&Shell::from_env()?, kills)?,
        XtaskRequest::Llama => {
            let llama = llama::ready(&Shell::from_env()?)?;
            println!("{} --model {}", llama.server.display(), llama.model.display());
        }
        XtaskRequest::Postgres => postgres::ready(&Shell::from_env()?)?,
        XtaskRequest::Chromium => {
            println!("{}", chromium::ready(&Shell::from_env()?)?.display());
        }
        XtaskRequest::Docs => println!("{}", docs::build(&Shell::from_env()?)?.display()),
        XtaskRequest::Shots => pages::script(&Shell::from_env()?, "shots")?,
        XtaskRequest::Wheel => wheel::build(&Shell::from_env()?).map(drop)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Package and name of the benchmarks.
const BENCHES: &[(&str, &str)] = &[
    ("rollway-core", "core"),
    ("rollway-engine", "engine"),
    ("rollway", "explorer"),
    ("rollway-dashboard", "observe"),
    ("rollway-engine", "hostile"),
    ("rollway-engine", "scale"),
    ("rollway-protocol", "roundtrip"),
    ("rollway-experience", "experience"),
    ("rollway-data", "buffers"),
    ("rollway-data", "pipeline"),
    ("rollway-ledger", "ledger"),
    ("rollway-gateway", "gateway"),
];

/// Benchmarks outside of cargo: the Python package, and the dashboard in a browser.
const PYTHON: &str = "python";
const PAGES: &str = "pages";

/// Runs the benchmarks whose names contain `filter`, or all of them.
fn bench(shell: &Shell, filter: Option<&str>) -> Result<(), CommandFailure> {
    let chosen = |name: &str| filter.is_none_or(|filter| name.contains(filter));
    let benches: Vec<_> = BENCHES.iter().filter(|(_, name)| chosen(name)).collect();
    if benches.is_empty() && !chosen(PYTHON) && !chosen(PAGES) {
        let names = BENCHES.iter().map(|(_, name)| *name).chain([PYTHON, PAGES]);
        let names = names.collect::<Vec<_>>().join(", ");
        return Err(CommandFailure::new("unknown benchmark").hint(format!("known: {names}")));
    }
    if benches.iter().any(|(_, name)| *name == "buffers") {
        postgres::ready(shell)?;
    }
    for (package, name) in benches {
        let mut command = shell.cargo("bench --locked -p").args([package, &"--bench", name]);
        if *name == "gateway" {
            for (variable, program) in peers::programs(shell)? {
                command = command.env(variable, program);
            }
        }
        command.run()?;
    }
    if chosen("observe") {
        let python = wheel::installed(shell)?;
        shell.program(&python).split_args("python/bench/observe.py").run()?;
    }
    if chosen(PAGES) {
        pages::script(shell, "bench")?;
    }
    if chosen(PYTHON) { bench_python(shell) } else { Ok(()) }
}

/// Measures payloads in Python, and the engine with Python workers after the bare transport.
fn bench_python(shell: &Shell) -> Result<(), CommandFailure> {
    let python = wheel::installed(shell)?;
    shell.program(&python).split_args("python/bench/payload.py").run()?;
    shell.cargo("build --release --locked -p rollway-conformance --example echo_worker").run()?;
    shell.cargo("bench --locked -p rollway-protocol --bench roundtrip").run()?;
    shell
        .program(&python)
        .split_args("python/bench/engine.py")
        .env("ROLLWAY_ECHO_BIN", shell.target.join("release/examples/echo_worker"))
        .run()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_benchmarks_of_the_workspace_are_listed() {
        let metadata = cargo_metadata::MetadataCommand::new().no_deps().exec().expect("metadata");
        let targets = metadata.packages.iter().flat_map(|package| {
            let benches = package.targets.iter().filter(|target| target.is_bench());
            benches.map(|target| (package.name.as_str(), target.name.as_str()))
        });
        let mut targets: Vec<_> = targets.collect();
        let mut listed = BENCHES.to_vec();
        targets.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, targets);
    }
}
