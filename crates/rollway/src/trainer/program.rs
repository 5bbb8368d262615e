//! A trainer that is a program: started with the job, watched, and gone with it.
//!
//! It has a process group of its own, so that everything it starts can be ended with it. A guard,
//! a shell that waits for the end of its input, ends the group when this process is killed: the
//! input is a pipe whose other end is here.

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

/// How many of its last lines are shown when it has failed.
const LAST_LINES: usize = 20;

/// How long its last words may take to be read: somebody may have inherited its output.
const FINAL_OUTPUT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a group that was killed may take to be gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// What to start.
#[derive(Clone, Debug)]
pub(super) struct TrainerCommand {
    pub(super) command: Vec<String>,
    pub(super) env: Vec<(&'static str, OsString)>,
    /// How long it may take to end when it is told to.
    pub(super) grace: Duration,
}

/// A program that runs. Dropping it kills its group.
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
    /// Starts a program. What it prints goes to the log.
    pub(super) fn start(order: TrainerCommand) -> Result<Self, TrainerError> {
        let (name, args) = order.command.split_first().ok_or(TrainerError::NoCommand)?;
        let failed = |error: io::Error| TrainerError::NotStarted {
            program: name.clone(),
            message: error.to_string(),
        };
        // First, so that there is no moment at which nobody would end the program.
        let guard = Guard::start(order.grace).map_err(failed)?;
        let group = guard.group;
        let mut child = Command::new(name)
            .args(args)
            .envs(order.env)
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
        let (name, grace) = (name.clone(), order.grace);
        Ok(Self { name, child, group, grace, last, relays, _guard: guard })
    }

    /// Waits until it has ended, and ends it when it is told to.
    pub(super) async fn run(mut self, stop: CancellationToken) -> Result<(), TrainerError> {
        let status = tokio::select! {
            biased;
            status = self.child.wait() => status,
            () = stop.cancelled() => return self.end().await,
        };
        // Whatever it has started is of no use without it.
        self.signal(Signal::KILL);
        self.read_output().await;
        match status {
            Ok(status) if status.success() => Ok(()),
            status => Err(self.failed(status)),
        }
    }

    /// Asks it to end, and makes it end if it does not.
    async fn end(mut self) -> Result<(), TrainerError> {
        self.signal(Signal::TERM);
        if timeout(self.grace, self.child.wait()).await.is_err() {
            let (program, grace) = (&self.name, self.grace.as_secs_f64());
            tracing::warn!(%program, grace, "the trainer did not end when it was told to; killed");
        }
        self.signal(Signal::KILL);
        let _ = timeout(KILL_TIMEOUT, self.child.wait()).await;
        self.read_output().await;
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        // A group without members cannot be told anything.
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
        // The number is nobody else's: the guard, whose number it is, is never waited for before.
        self.signal(Signal::KILL);
        self.relays.iter().for_each(JoinHandle::abort);
    }
}

/// Puts what it prints into the log, and remembers the last of it.
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

/// The first of a group of processes: ends all others, and itself, when this process is gone,
/// however it went.
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
            // Ctrl-C at a terminal is for this process, which knows what to do about it.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let _input = shell.stdin.take();
        let id = shell.id().and_then(|id| i32::try_from(id).ok());
        let group = id.and_then(Pid::from_raw).ok_or(io::ErrorKind::Other)?;
        Ok(Self { group, _shell: shell, _input })
    }
}
