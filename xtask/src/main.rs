//! The project's own commands, started with `cargo xtask <command>`.
//!
//! `args.rs` understands the words after `cargo xtask`, `test.rs` holds the steps of the test
//! command, `services/` the database server, the inference server, the browser and the JavaScript
//! packages they need, `venv.rs` the Python environment, `pages.rs` the dashboard in a browser,
//! `peers.rs` what benchmarks compare with, `wheel.rs` makes the Python package, and `shell.rs`
//! starts every process.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool talks to a person"
)]

mod args;
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

fn perform(request: XtaskRequest) -> Result<ExitCode, CommandFailure> {
    match request {
        XtaskRequest::Help => print!("{}", args::help()),
        XtaskRequest::Test(steps) => return Ok(test::run(&Shell::from_env()?, &steps)),
        XtaskRequest::Bench { filter } => bench(&Shell::from_env()?, filter.as_deref())?,
        XtaskRequest::Llama => llama::ready(&Shell::from_env()?).map(show)?,
        XtaskRequest::Postgres => postgres::ready(&Shell::from_env()?)?,
        XtaskRequest::Chromium => {
            println!("{}", chromium::ready(&Shell::from_env()?)?.display());
        }
        XtaskRequest::Shots => pages::shots(&Shell::from_env()?)?,
        XtaskRequest::Wheel => wheel::build(&Shell::from_env()?).map(drop)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Says how to start the inference server.
fn show(llama: llama::Llama) {
    println!("{} --model {}", llama.server.display(), llama.model.display());
}

/// The benchmarks: package and name.
const BENCHES: &[(&str, &str)] = &[
    ("rollway-core", "core"),
    ("rollway", "engine"),
    ("rollway", "explorer"),
    ("rollway", "observe"),
    ("rollway", "scale"),
    ("rollway-protocol", "roundtrip"),
    ("rollway-experience", "experience"),
    ("rollway-data", "buffers"),
    ("rollway-data", "pipeline"),
    ("rollway-ledger", "ledger"),
    ("rollway-gateway", "gateway"),
];

/// The benchmark of the Python package, which is no cargo's.
const PYTHON: &str = "python";

/// The benchmark of the dashboard in a browser.
const PAGES: &str = "pages";

/// Runs the benchmarks whose names contain `filter`, or all of them.
fn bench(shell: &Shell, filter: Option<&str>) -> Result<(), CommandFailure> {
    let chosen = |name: &str| filter.is_none_or(|filter| name.contains(filter));
    let benches: Vec<_> = BENCHES.iter().filter(|(_, name)| chosen(name)).collect();
    if benches.is_empty() && !chosen(PYTHON) && !chosen(PAGES) {
        let names = BENCHES.iter().map(|(_, name)| *name);
        let names: Vec<&str> = names.chain([PYTHON, PAGES]).collect();
        let names = names.join(", ");
        return Err(
            CommandFailure::new("no benchmark has such a name").hint(format!("there is {names}"))
        );
    }
    if benches.iter().any(|(_, name)| *name == "buffers") {
        postgres::ready(shell)?;
    }
    for (package, name) in benches {
        let mut command = shell.cargo("bench --locked -p").args([package, &"--bench", name]);
        if *name == "gateway"
            && let Some(program) = peers::litellm(shell)?
        {
            command = command.env("ROLLWAY_BENCH_LITELLM", program);
        }
        command.run()?;
    }
    if chosen("observe") {
        let python = wheel::installed(shell)?;
        shell.program(&python).words("python/bench/observe.py").run()?;
    }
    if chosen(PAGES) {
        pages::bench(shell)?;
    }
    if chosen(PYTHON) { bench_python(shell) } else { Ok(()) }
}

/// Measures payloads in Python, and the engine with workers in Python, right after the bare
/// transport that they go through.
fn bench_python(shell: &Shell) -> Result<(), CommandFailure> {
    let python = wheel::installed(shell)?;
    shell.program(&python).words("python/bench/payload.py").run()?;
    shell.cargo("build --release --locked -p rollway-conformance --example echo_worker").run()?;
    shell.cargo("bench --locked -p rollway-protocol --bench roundtrip").run()?;
    shell
        .program(&python)
        .words("python/bench/engine.py")
        .env("ROLLWAY_ECHO_BIN", shell.target.join("release/examples/echo_worker"))
        .run()
}
