//! A workspace for jobs, and the command in it.

use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread::{self, JoinHandle};

use serde_json::Value;

/// From where commands are run.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The example.
const EXAMPLE: &str = "examples/arithmetic.yaml";

/// A folder for jobs.
pub(crate) struct Workspace(tempfile::TempDir);

/// What a command came to.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Workspace {
    pub(crate) fn new() -> Self {
        let workspace = Self(tempfile::tempdir().unwrap());
        // Fewer sums are measured sooner.
        let all = std::fs::read_to_string(format!("{ROOT}/examples/arithmetic/held_out.jsonl"));
        let some: Vec<String> = all.unwrap().lines().take(100).map(str::to_owned).collect();
        std::fs::write(workspace.held_out(), some.join("\n")).unwrap();
        workspace
    }

    fn held_out(&self) -> PathBuf {
        self.path().join("held_out.jsonl")
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// The folder of the example's job.
    pub(crate) fn job(&self) -> PathBuf {
        self.path().join("examples/arithmetic")
    }

    pub(crate) fn summary(&self) -> Value {
        read(&self.job().join("summary.json"))
    }

    /// The command on the example, in a smaller form, with keys on top.
    pub(crate) fn command(&self, name: &str, keys: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rollway"));
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

    /// Runs a command to its end.
    pub(crate) fn run(&self, name: &str, keys: &[&str]) -> Ran {
        let output = self.command(name, keys).output().unwrap();
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Starts a job whose events can be followed.
    pub(crate) fn start(&self, keys: &[&str]) -> Running {
        let mut command = self.command("run", keys);
        let mut child = command.args(["--log", "json"]).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        Running { child, lines }
    }
}

/// How a job ended, and everything that it told before.
pub(crate) type Heard = (Option<i32>, Vec<Value>);

/// A job that runs. It is killed when it is dropped.
pub(crate) struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
}

impl Running {
    /// Waits for the next thing that happens; none at the end.
    pub(crate) fn event(&mut self) -> Option<Value> {
        loop {
            let line = self.lines.next()?.unwrap();
            // What is said before the job runs is for people.
            if let Ok(event) = serde_json::from_str(&line) {
                return Some(event);
            }
        }
    }

    /// Waits until something of a kind has happened.
    pub(crate) fn wait_for(&mut self, kind: &str) -> Value {
        let is_it = |event: &Value| event["event"] == kind;
        std::iter::from_fn(|| self.event()).find(is_it).unwrap_or_else(|| panic!("no {kind}"))
    }

    /// Goes on in a thread of its own, which hears everything; returns its process id, too.
    pub(crate) fn aside(self) -> (u32, JoinHandle<Heard>) {
        (self.child.id(), thread::spawn(move || self.finish()))
    }

    /// Sends a signal, by its name.
    pub(crate) fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end; returns its code and everything that happened on the way.
    pub(crate) fn finish(mut self) -> Heard {
        let events = std::iter::from_fn(|| self.event()).collect();
        (self.child.wait().unwrap().code(), events)
    }
}

impl Drop for Running {
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
