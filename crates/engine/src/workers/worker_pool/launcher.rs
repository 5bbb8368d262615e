//! Interface of launchers, which start worker processes and report their ends.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use futures_util::future::BoxFuture;
use tokio::sync::watch;

use super::variable_names;
use crate::runner_status::LaunchState;

/// Starts worker processes, here or elsewhere.
pub trait Launcher: fmt::Debug + Send + Sync + 'static {
    /// Begins to start a process whose hello has the spec's token. Does not block; called within a
    /// tokio runtime. Dropping the returned value kills the process or abandons its start.
    fn launch(&self, spec: LaunchSpec) -> Box<dyn LaunchedProcess>;
}

/// A process that is being started, or runs.
pub trait LaunchedProcess: Send {
    /// Waits until the process has ended or failed to start. Cancel-safe; not called again after it
    /// has returned.
    fn ended(&mut self) -> BoxFuture<'_, ProcessExit>;
}

/// Error of a cluster, with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {hint}")]
pub struct ClusterError {
    pub what: String,
    pub hint: String,
}

/// Start parameters of a worker process.
pub struct LaunchSpec {
    /// Random secret of this launch, part of the environment. Valid for one handshake.
    pub token: String,
    /// Unique number of the process within the job.
    pub number: u64,
    pub runners: u32,
    pub program: PathBuf,
    pub args: Vec<String>,
    /// Environment: address, secret, token, number of runners (`rollway_protocol::env`) and that of
    /// the options. A launcher that can read files of the process adds `env::EXECUTION_MARKS`.
    pub env: Vec<(String, String)>,
    /// Variables that the process does not inherit.
    pub removed_env: BTreeSet<String>,
    /// State of the process until its handshake, set by the launcher.
    pub status: LaunchStatus,
}

/// Without secrets.
impl fmt::Debug for LaunchSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, runners, program, env, .. } = self;
        f.debug_struct("LaunchSpec")
            .field("number", number)
            .field("runners", runners)
            .field("program", program)
            .field("env", &variable_names(env))
            .finish_non_exhaustive()
    }
}

/// End of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessExit {
    pub message: String,
    /// `false`: the process could not be started.
    pub started: bool,
    pub suspect: Suspect,
}

impl ProcessExit {
    /// Returns an end without a suspect.
    pub fn unattributed(message: impl Into<String>) -> Self {
        Self { message: message.into(), started: true, suspect: Suspect::None }
    }

    /// Returns the end of a process that could not be started.
    pub fn not_started(message: impl Into<String>) -> Self {
        Self { started: false, ..Self::unattributed(message) }
    }
}

/// Runners whose code may have ended a process. Repeatedly suspected tasks fail, so that failures
/// of machines and networks must not have a suspect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Suspect {
    /// Ended from outside, machine lost, or cause unknown.
    None,
    /// Ended by itself without execution marks: any of its attempts.
    AnyAttempt,
    /// Ended by itself while executing the runners with these indices (`env::EXECUTION_MARKS`).
    Executing(Vec<u32>),
}

/// Launch state of a process until its handshake. Cheap to clone; clones share state.
#[derive(Clone, Debug, Default)]
pub struct LaunchStatus(watch::Sender<LaunchState>);

impl LaunchStatus {
    /// Sets the external reason for which the process cannot be started yet. Start timeouts do not
    /// count until [`set_location`](Self::set_location).
    pub fn set_waiting(&self, reason: impl Into<String>) {
        let location = self.0.borrow().location.clone();
        self.set(LaunchState { location, waits: Some(reason.into()) });
    }

    /// Sets the location of the process: its machine, and its process id if known.
    pub fn set_location(&self, location: impl Into<String>) {
        self.set(LaunchState { location: Some(location.into()), waits: None });
    }

    fn set(&self, state: LaunchState) {
        self.0.send_if_modified(|current| {
            let is_changed = *current != state;
            *current = state;
            is_changed
        });
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<LaunchState> {
        self.0.subscribe()
    }
}
