//! Workers by hand, on the machine that they are for: starts worker processes for a job elsewhere,
//! starts again what dies, and ends with the job.
//!
//! ```text
//! wait for the job ──► start ──► ended with success: the job needs it no more ──► done
//!   ▲      │ patience is over      │ refused for good ──► the end of all
//!   │      ▼ nobody there          │ anything else
//!   └──────────── pause ◄──────────┘
//! ```

mod job_locator;

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rollway_protocol::env;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

pub use self::job_locator::JobLocator;
use crate::workers::cluster::JoinInfo;

/// The exit status of a worker that will never be taken in.
const REFUSED: i32 = 2;

/// How long a process has to say goodbye.
const STOP_TIMEOUT: Duration = Duration::from_secs(8);

/// The pauses before a process is started again: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// A process that has lived as long was well.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);

/// The marks of a process have room for this many runners, whatever their numbers.
const MARKS: usize = 65_536;

/// What is started, and for whom.
#[derive(Clone, Debug)]
pub struct SupervisorOptions {
    pub way: JobLocator,
    /// The program of a worker. It finds where to connect in its environment.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    pub processes: u32,
    pub runners: u32,
    /// How long a job that is not there is waited for.
    pub patience: Duration,
}

/// Why it ended before the job did.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SupervisorError {
    /// Nobody answers.
    #[error("{what}; waited {waited:?} for it")]
    NobodyThere {
        /// Where, and what the system says.
        what: String,
        waited: Duration,
    },
    /// The job does not take these workers in, now or later.
    #[error("the job at {address} does not take these workers in; see above why")]
    Refused { address: String },
    /// What was given cannot be used.
    #[error("{0}")]
    Input(String),
    /// The system refused.
    #[error("{0}")]
    Io(String),
}

impl SupervisorError {
    /// Tells whether what was given is at fault.
    pub const fn is_input(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Input(_))
    }
}

/// Says what happens, to people.
pub type StatusFn = Arc<dyn Fn(&str) + Send + Sync>;

/// Keeps workers until the job needs no more, or until `stop`: then they say goodbye.
///
/// # Errors
/// If the job is not there, does not come back, or does not take the workers in.
pub async fn run(
    options: SupervisorOptions,
    stop: CancellationToken,
    tell: StatusFn,
) -> Result<(), SupervisorError> {
    let folder = tempfile::Builder::new().prefix("rollway-").tempdir();
    let folder = folder.map_err(|error| SupervisorError::Io(error.to_string()))?;
    let station = Arc::new(Supervisor { options, folder, tell, stop: stop.child_token() });
    let mut slots = JoinSet::new();
    for slot in 0..station.options.processes {
        let station = Arc::clone(&station);
        slots.spawn(async move { station.keep(slot).await });
    }
    let mut ended = Ok(());
    while let Some(slot) = slots.join_next().await {
        let slot = slot.unwrap_or_else(|error| Err(SupervisorError::Io(error.to_string())));
        if let Err(error) = slot {
            // What one cannot do the others cannot either.
            station.stop.cancel();
            ended = ended.and(Err(error));
        }
    }
    ended
}

struct Supervisor {
    options: SupervisorOptions,
    /// Has a file for every process in which it marks what it executes.
    folder: TempDir,
    tell: StatusFn,
    stop: CancellationToken,
}

impl Supervisor {
    /// Keeps one process until the job needs no more.
    async fn keep(&self, slot: u32) -> Result<(), SupervisorError> {
        let mut pause = PAUSES.0;
        loop {
            let tell = |words: &str| {
                if slot == 0 {
                    (self.tell)(words);
                }
            };
            let invited = tokio::select! {
                () = self.stop.cancelled() => return Ok(()),
                invited = self.options.way.open(self.options.patience, &tell) => invited?,
            };
            let since = Instant::now();
            let status = self.execute(slot, &invited).await?;
            if self.stop.is_cancelled() || status.success() {
                (self.tell)(&format!("worker {slot} left"));
                return Ok(());
            }
            if status.code() == Some(REFUSED) {
                return Err(SupervisorError::Refused { address: invited.address });
            }
            if since.elapsed() >= HEALTHY_AFTER {
                pause = PAUSES.0;
            }
            (self.tell)(&format!("worker {slot} ended: {status}; starts again in {pause:?}"));
            tokio::select! {
                () = self.stop.cancelled() => return Ok(()),
                () = sleep(pause) => {}
            }
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Runs a process to its end, or has it say goodbye.
    async fn execute(&self, slot: u32, invited: &JoinInfo) -> Result<ExitStatus, SupervisorError> {
        let failed = |error: io::Error| SupervisorError::Io(error.to_string());
        let marks = self.folder.path().join(format!("marks-{slot}"));
        std::fs::write(&marks, vec![0; MARKS]).map_err(failed)?;
        let mut child = self.spawn(invited, &marks)?;
        let words = format!("worker {slot} starts, with {} runners", self.options.runners);
        (self.tell)(&words);
        tokio::select! {
            status = child.wait() => return status.map_err(failed),
            () = self.stop.cancelled() => {}
        }
        let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        if let Some(pid) = pid {
            // If it is gone already, it need not be told.
            let _ = kill_process(pid, Signal::TERM);
        }
        match timeout(STOP_TIMEOUT, child.wait()).await {
            Ok(status) => status.map_err(failed),
            Err(_) => {
                let _ = child.start_kill();
                child.wait().await.map_err(failed)
            }
        }
    }

    fn spawn(&self, invited: &JoinInfo, marks: &Path) -> Result<Child, SupervisorError> {
        let program = &self.options.program;
        Command::new(program)
            .args(&self.options.args)
            .env(env::ADDRESS, &invited.address)
            .env(env::SECRET, invited.secret.reveal())
            .env(env::RUNNERS, self.options.runners.to_string())
            .env(env::EXECUTION_MARKS, marks)
            .env_remove(env::TOKEN)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| {
                let program = program.display();
                SupervisorError::Input(format!("{program} could not be started: {error}"))
            })
    }
}
