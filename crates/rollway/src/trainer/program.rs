//! A trainer program: started, watched and ended with the job.
//!
//! It has its own process group, so that its child processes end with it. A guard, a shell that
//! waits for the end of a pipe from this process, ends the group if this process is killed.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rollway_engine::process::lines;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncRead;
use tokio::process::{Child, ChildStdin, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::TrainerError;

/// Lines of output that are shown after a failure.
const LAST_LINES: usize = 20;

/// Maximum time to read the last output: child processes may keep the pipe open.
const FINAL_OUTPUT_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum time for a killed group to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(super) struct TrainerCommand {
    pub(super) command: Vec<String>,
    pub(super) env: Vec<(&'static str, OsString)>,
    /// Maximum time to end after SIGTERM.
    pub(super) grace: Duration,
}

/// A running program. Dropping it kills its group.
#[derive(Debug)]
pub(super) struct TrainerProcess {
    name: String,
    child: Child,
    group: Pid,
    grace: Duration,
    last: Arc<Mutex<VecDeque<String>>>,
    relays: Vec<JoinHandle<()>>,
    _guard: Guard,
}

impl TrainerProcess {
    /// Starts a program. Its output goes to the log.
    pub(super) fn start(command: TrainerCommand) -> Result<Self, TrainerError> {
        let (name, args) = command.command.split_first().ok_or(TrainerError::NoCommand)?;
        let failed = |error: io::Error| TrainerError::NotStarted {
            program: name.clone(),
            message: error.to_string(),
        };
        // The guard starts first, so that the program is never without it.
        let guard = Guard::start(command.grace).map_err(failed)?;
        let group = guard.group;
        let mut child = Command::new(name)
            .args(args)
            .envs(command.env)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(group.as_raw_nonzero().get())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let last = Arc::default();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let relays = [
            stdout.map(|output| relay(output, "stdout", &last)),
            stderr.map(|output| relay(output, "stderr", &last)),
        ];
        let relays = relays.into_iter().flatten().collect();
        let (name, grace) = (name.clone(), command.grace);
        Ok(Self { name, child, group, grace, last, relays, _guard: guard })
    }

    /// Waits for the end of the program, and ends it on request.
    pub(super) async fn run(mut self, stop: CancellationToken) -> Result<(), TrainerError> {
        let status = tokio::select! {
            biased;
            status = self.child.wait() => status,
            () = stop.cancelled() => return self.end().await,
        };
        // Ends child processes.
        self.signal(Signal::KILL);
        self.read_output().await;
        match status {
            Ok(status) if status.success() => Ok(()),
            status => Err(self.failed(status)),
        }
    }

    /// Sends SIGTERM, and SIGKILL after the grace period.
    async fn end(mut self) -> Result<(), TrainerError> {
        self.signal(Signal::TERM);
        if timeout(self.grace, self.child.wait()).await.is_err() {
            let (program, grace) = (&self.name, self.grace.as_secs_f64());
            tracing::warn!(%program, grace, "trainer did not end within its grace period, killed");
        }
        self.signal(Signal::KILL);
        let _ = timeout(KILL_TIMEOUT, self.child.wait()).await;
        self.read_output().await;
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        // Fails if the group is empty.
        let _ = kill_process_group(self.group, signal);
    }

    async fn read_output(&mut self) {
        for relay in &mut self.relays {
            let _ = timeout(FINAL_OUTPUT_TIMEOUT, relay).await;
        }
    }

    fn failed(&self, status: io::Result<ExitStatus>) -> TrainerError {
        let last = self.last.lock();
        let last: Vec<String> = last.iter().map(|line| format!("\n  | {line}")).collect();
        TrainerError::Ended {
            program: self.name.clone(),
            status: status.map_or_else(|error| error.to_string(), |status| status.to_string()),
            last: last.concat(),
        }
    }
}

impl Drop for TrainerProcess {
    fn drop(&mut self) {
        // The group id cannot be reused: the guard, whose pid it is, has not been waited for.
        self.signal(Signal::KILL);
        self.relays.iter().for_each(JoinHandle::abort);
    }
}

/// Logs the output of the program and keeps the last lines.
fn relay(
    output: impl AsyncRead + Unpin + Send + 'static,
    stream: &'static str,
    last: &Arc<Mutex<VecDeque<String>>>,
) -> JoinHandle<()> {
    let last = Arc::clone(last);
    tokio::spawn(async move {
        let log = |line: &str| {
            tracing::info!(target: "rollway::trainer", stream, "{line}");
            let mut last = last.lock();
            if last.len() == LAST_LINES {
                last.pop_front();
            }
            last.push_back(line.to_owned());
        };
        lines(output, log).await;
    })
}

/// Leader of the process group: ends the group when this process ends, in any way.
#[derive(Debug)]
struct Guard {
    group: Pid,
    _shell: Child,
    _input: Option<ChildStdin>,
}

impl Guard {
    fn start(grace: Duration) -> io::Result<Self> {
        let grace = grace.as_secs_f64().ceil();
        let script = format!("trap '' TERM; read _; kill -s TERM 0; sleep {grace}; kill -s KILL 0");
        let mut shell = Command::new("/bin/sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C at a terminal must reach only this process.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let _input = shell.stdin.take();
        let id = shell.id().and_then(|id| i32::try_from(id).ok());
        let group = id.and_then(Pid::from_raw).ok_or(io::ErrorKind::Other)?;
        Ok(Self { group, _shell: shell, _input })
    }
}
