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
//! A runner that does not give up an attempt can only be stopped with its whole process; one that
//! is idle, or has not begun, leaves its seat.

mod definition_ids;
mod execution_marks;
mod launcher;
mod local_process;
mod log_relay;
mod manual;
mod ray;
mod reports;
mod worker_process;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rollway_base::address_file::AddressFile;
use rollway_base::net::host_port;
use rollway_base::{Address, Secret};
use rollway_core::{Incarnation, RunnerId};
use rollway_protocol::env;
use rollway_protocol::worker_server::{WorkerServer, WorkerServerLimits, WorkerServerOptions};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::definition_ids::DefinitionIds;
pub use self::launcher::{
    ClusterError, LaunchSpec, LaunchStatus, LaunchedProcess, Launcher, ProcessExit, Suspect,
};
pub use self::local_process::LocalLauncher;
use self::manual::ManualWorkers;
pub use self::ray::{RayLauncher, RayLauncherOptions};
use self::reports::ConnectionTable;
use self::worker_process::WorkerProcess;
use crate::process::fd_limit;
use crate::run::RunnerReport;
use crate::runner_status::RunnerStatusTable;
use crate::workers::{Reporter, RunnerBackend, RunnerCommand};

/// How many workers may be connected.
const CONNECTIONS: usize = 16_384;

/// How workers are started.
#[derive(Clone, Debug)]
pub struct WorkerPoolOptions {
    /// The program. It finds where to connect in its environment (`rollway_protocol::env`).
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables of its environment, on top of this process's own.
    pub env: Vec<(String, String)>,
    /// Where the engine listens for them; none: a Unix socket of its own.
    pub address: Option<Address>,
    /// What they call the machine of the engine, if that is not what it listens on.
    pub host: Option<String>,
    /// What they have to know; none: a new secret.
    pub secret: Option<Secret>,
    /// How often a silent connection is probed; one that does not answer in the same time again is
    /// taken for lost.
    pub keepalive: Duration,
    /// How often a worker says that it is alive.
    pub heartbeat: Duration,
    /// How many runners share a process.
    pub runners_per_worker: u32,
    /// The arguments with which the program places workers on Ray; none: those of a Python that has
    /// the package installed.
    pub placer: Option<Vec<String>>,
}

impl WorkerPoolOptions {
    /// Returns options for a program without arguments, one process for every runner.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            address: None,
            host: None,
            secret: None,
            keepalive: Duration::from_secs(10),
            heartbeat: Duration::from_secs(5),
            runners_per_worker: 1,
            placer: None,
        }
    }
}

/// Runners in child processes.
#[derive(Debug)]
pub struct WorkerPool {
    shared: Arc<WorkerPoolShared>,
    /// The process that takes newcomers, by place: runners next to each other share one.
    hosts: HashMap<u32, Arc<WorkerProcess>>,
    next_host: u64,
    /// Tells workers the way for as long as this lives.
    card: Option<AddressFile>,
    _alive: DropGuard,
}

/// Where workers come from.
#[derive(Debug)]
enum WorkerSource {
    /// They are started, here or elsewhere.
    Launcher(Arc<dyn Launcher>),
    /// They come by themselves.
    ByHand(ManualWorkers),
}

#[derive(Debug)]
struct WorkerPoolShared {
    options: WorkerPoolOptions,
    source: WorkerSource,
    address: Address,
    secret: Secret,
    routes: Mutex<ConnectionTable>,
    seats: Mutex<HashMap<RunnerId, (Incarnation, Arc<WorkerProcess>)>>,
    definitions: Mutex<DefinitionIds>,
    states: RunnerStatusTable,
    /// What is said of runners by whoever cannot wait until it is heard, in order.
    asides: mpsc::UnboundedSender<(Reporter, RunnerReport)>,
    /// Has the socket.
    _folder: TempDir,
}

