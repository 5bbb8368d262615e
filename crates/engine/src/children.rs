//! Runners in child processes. A few runners share a process; what a run does to its process is
//! known, so that a process that dies is blamed on the run that killed it, and its neighbours are
//! started again elsewhere without a charge.
//!
//! ```text
//!  StartRunner ──► a seat in a host ──► hello with its token ──► welcome ──► Ready … Ended …
//!                    │ exits before its hello                │ exits, or its stream ends
//!                    ▼                                       ▼
//!               StartFailed                                Lost, after everything that it said
//! ```
//!
//! A runner that does not give up an attempt can only be stopped with its whole process; an idle
//! one leaves its seat.

mod definitions;
mod host;
mod launch;
mod listen;
mod marks;
mod process;
mod states;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollway_core::{Life, RunnerId};
use rollway_wire::server::{Options, Server};
use rollway_wire::{Address, Secret, env};
use tempfile::TempDir;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::definitions::Definitions;
use self::host::Host;
pub use self::launch::{Blame, Ended, Launched, Launcher, Ticket, Whereabouts};
use self::listen::Routes;
pub use self::process::Processes;
pub use self::states::RunnerStates;
use crate::workers::{Command, Reporter, Workers};

/// How workers are started.
#[derive(Clone, Debug)]
pub struct ChildOptions {
    /// The program. It finds where to connect in its environment (`rollway_wire::env`).
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables of its environment, on top of this process's own.
    pub env: Vec<(String, String)>,
    /// Where the engine listens for them; none: a Unix socket of its own.
    pub address: Option<Address>,
    /// How often a worker says that it is alive.
    pub heartbeat: Duration,
    /// How many runners share a process.
    pub runners_per_worker: u32,
}

impl ChildOptions {
    /// Returns options for a program without arguments, one process for every runner.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            address: None,
            heartbeat: Duration::from_secs(5),
            runners_per_worker: 1,
        }
    }
}

/// Runners in child processes.
#[derive(Debug)]
pub struct Children {
    shared: Arc<Shared>,
    /// The process that takes newcomers, by place: runners next to each other share one.
    hosts: HashMap<u32, Arc<Host>>,
    seats: HashMap<RunnerId, (Life, Arc<Host>)>,
    next_host: u64,
    _alive: DropGuard,
}

#[derive(Debug)]
struct Shared {
    options: ChildOptions,
    launcher: Arc<dyn Launcher>,
    address: Address,
    secret: Secret,
    routes: Mutex<Routes>,
    definitions: Mutex<Definitions>,
    states: RunnerStates,
    /// Has the socket.
    _folder: TempDir,
}

impl Shared {
    /// Returns what a process is started with.
    fn ticket(&self, number: u64, token: &str, whereabouts: Whereabouts) -> Ticket {
        let options = &self.options;
        let runners = options.runners_per_worker.max(1);
        let told = [
            (env::ADDRESS, self.address.to_string()),
            (env::SECRET, self.secret.reveal().to_owned()),
            (env::TOKEN, token.to_owned()),
            (env::RUNNERS, runners.to_string()),
        ];
        let told = told.map(|(name, value)| (name.to_owned(), value));
        Ticket {
            token: token.to_owned(),
            number,
            runners,
            program: options.program.clone(),
            args: options.args.clone(),
            env: options.env.iter().cloned().chain(told).collect(),
            whereabouts,
        }
    }
}

impl Children {
    /// Begins to listen for workers, which are to be child processes; none is started yet. Needs a
    /// tokio runtime.
    ///
    /// # Errors
    /// If there is no secret or no folder to be had, or nothing can be listened on.
    pub async fn new(options: ChildOptions) -> io::Result<Self> {
        Self::with_launcher(options, Arc::new(Processes::new()?)).await
    }

    /// As [`new`](Self::new), with processes from elsewhere. For those on other machines the options
    /// have to name an address that they reach.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub async fn with_launcher(
        options: ChildOptions,
        launcher: Arc<dyn Launcher>,
    ) -> io::Result<Self> {
        let secret = Secret::random()?;
        let folder = tempfile::Builder::new().prefix("rollway-").tempdir()?;
        let socket = || Address::Unix(folder.path().join("workers"));
        let address = options.address.clone().unwrap_or_else(socket);
        let server = Server::bind(Options::new(address, secret.clone())).await;
        let server = server.map_err(io::Error::other)?;
        let alive = CancellationToken::new();
        let shared = Arc::new(Shared {
            options,
            launcher,
            address: server.address().clone(),
            secret,
            routes: Mutex::default(),
            definitions: Mutex::default(),
            states: RunnerStates::default(),
            _folder: folder,
        });
        tokio::spawn(listen::listen(server, Arc::clone(&shared), alive.clone()));
        let (hosts, seats) = (HashMap::new(), HashMap::new());
        Ok(Self { shared, hosts, seats, next_host: 0, _alive: alive.drop_guard() })
    }

    /// Returns what runners say about themselves.
    pub fn states(&self) -> RunnerStates {
        self.shared.states.clone()
    }

    /// Finds a seat for a runner: in the process of its neighbours, or in a new one.
    fn seat(&mut self, reporter: &Reporter) -> Arc<Host> {
        let place = reporter.runner().0 / self.shared.options.runners_per_worker.max(1);
        if let Some(host) = self.hosts.get(&place)
            && host.seat(&self.shared, reporter)
        {
            return Arc::clone(host);
        }
        let host = Arc::new(Host::new(self.next_host));
        self.next_host += 1;
        // Nobody can have closed it yet.
        let _ = host.seat(&self.shared, reporter);
        tokio::spawn(Arc::clone(&host).live(Arc::clone(&self.shared)));
        self.hosts.insert(place, Arc::clone(&host));
        host
    }
}

impl Workers for Children {
    fn states(&self) -> RunnerStates {
        self.shared.states.clone()
    }

    fn start(&mut self, reporter: Reporter) {
        let host = self.seat(&reporter);
        self.seats.insert(reporter.runner(), (reporter.life(), host));
    }

    fn tell(&mut self, runner: RunnerId, life: Life, command: Command) -> bool {
        if let Some((_, host)) = self.seats.get(&runner).filter(|(current, _)| *current == life)
            && let Some((reporter, failed)) = host.send(&self.shared, runner, life, command)
        {
            tokio::spawn(async move { reporter.say(failed).await });
        }
        // A process that does not listen is noticed by itself.
        true
    }

    fn stop(&mut self, runner: RunnerId, life: Life) {
        if self.seats.get(&runner).is_some_and(|(current, _)| *current == life)
            && let Some((_, host)) = self.seats.remove(&runner)
        {
            host.leave(runner, life);
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for (_, host) in self.seats.values() {
            host.end();
        }
    }
}

/// Locks what no panic can leave half-done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
