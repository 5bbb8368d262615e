//! Honest runs beside hostile clients: a coordinator with its gateway and runs, and ten times as
//! many connections, with keys of runs, that send slow heads, nothing at all, large bodies, bodies
//! of many small values, and deeply nested ones.
//!
//! `cargo xtask bench hostile`. This process attacks; the coordinator and the mock server are
//! processes of their own. It fails if an honest run fails, if the coordinator takes more than its
//! configured memory, or, as a benchmark, if its loop lags more than 100 ms.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

mod attack;
mod coordinator;

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};

use serde_json::Value;

use self::attack::Attack;

/// Arguments that select the process.
const COORDINATOR: &str = "--coordinator";
const SERVER: &str = "--server";

/// Hostile connections for each honest runner.
const FACTOR: usize = 10;

/// Honest runners, each with one request at a time.
const RUNNERS: usize = 32;

/// Bound of the loop lag in milliseconds.
const MAX_LAG_MS: f64 = 100.0;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let at = |name: &str| args.iter().position(|arg| arg == name);
    if let Some(at) = at(COORDINATOR) {
        coordinator::run(&args[at + 1..]);
    } else if at(SERVER).is_some() {
        coordinator::server();
    } else {
        // `cargo test --benches` only checks that it runs.
        let is_bench = at("--bench").is_some();
        return if lead(is_bench) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    ExitCode::SUCCESS
}

/// Measures honest runs alone, then beside the attack. Returns whether all bounds are kept.
fn lead(is_bench: bool) -> bool {
    let (runners, runs) = if is_bench { (RUNNERS, 512) } else { (2, 8) };
    let mut server = Role::start(&[SERVER]);
    let url = server.line()["url"].as_str().expect("an address").to_owned();
    let [runners_text, runs_text] = [runners, runs].map(|number| number.to_string());
    let mut coordinator = Role::start(&[COORDINATOR, &url, &runners_text, &runs_text]);
    let access = coordinator.line();
    let alone = coordinator.ask("alone");
    let attack = Attack::start(&access, runners * FACTOR);
    let attacked = coordinator.ask("attacked");
    let answered = attack.stop();
    println!(
        "{runners} honest runners, {} hostile connections with keys of runs",
        runners * FACTOR
    );
    println!(
        "{:10}{:>8}{:>8}{:>10}{:>14}{:>14}{:>14}",
        "", "runs", "failed", "seconds", "lag p99 (ms)", "lag max (ms)", "memory (MiB)"
    );
    for (name, row) in [("alone", &alone), ("attacked", &attacked)] {
        println!(
            "{name:10}{:>8}{:>8}{:>10.1}{:>14.2}{:>14.2}{:>14.0}",
            number(row, "runs"),
            number(row, "failed"),
            number(row, "seconds"),
            number(row, "lag_p99_ms"),
            number(row, "lag_max_ms"),
            number(row, "memory_mib")
        );
    }
    println!(
        "configured memory {} MiB; {answered} hostile requests were answered",
        access["configured_mib"]
    );
    let memory = number(&attacked, "memory_mib") <= number(&access, "configured_mib");
    let lag = !is_bench || number(&attacked, "lag_max_ms") <= MAX_LAG_MS;
    alone["failed"] == 0 && attacked["failed"] == 0 && memory && lag
}

fn number(row: &Value, name: &str) -> f64 {
    row[name].as_f64().expect("a number")
}

/// A process that answers lines with lines of JSON, and ends with its input.
struct Role {
    process: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl Role {
    fn start(args: &[&str]) -> Self {
        let program = std::env::current_exe().expect("a program knows its own path");
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("a program can be started again");
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        Self { process, input, output }
    }

    fn line(&mut self) -> Value {
        let line = self.output.next().expect("the process runs").expect("a line of text");
        serde_json::from_str(&line).expect("a line of JSON")
    }

    fn ask(&mut self, line: &str) -> Value {
        writeln!(self.input.as_mut().expect("a pipe"), "{line}").expect("the process runs");
        self.line()
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.process.wait();
    }
}