impl WorkerPoolShared {
    /// Says something of a runner, without waiting. Every life has a few of these at most.
    fn aside(&self, reporter: &Reporter, said: RunnerReport) {
        let _ = self.asides.send((reporter.clone(), said));
    }

    /// Returns who waits for workers that nobody here starts; none: all are started here.
    fn by_hand(&self) -> Option<&ManualWorkers> {
        match &self.source {
            WorkerSource::ByHand(by_hand) => Some(by_hand),
            WorkerSource::Launcher(_) => None,
        }
    }

    fn take_seat(&self, reporter: &Reporter, host: &Arc<WorkerProcess>) {
        let seat = (reporter.incarnation(), Arc::clone(host));
        self.seats.lock().insert(reporter.runner(), seat);
    }

    /// Returns where a life of a runner is.
    fn seat_of(&self, runner: RunnerId, life: Incarnation) -> Option<Arc<WorkerProcess>> {
        let seats = self.seats.lock();
        let (_, host) = seats.get(&runner).filter(|(current, _)| *current == life)?;
        Some(Arc::clone(host))
    }

    /// Takes the seat of a life of a runner away; returns where it was.
    fn leave_seat(&self, runner: RunnerId, life: Incarnation) -> Option<Arc<WorkerProcess>> {
        let host = self.seat_of(runner, life)?;
        self.seats.lock().remove(&runner);
        Some(host)
    }

    /// Returns what a process is started with.
    fn ticket(&self, number: u64, token: &str, whereabouts: LaunchStatus) -> LaunchSpec {
        let options = &self.options;
        let runners = options.runners_per_worker.max(1);
        let told = [
            (env::ADDRESS, self.address.to_string()),
            (env::SECRET, self.secret.reveal().to_owned()),
            (env::TOKEN, token.to_owned()),
            (env::RUNNERS, runners.to_string()),
        ];
        let told = told.map(|(name, value)| (name.to_owned(), value));
        LaunchSpec {
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

impl WorkerPool {
    /// Begins to listen for workers, which are to be child processes; none is started yet. Needs a
    /// tokio runtime.
    ///
    /// # Errors
    /// If there is no secret or no folder to be had, or nothing can be listened on.
    pub async fn new(options: WorkerPoolOptions) -> io::Result<Self> {
        Self::with_launcher(options, Arc::new(LocalLauncher::new()?)).await
    }

    /// As [`new`](Self::new), with processes from elsewhere. For those on other machines the
    /// options have to name an address that they reach.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub async fn with_launcher(
        options: WorkerPoolOptions,
        launcher: Arc<dyn Launcher>,
    ) -> io::Result<Self> {
        Self::listen(options, WorkerSource::Launcher(launcher)).await
    }

    /// As [`new`](Self::new), but nobody is started: workers that know the secret come by
    /// themselves and take the runners that wait for one.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub async fn by_hand(options: WorkerPoolOptions) -> io::Result<Self> {
        Self::listen(options, WorkerSource::ByHand(ManualWorkers::default())).await
    }

    async fn listen(options: WorkerPoolOptions, source: WorkerSource) -> io::Result<Self> {
        let secret = match &options.secret {
            Some(secret) => secret.clone(),
            None => Secret::random()?,
        };
        fd_limit::raise();
        let folder = tempfile::Builder::new().prefix("rollway-").tempdir()?;
        let socket = || Address::Unix(folder.path().join("workers"));
        let address = options.address.clone().unwrap_or_else(socket);
        let limits = WorkerServerLimits {
            keepalive: options.keepalive,
            connections: CONNECTIONS,
            ..WorkerServerLimits::default()
        };
        let listening =
            WorkerServerOptions { limits, ..WorkerServerOptions::new(address, secret.clone()) };
        let server = WorkerServer::bind(listening).await.map_err(io::Error::other)?;
        let alive = CancellationToken::new();
        let (asides, mut said) = mpsc::unbounded_channel::<(Reporter, RunnerReport)>();
        tokio::spawn(async move {
            while let Some((reporter, said)) = said.recv().await {
                reporter.send(vec![said]).await;
            }
        });
        let shared = Arc::new(WorkerPoolShared {
            address: reached(server.address(), options.host.as_deref()),
            options,
            source,
            secret,
            routes: Mutex::default(),
            seats: Mutex::default(),
            definitions: Mutex::default(),
            states: RunnerStatusTable::default(),
            asides,
            _folder: folder,
        });
        tokio::spawn(reports::listen(server, Arc::clone(&shared), alive.clone()));
        Ok(Self {
            shared,
            hosts: HashMap::new(),
            next_host: 0,
            card: None,
            _alive: alive.drop_guard(),
        })
    }

    /// Keeps what tells workers the way.
    pub(crate) fn keep(&mut self, card: AddressFile) {
        self.card = Some(card);
    }

    /// Returns where workers reach the engine.
    pub fn address(&self) -> &Address {
        &self.shared.address
    }

    /// Returns what workers have to know.
    pub fn load_or_create_secret(&self) -> &Secret {
        &self.shared.secret
    }

    /// Returns what runners say about themselves.
    pub fn states(&self) -> RunnerStatusTable {
        self.shared.states.clone()
    }

    /// Finds a seat for a runner: in the process of its neighbours, or in a new one.
    fn seat(&mut self, launcher: Arc<dyn Launcher>, reporter: &Reporter) {
        let place = reporter.runner().0 / self.shared.options.runners_per_worker.max(1);
        if let Some(host) = self.hosts.get(&place)
            && host.seat(&self.shared, reporter)
        {
            return self.shared.take_seat(reporter, host);
        }
        let host = Arc::new(WorkerProcess::new(self.next_host));
        self.next_host += 1;
        // Nobody can have closed it yet.
        let _ = host.seat(&self.shared, reporter);
        let (lived, shared) = (Arc::clone(&host), Arc::clone(&self.shared));
        tokio::spawn(async move {
            let ends = Arc::clone(&lived).launched(&shared, &*launcher);
            lived.live(&shared, ends).await;
        });
        self.shared.take_seat(reporter, &host);
        self.hosts.insert(place, host);
    }
}

impl RunnerBackend for WorkerPool {
    fn states(&self) -> RunnerStatusTable {
        self.shared.states.clone()
    }

