//! Workers as child processes.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use futures_util::future::BoxFuture;
use rollway_protocol::env;
use tokio::io::AsyncRead;
use tokio::process::{Child, Command};

use super::launcher::{LaunchSpec, LaunchedProcess, Launcher, ProcessExit, Suspect};
use super::log_relay;
use crate::process::{ProcessGroup, ProcessTree, lines};
use crate::workers::temporary_folder::TemporaryFolder;

/// Time between SIGTERM and SIGKILL for processes that a killed engine has left.
const ORPHAN_GRACE: Duration = Duration::from_secs(2);

/// Starts child processes and logs their output.
#[derive(Debug)]
pub struct LocalLauncher {
    /// Contains the execution marks of every process.
    folder: TemporaryFolder,
    tree: Arc<ProcessTree>,
}

impl LocalLauncher {
    /// # Errors
    /// If no temporary folder can be created, or no process can be started.
    pub fn new() -> io::Result<Self> {
        let folder = TemporaryFolder::create()?;
        Ok(Self { folder, tree: ProcessTree::new(ORPHAN_GRACE, None)? })
    }

    fn spawn(&self, spec: LaunchSpec) -> io::Result<RunningProcess> {
        let file = self.folder.path().join(format!("marks-{}", spec.number));
        let marks = ExecutionMarks::new(file, spec.runners)?;
        let mut command = Command::new(&spec.program);
        for name in &spec.removed_env {
            command.env_remove(name);
        }
        command
            .args(&spec.args)
            .envs(spec.env)
            .env(env::EXECUTION_MARKS, &marks.0)
            .env(env::LOG_RELAY, "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let (mut child, group) = self.tree.spawn(&mut command).map_err(|error| {
            let program = spec.program.display();
            io::Error::new(error.kind(), format!("{program} could not be started: {error}"))
        })?;
        if let Some(stdout) = child.stdout.take() {
            tokio::spawn(relay(stdout, format!("w{}", spec.number), "stdout"));
        }
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(relay(stderr, format!("w{}", spec.number), "stderr"));
        }
        Ok(RunningProcess { _group: group, child, marks })
    }
}

impl Launcher for LocalLauncher {
    fn launch(&self, spec: LaunchSpec) -> Box<dyn LaunchedProcess> {
        match self.spawn(spec) {
            Ok(running) => Box::new(running),
            Err(error) => Box::new(LaunchFailed(error.to_string())),
        }
    }
}

/// A process. Dropping it kills it, and everything that it has started.
struct RunningProcess {
    _group: ProcessGroup,
    child: Child,
    marks: ExecutionMarks,
}

impl LaunchedProcess for RunningProcess {
    fn ended(&mut self) -> BoxFuture<'_, ProcessExit> {
        Box::pin(async {
            let status = self.child.wait().await;
            let message = status.map_or_else(|error| error.to_string(), |it| it.to_string());
            let suspect = Suspect::Executing(self.marks.executing());
            ProcessExit { message, started: true, suspect }
        })
    }
}

/// A process that could not be started.
struct LaunchFailed(String);

impl LaunchedProcess for LaunchFailed {
    fn ended(&mut self) -> BoxFuture<'_, ProcessExit> {
        Box::pin(async { ProcessExit::not_started(self.0.clone()) })
    }
}

/// Logs the output of a worker.
async fn relay(output: impl AsyncRead + Unpin, worker: String, stream: &'static str) {
    lines(output, |line| log_relay::printed(&worker, stream, line)).await;
}

/// Execution marks of one process: a byte for each runner, not 0 while its code executes. The file
/// is written by the process, outlives it, and is removed with this.
#[derive(Debug)]
struct ExecutionMarks(PathBuf);

impl ExecutionMarks {
    fn new(path: PathBuf, runners: u32) -> io::Result<Self> {
        fs::write(&path, vec![0; runners as usize])?;
        Ok(Self(path))
    }

    /// Returns the indices of the executing runners.
    fn executing(&self) -> Vec<u32> {
        let marks = fs::read(&self.0).unwrap_or_default();
        let marked = marks.iter().zip(0..).filter(|(mark, _)| **mark != 0);
        marked.map(|(_, index)| index).collect()
    }
}

impl Drop for ExecutionMarks {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
