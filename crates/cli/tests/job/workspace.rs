//! Temporary folder for jobs, and the command on the example in it.

use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread::{self, JoinHandle};

use serde_json::Value;

/// Working directory of commands.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Configuration of the example.
const EXAMPLE: &str = "examples/arithmetic.yaml";

/// Temporary folder for jobs.
pub(crate) struct Workspace(tempfile::TempDir);

/// Exit code and output of a command.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Workspace {
    pub(crate) fn new() -> Self {
        let workspace = Self(tempfile::tempdir().unwrap());
        // Fewer evaluation tasks are faster.
        let all = std::fs::read_to_string(format!("{ROOT}/examples/arithmetic/held_out.jsonl"));
        let some: Vec<String> = all.unwrap().lines().take(100).map(str::to_owned).collect();
        std::fs::write(workspace.held_out(), some.join("\n")).unwrap();
        workspace
    }

    pub(crate) fn held_out(&self) -> PathBuf {
        self.path().join("held_out.jsonl")
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns the folder of the example's job.
    pub(crate) fn job(&self) -> PathBuf {
        self.path().join("examples/arithmetic")
    }

    pub(crate) fn summary(&self) -> Value {
        read(&self.job().join("summary.json"))
    }

    /// Keeps the folder, also after the test, and returns it.
    pub(crate) fn keep(&mut self) -> &Path {
        self.0.disable_cleanup(true);
        self.path()
    }

    /// Returns the command on a smaller example, with overrides.
    pub(crate) fn command(&self, name: &str, keys: &[&str]) -> Command {
        self.command_of(Path::new(env!("CARGO_BIN_EXE_rollway")), name, keys)
    }

    /// Same as [`command`](Self::command), with another build of the program.
    pub(crate) fn command_of(&self, program: &Path, name: &str, keys: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(ROOT)
            .args([name, EXAMPLE])
            .arg(format!("checkpoint_root_dir={}", self.path().display()))
            .arg(format!(
                "buffer.explorer_input.eval_tasksets=[{{name: held_out, path: {}, \
                 format: {{prompt_key: question, response_key: answer}}}}]",
                self.held_out().display()
            ))
            .args(keys)
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, name: &str, keys: &[&str]) -> CommandOutput {
        let output = self.command(name, keys).output().unwrap();
        CommandOutput {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Starts a job with `--log json`.
    pub(crate) fn start(&self, keys: &[&str]) -> RunningJob {
        let mut command = self.command("run", keys);
        let mut child = command.args(["--log", "json"]).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        RunningJob { child, lines }
    }
}

/// Exit code and events of a job.
pub(crate) type JobResult = (Option<i32>, Vec<Value>);

/// Running job. Dropping it kills the process.
pub(crate) struct RunningJob {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
}

impl RunningJob {
    /// Waits for the next event. `None`: the job has ended.
    pub(crate) fn event(&mut self) -> Option<Value> {
        loop {
            let line = self.lines.next()?.unwrap();
            // Warnings before the job starts are text.
            if let Ok(event) = serde_json::from_str(&line) {
                return Some(event);
            }
        }
    }

    /// Waits for the next event of a kind.
    pub(crate) fn wait_for(&mut self, kind: &str) -> Value {
        let is_it = |event: &Value| event["event"] == kind;
        std::iter::from_fn(|| self.event()).find(is_it).unwrap_or_else(|| panic!("no {kind}"))
    }

    /// Reads events in a background thread; returns the process id, too.
    pub(crate) fn into_background(self) -> (u32, JoinHandle<JobResult>) {
        (self.child.id(), thread::spawn(move || self.finish()))
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the end of the job.
    pub(crate) fn finish(mut self) -> JobResult {
        let events = std::iter::from_fn(|| self.event()).collect();
        (self.child.wait().unwrap().code(), events)
    }
}

impl Drop for RunningJob {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to a process, by its name.
pub(crate) fn signal(id: u32, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &id.to_string()]).status().unwrap();
    assert!(sent.success());
}

pub(crate) fn read(path: &Path) -> Value {
    let text = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap()
}
