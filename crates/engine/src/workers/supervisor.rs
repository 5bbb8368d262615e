//! Keeps the manual workers of one machine running: starts worker processes for a job, restarts
//! failed ones and ends with the job.
//!
//! ```text
//! wait for the job ──► start ──► exit with success: the job has ended ──► done
//!   ▲      │ timeout               │ refused permanently ──► error
//!   │      ▼ error                 │ other exits
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
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

pub use self::job_locator::JobLocator;
use crate::process::{ProcessGroup, ProcessTree};
use crate::workers::cluster::JoinInfo;
use crate::workers::temporary_folder::TemporaryFolder;

/// Exit status of a worker that was refused permanently.
const REFUSED: i32 = 2;

/// Time for a process to disconnect before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(8);

/// First and longest pause before a restart.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Lifetime after which the pause is reset.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);

/// Size of the execution marks file: enough for all runner numbers.
const MARKS: usize = 65_536;

#[derive(Clone, Debug)]
pub struct SupervisorOptions {
    pub locator: JobLocator,
    /// Worker program; reads the connection from its environment.
    pub program: PathBuf,
    pub args: Vec<String>,
    pub processes: u32,
    pub runners: u32,
    /// Maximum wait for the job to become reachable.
    pub connect_timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SupervisorError {
    #[error("{what}; waited {waited:?} for it")]
    Unreachable {
        /// Address and cause.
        what: String,
        waited: Duration,
    },
    /// The job refused these workers permanently.
    #[error("the job at {address} refuses these workers; the reason is in the log above")]
    Refused { address: String },
    #[error("{0}")]
    Input(String),
    #[error("{0}")]
    Io(String),
}

impl SupervisorError {
    /// Tells whether the arguments are at fault.
    pub const fn is_input(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Input(_))
    }
}

/// Callback for status messages.
pub type StatusFn = Arc<dyn Fn(&str) + Send + Sync>;

/// Keeps workers running until the job has ended, or until `stop`.
///
/// # Errors
/// If the job is not reachable or refuses the workers.
pub async fn run(
    options: SupervisorOptions,
    stop: CancellationToken,
    report_status: StatusFn,
) -> Result<(), SupervisorError> {
    let folder = TemporaryFolder::create();
    let folder = folder.map_err(|error| SupervisorError::Io(error.to_string()))?;
    let tree = ProcessTree::new(STOP_TIMEOUT, None);
    let tree = tree.map_err(|error| SupervisorError::Io(error.to_string()))?;
    let supervisor = Supervisor { options, folder, tree, report_status, stop: stop.child_token() };
    let supervisor = Arc::new(supervisor);
    let mut slots = JoinSet::new();
    for slot in 0..supervisor.options.processes {
        let supervisor = Arc::clone(&supervisor);
        slots.spawn(async move { supervisor.keep_running(slot).await });
    }
    let mut ended = Ok(());
    while let Some(slot) = slots.join_next().await {
        let slot = slot.unwrap_or_else(|error| Err(SupervisorError::Io(error.to_string())));
        if let Err(error) = slot {
            // The others would fail as well.
            supervisor.stop.cancel();
            ended = ended.and(Err(error));
        }
    }
    ended
}

struct Supervisor {
    options: SupervisorOptions,
    /// Contains the execution marks of every process.
    folder: TemporaryFolder,
    tree: Arc<ProcessTree>,
    report_status: StatusFn,
    stop: CancellationToken,
}

impl Supervisor {
    /// Keeps one process running until the job has ended.
    async fn keep_running(&self, slot: u32) -> Result<(), SupervisorError> {
        let mut pause = PAUSES.0;
        loop {
            let report_status = |message: &str| {
                if slot == 0 {
                    (self.report_status)(message);
                }
            };
            let SupervisorOptions { locator, connect_timeout, .. } = &self.options;
            let join_info = tokio::select! {
                () = self.stop.cancelled() => return Ok(()),
                opened = locator.open(*connect_timeout, &report_status) => opened?,
            };
            let since = Instant::now();
            let status = self.execute(slot, &join_info).await?;
            if self.stop.is_cancelled() || status.success() {
                (self.report_status)(&format!("worker {slot} ended normally"));
                return Ok(());
            }
            if status.code() == Some(REFUSED) {
                return Err(SupervisorError::Refused { address: join_info.address.to_string() });
            }
            if since.elapsed() >= HEALTHY_AFTER {
                pause = PAUSES.0;
            }
            (self.report_status)(&format!(
                "worker {slot} ended: {status}; starts again in {pause:?}"
            ));
            tokio::select! {
                () = self.stop.cancelled() => return Ok(()),
                () = sleep(pause) => {}
            }
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Runs a process to its end; on `stop`, terminates it.
    async fn execute(
        &self,
        slot: u32,
        join_info: &JoinInfo,
    ) -> Result<ExitStatus, SupervisorError> {
        let failed = |error: io::Error| SupervisorError::Io(error.to_string());
        let marks = self.folder.path().join(format!("marks-{slot}"));
        std::fs::write(&marks, vec![0; MARKS]).map_err(failed)?;
        let (mut child, _group) = self.spawn(join_info, &marks)?;
        let message = format!("worker {slot} starts, with {} runners", self.options.runners);
        (self.report_status)(&message);
        tokio::select! {
            status = child.wait() => return status.map_err(failed),
            () = self.stop.cancelled() => {}
        }
        let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        if let Some(pid) = pid {
            // Fails only if it has ended already.
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

    fn spawn(
        &self,
        join_info: &JoinInfo,
        marks: &Path,
    ) -> Result<(Child, ProcessGroup), SupervisorError> {
        let program = &self.options.program;
        let mut command = Command::new(program);
        command
            .args(&self.options.args)
            .env(env::ADDRESS, join_info.address.to_string())
            .env(env::SECRET, join_info.secret.reveal())
            .env(env::RUNNERS, self.options.runners.to_string())
            .env(env::EXECUTION_MARKS, marks)
            .env_remove(env::TOKEN)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        self.tree.spawn(&mut command).map_err(|error| {
            let program = program.display();
            SupervisorError::Input(format!("{program} could not be started: {error}"))
        })
    }
}
