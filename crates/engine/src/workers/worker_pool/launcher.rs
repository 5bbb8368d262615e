//! The door behind which worker processes come from: what a launcher is told, and what it has to
//! say about the process that it starts.

use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;

use tokio::sync::watch;

use crate::runner_status::LaunchState;

/// Starts worker processes, here or elsewhere.
pub trait Launcher: fmt::Debug + Send + Sync + 'static {
    /// Begins to start a process that says hello with the ticket's token. Returns at once; is
    /// called within a tokio runtime. Dropping what is returned ends the process by force, or gives
    /// its start up.
    fn launch(&self, ticket: LaunchSpec) -> Box<dyn LaunchedProcess>;
}

/// A process that is being started, or runs.
pub trait LaunchedProcess: Send {
    /// Waits until the process is no more, also if it could not be started. May be given up and
    /// called again; after it has returned it is not called any more.
    fn ended(&mut self) -> Pin<Box<dyn Future<Output = ProcessExit> + Send + '_>>;
}

/// Why there is no place for workers: what, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {hint}")]
pub struct ClusterError {
    /// What is the matter.
    pub what: String,
    /// What can be done about it.
    pub hint: String,
}

/// What a process is started with.
#[derive(Debug)]
pub struct LaunchSpec {
    /// What it says hello with.
    pub token: String,
    /// Its number: no two processes of a job have the same.
    pub number: u64,
    /// How many runners it offers.
    pub runners: u32,
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// What is to be in its environment: address, secret, token, number of runners, and what the
    /// options add (`rollway_protocol::env`). A launcher on a machine where it can read a file
    /// later that the process has written adds `env::EXECUTION_MARKS`.
    pub env: Vec<(String, String)>,
    /// Where the launcher tells what it knows while the process has not said hello.
    pub whereabouts: LaunchStatus,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessExit {
    /// In words, for people.
    pub message: String,
    /// Whether there was a process at all.
    pub started: bool,
    /// Whose code may have ended it.
    pub blame: Suspect,
}

impl ProcessExit {
    /// Returns an end that no task is suspected of.
    pub fn unattributed(message: impl Into<String>) -> Self {
        Self { message: message.into(), started: true, blame: Suspect::None }
    }

    /// Returns the end of a process that could not be started.
    pub fn not_started(message: impl Into<String>) -> Self {
        Self { started: false, ..Self::unattributed(message) }
    }
}

/// Whose code may have ended a process. A task that is suspected again and again is failed, so
/// nobody is blamed for what happened to a machine or a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspect {
    /// Nobody's: its machine is gone, it was ended from outside, or nobody can tell.
    None,
    /// It ended by itself, and nothing tells whose code it executed: the attempt in it, if there
    /// was only one.
    SoleAttempt,
    /// It ended by itself, executing code for the runner at this place (`env::EXECUTION_MARKS`).
    RunnerIndex(u32),
}

/// What is known of a process that has not said hello. Clones are the same.
#[derive(Clone, Debug)]
pub struct LaunchStatus(watch::Sender<LaunchState>);

impl LaunchStatus {
    /// Returns whereabouts of which nothing is known.
    pub fn new() -> Self {
        Self(watch::Sender::new(LaunchState::default()))
    }

    /// The process cannot be started yet, for a reason that lies outside: no machine has room for
    /// it, nobody has come. Until [`set_location`](Self::set_location) no time is counted against
    /// its runners.
    pub fn set_waiting(&self, why: impl Into<String>) {
        let why = Some(why.into());
        self.0.send_if_modified(|known| {
            let news = known.waits != why;
            known.waits = why;
            news
        });
    }

    /// The process is being started at a place: a machine, and a process id if it has one.
    pub fn set_location(&self, place: impl Into<String>) {
        let known = LaunchState { place: Some(place.into()), waits: None };
        self.0.send_if_modified(|current| {
            let news = *current != known;
            *current = known;
            news
        });
    }

    pub(super) fn watch(&self) -> watch::Receiver<LaunchState> {
        self.0.subscribe()
    }
}

impl Default for LaunchStatus {
    fn default() -> Self {
        Self::new()
    }
}
