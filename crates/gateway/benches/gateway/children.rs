//! Child processes of the benchmark.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child as Process, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

/// Environment variable with the role of a child process.
pub(super) const ROLE: &str = "ROLLWAY_BENCH_ROLE";

/// Unit of processor time on Linux.
const TICK: Duration = Duration::from_millis(10);

/// A process that prints its address as JSON, and ends with its input.
pub(super) struct Child {
    process: Process,
    input: Option<ChildStdin>,
    output: Option<BufReader<ChildStdout>>,
    info: Value,
}

impl Child {
    pub(super) fn start(role: &str, words: &[&str]) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut process = Command::new(program)
            .env(ROLE, role)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("another process");
        let input = process.stdin.take();
        let output = process.stdout.take().map(BufReader::new);
        let mut child = Self { process, input, output, info: Value::Null };
        child.info = child.line();
        child
    }

    /// A program without a line of its own.
    pub(super) fn of_program(command: &mut Command, info: Value) -> Self {
        let silent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = silent.spawn().expect("another process");
        Self { process, input: None, output: None, info }
    }

    pub(super) fn is_running(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        let output = self.output.as_mut().expect("a process of ours");
        output.read_line(&mut line).expect("a process that speaks");
        serde_json::from_str(&line).expect("a line of JSON")
    }

    /// Writes a line and returns the reply.
    pub(super) fn ask(&mut self, line: &str) -> Value {
        let input = self.input.as_mut().expect("a process of ours");
        writeln!(input, "{line}").expect("a process that listens");
        self.line()
    }

    pub(super) fn text(&self, name: &str) -> String {
        self.info[name].as_str().expect("a text").to_owned()
    }

    pub(super) fn texts(&self, name: &str) -> Vec<String> {
        let list = self.info[name].as_array().expect("a list");
        list.iter().map(|text| text.as_str().expect("a text").to_owned()).collect()
    }

    /// Processor time so far.
    pub(super) fn cpu(&self) -> Duration {
        let path = format!("/proc/{}/stat", self.process.id());
        let stat = fs::read_to_string(path).unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let times = fields.split_whitespace().skip(11).take(2);
        let ticks: u64 = times.filter_map(|time| time.parse::<u64>().ok()).sum();
        TICK * u32::try_from(ticks).unwrap_or(u32::MAX)
    }

    /// Memory in bytes: `VmRSS` is the current, `VmHWM` the maximum.
    pub(super) fn memory(&self, name: &str) -> u64 {
        let path = format!("/proc/{}/status", self.process.id());
        let status = fs::read_to_string(path).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) * 1024
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        drop(self.input.take());
        if self.output.is_none() {
            // A program that does not watch its input.
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}