    fn start(&mut self, reporter: Reporter) {
        match &self.shared.source {
            WorkerSource::ByHand(by_hand) => by_hand.seat(&self.shared, reporter),
            WorkerSource::Launcher(launcher) => self.seat(Arc::clone(launcher), &reporter),
        }
    }

    fn send(&mut self, runner: RunnerId, life: Incarnation, command: RunnerCommand) -> bool {
        if let Some(host) = self.shared.seat_of(runner, life)
            && let Some((reporter, failed)) = host.send(&self.shared, runner, life, command)
        {
            tokio::spawn(async move { reporter.send(failed).await });
        }
        // A process that does not listen is noticed by itself.
        true
    }

    fn stop(&mut self, runner: RunnerId, life: Incarnation) {
        if let Some(by_hand) = self.shared.by_hand() {
            by_hand.leave(&self.shared, runner, life);
        } else if let Some(host) = self.shared.leave_seat(runner, life) {
            host.leave(runner, life);
        }
    }

    fn shut_down_workers(&mut self) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        self.shared.by_hand().map(ManualWorkers::dismiss)
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        // Those that came by themselves are told to go, by whoever listens to them.
        if self.shared.by_hand().is_none() {
            for (_, host) in self.shared.seats.lock().values() {
                host.end();
            }
        }
    }
}

/// Returns an address with the name that others have for this machine.
fn reached(address: &Address, host: Option<&str>) -> Address {
    match (address, host) {
        (Address::Tcp(at), Some(host)) => {
            let port = at.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
            Address::Tcp(host_port(host, port.unwrap_or(0)))
        }
        _ => address.clone(),
    }
}
