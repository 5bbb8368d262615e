//! A trainer program: started, watched and ended with the job.
//!
//! Its child processes end with it. If this process is killed, a guard ends them; until then it
//! holds a lock, for which the next process of the job waits, so that two trainers never read one
//! buffer.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rollway_engine::process::{ProcessGroup, ProcessTree, lines};
use rustix::process::Signal;
use tokio::io::AsyncRead;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::TrainerError;

/// Lines of output that are shown after a failure.
const LAST_LINES: usize = 20;

const STDOUT: &str = "stdout";
const STDERR: &str = "stderr";

/// First line of a Python traceback.
const TRACEBACK: &str = "Traceback (most recent call last):";

/// Maximum time that a traceback is kept from the log. If the program ends with it, only the error
/// shows it.
const TRACEBACK_DELAY: Duration = Duration::from_secs(1);

/// Maximum time to read the last output: child processes may keep the pipe open.
const FINAL_OUTPUT_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum time for a killed group to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause between two attempts to lock the file of the trainer.
const LOCK_PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub(super) struct TrainerCommand {
    pub(super) command: Vec<String>,
    pub(super) env: Vec<(&'static str, OsString)>,
    /// Maximum time to end after SIGTERM.
    pub(super) grace: Duration,
    /// File that is locked until the trainer of an earlier process has ended.
    pub(super) lock: PathBuf,
}

/// Last output of a program.
#[derive(Debug)]
pub(super) struct TrainerOutput {
    program: String,
    last: Arc<Mutex<LastOutput>>,
}

#[derive(Debug, Default)]
struct LastOutput {
    /// The last lines; those of `held` are at the end.
    lines: VecDeque<String>,
    /// Lines of stderr since the beginning of a traceback, which are not logged yet.
    held: Vec<String>,
}

impl LastOutput {
    /// Adds a line, and logs it unless it belongs to a traceback. Returns whether a traceback
    /// begins.
    fn add(&mut self, line: &str, stream: &'static str) -> bool {
        let begins = stream == STDERR && self.held.is_empty() && line == TRACEBACK;
        let is_held = begins || (stream == STDERR && !self.held.is_empty());
        // Python writes its buffered output after a traceback, which stays at the end.
        let after = if is_held { 0 } else { self.held.len() };
        self.lines.insert(self.lines.len().saturating_sub(after), line.to_owned());
        if self.lines.len() > LAST_LINES {
            self.lines.pop_front();
        }
        if !is_held {
            log(line, stream);
            return false;
        }
        self.held.push(line.to_owned());
        if self.held.len() > LAST_LINES {
            self.release();
        }
        begins
    }

    /// Logs the lines that were not logged.
    fn release(&mut self) {
        self.held.drain(..).for_each(|line| log(&line, STDERR));
    }

    /// Drops the lines that the error of the program shows, and logs the others.
    fn drop_shown(&mut self) {
        let Self { lines, held } = self;
        held.retain(|line| !lines.contains(line));
        self.release();
    }
}

/// Logs a line of the program.
fn log(line: &str, stream: &'static str) {
    tracing::info!(target: "rollway::trainer", stream, "trainer: {line}");
}

impl TrainerOutput {
    /// Returns the name of the program and its last lines, each after a line break and a mark.
    pub(super) fn last(&self) -> (String, String) {
        let last: Vec<String> =
            self.last.lock().lines.iter().map(|line| format!("\n  | {line}")).collect();
        (self.program.clone(), last.concat())
    }
}

/// A running program. Dropping it kills its group.
#[derive(Debug)]
pub(super) struct TrainerProcess {
    name: String,
    group: ProcessGroup,
    child: Child,
    grace: Duration,
    last: Arc<Mutex<LastOutput>>,
    relays: Vec<JoinHandle<()>>,
}

impl TrainerProcess {
    /// Starts a program. Its output goes to the log.
    pub(super) async fn start(command: TrainerCommand) -> Result<Self, TrainerError> {
        let (name, args) = command.command.split_first().ok_or(TrainerError::NoCommand)?;
        let failed = |error: io::Error| TrainerError::NotStarted {
            program: name.clone(),
            message: error.to_string(),
        };
        let lock = locked(&command.lock, command.grace).await.map_err(failed)?;
        let tree = ProcessTree::new(command.grace, Some(lock)).map_err(failed)?;
        let mut program = Command::new(name);
        program
            .args(args)
            .envs(command.env)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let (mut child, group) = tree.spawn(&mut program).map_err(failed)?;
        let last = Arc::<Mutex<LastOutput>>::default();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let relays = [
            stdout.map(|output| relay(output, STDOUT, &last)),
            stderr.map(|output| relay(output, STDERR, &last)),
        ];
        let relays = relays.into_iter().flatten().collect();
        let (name, grace) = (name.clone(), command.grace);
        Ok(Self { name, group, child, grace, last, relays })
    }

    /// Waits for the end of the program, and ends it on request.
    pub(super) async fn run(mut self, stop: CancellationToken) -> Result<(), TrainerError> {
        let status = tokio::select! {
            biased;
            status = self.child.wait() => status,
            () = stop.cancelled() => return self.end().await,
        };
        // Ends child processes.
        self.group.signal(Signal::KILL);
        self.read_output().await;
        match status {
            Ok(status) if status.success() => {
                self.last.lock().release();
                Ok(())
            }
            status => {
                self.last.lock().drop_shown();
                Err(self.failed(status))
            }
        }
    }

    /// Sends SIGTERM, and SIGKILL after the grace period.
    async fn end(mut self) -> Result<(), TrainerError> {
        self.group.signal(Signal::TERM);
        if timeout(self.grace, self.child.wait()).await.is_err() {
            let (program, grace) = (&self.name, self.grace.as_secs_f64());
            tracing::warn!(%program, grace, "trainer did not end within its grace period, killed");
        }
        self.group.signal(Signal::KILL);
        let _ = timeout(KILL_TIMEOUT, self.child.wait()).await;
        self.read_output().await;
        self.last.lock().release();
        Ok(())
    }

    async fn read_output(&mut self) {
        for relay in &mut self.relays {
            let _ = timeout(FINAL_OUTPUT_TIMEOUT, relay).await;
        }
    }

    fn failed(&self, status: io::Result<ExitStatus>) -> TrainerError {
        let (program, last) = self.output().last();
        let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        TrainerError::Ended { program, status, last }
    }

    pub(super) fn output(&self) -> TrainerOutput {
        TrainerOutput { program: self.name.clone(), last: Arc::clone(&self.last) }
    }
}

impl Drop for TrainerProcess {
    fn drop(&mut self) {
        self.relays.iter().for_each(JoinHandle::abort);
    }
}

/// Locks a file. Waits for the guard of an earlier process, which kills its trainer after `grace`.
async fn locked(path: &Path, grace: Duration) -> io::Result<File> {
    let file = File::create(path)?;
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if began.elapsed() > grace + KILL_TIMEOUT => {
                let message = format!(
                    "the trainer of an earlier process still runs: {} is locked; end it",
                    path.display()
                );
                return Err(io::Error::other(message));
            }
            Err(TryLockError::WouldBlock) => {
                if began.elapsed() < LOCK_PAUSE {
                    tracing::info!("waiting for the end of the trainer of an earlier process");
                }
                sleep(LOCK_PAUSE).await;
            }
        }
    }
}

/// Logs the output of the program and keeps the last lines.
fn relay(
    output: impl AsyncRead + Unpin + Send + 'static,
    stream: &'static str,
    last: &Arc<Mutex<LastOutput>>,
) -> JoinHandle<()> {
    let last = Arc::clone(last);
    tokio::spawn(async move {
        let add = |line: &str| {
            if last.lock().add(line, stream) {
                let last = Arc::clone(&last);
                tokio::spawn(async move {
                    sleep(TRACEBACK_DELAY).await;
                    last.lock().release();
                });
            }
        };
        lines(output, add).await;
    })
}
