//! Workers as child processes of this one.

use std::io;
use std::pin::Pin;
use std::process::{ExitStatus, Stdio};

use rollway_protocol::env;
use tempfile::TempDir;
use tokio::io::AsyncRead;
use tokio::process::{Child, Command};

use super::execution_marks::ExecutionMarks;
use super::launcher::{LaunchSpec, LaunchedProcess, Launcher, ProcessExit, Suspect};
use super::log_relay;
use crate::process::lines;

/// Starts child processes. What they print goes into the log.
#[derive(Debug)]
pub struct LocalLauncher {
    /// Has a file for every process in which it marks what it executes.
    folder: TempDir,
}

impl LocalLauncher {
    /// Returns a launcher of child processes.
    ///
    /// # Errors
    /// If there is no folder for temporary files to be had.
    pub fn new() -> io::Result<Self> {
        Ok(Self { folder: tempfile::Builder::new().prefix("rollway-").tempdir()? })
    }

    fn spawn(&self, ticket: LaunchSpec) -> io::Result<RunningProcess> {
        let file = self.folder.path().join(format!("marks-{}", ticket.number));
        let marks = ExecutionMarks::new(file, ticket.runners)?;
        let mut child = Command::new(&ticket.program)
            .args(&ticket.args)
            .envs(ticket.env)
            .env(env::EXECUTION_MARKS, marks.path())
            .env(env::LOG_RELAY, "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| {
                let program = ticket.program.display();
                io::Error::new(error.kind(), format!("{program} could not be started: {error}"))
            })?;
        if let Some(stdout) = child.stdout.take() {
            tokio::spawn(relay(stdout, ticket.token.clone(), "stdout"));
        }
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(relay(stderr, ticket.token, "stderr"));
        }
        Ok(RunningProcess { child, marks })
    }
}

impl Launcher for LocalLauncher {
    fn launch(&self, ticket: LaunchSpec) -> Box<dyn LaunchedProcess> {
        match self.spawn(ticket) {
            Ok(running) => Box::new(running),
            Err(error) => Box::new(LaunchFailed(error.to_string())),
        }
    }
}

/// A process. Dropping it kills it.
struct RunningProcess {
    child: Child,
    marks: ExecutionMarks,
}

impl LaunchedProcess for RunningProcess {
    fn ended(&mut self) -> Pin<Box<dyn Future<Output = ProcessExit> + Send + '_>> {
        Box::pin(async {
            let message = describe(self.child.wait().await);
            let blame = self.marks.culprit().map_or(Suspect::SoleAttempt, Suspect::RunnerIndex);
            ProcessExit { message, started: true, blame }
        })
    }
}

/// A process that there never was.
struct LaunchFailed(String);

impl LaunchedProcess for LaunchFailed {
    fn ended(&mut self) -> Pin<Box<dyn Future<Output = ProcessExit> + Send + '_>> {
        Box::pin(async { ProcessExit::not_started(self.0.clone()) })
    }
}

/// Puts what a worker prints into the log, line by line, under its name.
async fn relay(output: impl AsyncRead + Unpin, worker: String, stream: &'static str) {
    lines(output, |line| log_relay::printed(&worker, stream, line)).await;
}

fn describe(status: io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    }
}
