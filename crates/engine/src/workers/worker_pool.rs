//! Runners in worker processes; a few runners share a process. When a process dies, execution marks
//! identify the suspect runs; the other runs are retried without being charged. An isolated runner,
//! which the core asks for to retry suspects, has a process of its own.
//!
//! ```text
//!  StartRunner ──► slot in a process ──► hello with its token ──► welcome ──► Ready … Ended …
//!                    │ exits before its hello                │ exits, or its stream ends
//!                    ▼                                       ▼
//!               StartFailed                                Lost, after all its reports
//! ```
//!
//! A runner that ignores a cancel is stopped with its whole process; an idle one leaves its slot.

mod definition_ids;
mod launcher;
mod local_process;
mod log_relay;
mod manual;
mod ray;
mod reports;
mod worker_process;

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rollway_base::address_file::AddressFile;
use rollway_base::listener::{ListenerKind, ListenerLimits};
use rollway_base::net::host_port;
use rollway_base::tls::TlsOptions;
use rollway_base::{Address, Secret};
use rollway_core::{Incarnation, RunnerId};
use rollway_protocol::env;
use rollway_protocol::worker_server::{WorkerServer, WorkerServerLimits, WorkerServerOptions};
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
use crate::process::raise_fd_limit;
use crate::run::RunnerReport;
use crate::runner_status::RunnerStatusTable;
use crate::workers::temporary_folder::TemporaryFolder;
use crate::workers::{Reporter, RunnerBackend, RunnerCommand};

#[derive(Clone)]
pub struct WorkerPoolOptions {
    /// Worker program; reads the connection from its environment (`rollway_protocol::env`).
    pub program: PathBuf,
    pub args: Vec<String>,
    /// Additional environment.
    pub env: Vec<(String, String)>,
    /// Variables that workers do not inherit from this process: secrets of the engine.
    pub removed_env: BTreeSet<String>,
    /// Address to bind. `None`: a private Unix socket.
    pub address: Option<Address>,
    /// Host name of the engine for workers, if it differs from the bound one.
    pub host: Option<String>,
    /// `None`: a new secret.
    pub secret: Option<Secret>,
    /// Encryption of the connections of workers.
    pub tls: TlsOptions,
    /// Limits of connections; of these the number and the timeout of the handshake.
    pub limits: ListenerLimits,
    /// Interval of probes of a silent connection, and time limit of their responses.
    pub keepalive: Duration,
    /// Heartbeat interval.
    pub heartbeat: Duration,
    pub runners_per_worker: u32,
    /// Maximum bytes of one message of a worker, such as the payload of a run. `None`: the
    /// default of the server.
    pub message_bytes: Option<usize>,
    /// Arguments that start the Ray launcher. `None`: those for an installed Python package.
    pub ray_launcher: Option<Vec<String>>,
}

impl WorkerPoolOptions {
    /// Returns options for a program without arguments, one runner per process.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            removed_env: BTreeSet::new(),
            address: None,
            host: None,
            secret: None,
            tls: TlsOptions::off(),
            limits: ListenerLimits::of(ListenerKind::Workers),
            keepalive: Duration::from_secs(10),
            heartbeat: Duration::from_secs(5),
            runners_per_worker: 1,
            message_bytes: None,
            ray_launcher: None,
        }
    }
}

/// Without the values of variables, which may be secrets.
impl fmt::Debug for WorkerPoolOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program, env, address, runners_per_worker, .. } = self;
        f.debug_struct("WorkerPoolOptions")
            .field("program", program)
            .field("env", &variable_names(env))
            .field("address", address)
            .field("runners_per_worker", runners_per_worker)
            .finish_non_exhaustive()
    }
}

/// Returns the names of variables without their values.
fn variable_names(env: &[(String, String)]) -> Vec<&str> {
    env.iter().map(|(name, _)| name.as_str()).collect()
}

#[derive(Debug)]
pub struct WorkerPool {
    shared: Arc<WorkerPoolShared>,
    /// Process for new runners, by runner number divided by `runners_per_worker`.
    processes: HashMap<u32, Arc<WorkerProcess>>,
    next_process: u64,
    /// Kept until the pool is dropped.
    address_file: Option<AddressFile>,
    _alive: DropGuard,
}

#[derive(Debug)]
enum WorkerSource {
    Launcher(Arc<dyn Launcher>),
    Manual(ManualWorkers),
}

#[derive(Debug)]
struct WorkerPoolShared {
    options: WorkerPoolOptions,
    source: WorkerSource,
    address: Address,
    secret: Secret,
    connections: Mutex<ConnectionTable>,
    assigned: Mutex<HashMap<RunnerId, (Incarnation, Arc<WorkerProcess>)>>,
    definitions: Mutex<DefinitionIds>,
    states: RunnerStatusTable,
    /// Reports from places that cannot wait, in order.
    reports: mpsc::UnboundedSender<(Reporter, RunnerReport)>,
    /// Contains the socket.
    _folder: TemporaryFolder,
}

impl WorkerPoolShared {
    /// Sends a report without waiting. Bounded: few per incarnation.
    fn report(&self, reporter: &Reporter, report: RunnerReport) {
        let _ = self.reports.send((reporter.clone(), report));
    }

    /// `None`: workers are started by a launcher.
    fn manual(&self) -> Option<&ManualWorkers> {
        match &self.source {
            WorkerSource::Manual(manual) => Some(manual),
            WorkerSource::Launcher(_) => None,
        }
    }

    fn assign(&self, reporter: &Reporter, process: &Arc<WorkerProcess>) {
        let entry = (reporter.incarnation(), Arc::clone(process));
        self.assigned.lock().insert(reporter.runner(), entry);
    }

    /// Returns the process of an incarnation.
    fn process_of(&self, runner: RunnerId, incarnation: Incarnation) -> Option<Arc<WorkerProcess>> {
        let assigned = self.assigned.lock();
        let (_, process) = assigned.get(&runner).filter(|(current, _)| *current == incarnation)?;
        Some(Arc::clone(process))
    }

    /// Removes an incarnation; returns its process.
    fn unassign(&self, runner: RunnerId, incarnation: Incarnation) -> Option<Arc<WorkerProcess>> {
        let process = self.process_of(runner, incarnation)?;
        self.assigned.lock().remove(&runner);
        Some(process)
    }

    /// Returns the start parameters of a process.
    fn launch_spec(
        &self,
        number: u64,
        token: &str,
        runners: u32,
        status: LaunchStatus,
    ) -> LaunchSpec {
        let options = &self.options;
        let worker_env = [
            (env::ADDRESS, self.address.to_string()),
            (env::SECRET, self.secret.reveal().to_owned()),
            (env::TOKEN, token.to_owned()),
            (env::RUNNERS, runners.to_string()),
        ];
        let worker_env = worker_env.map(|(name, value)| (name.to_owned(), value));
        LaunchSpec {
            token: token.to_owned(),
            number,
            runners,
            program: options.program.clone(),
            args: options.args.clone(),
            env: options.env.iter().cloned().chain(worker_env).collect(),
            removed_env: options.removed_env.clone(),
            status,
        }
    }
}

impl WorkerPool {
    /// Starts listening for workers as child processes; starts none. Needs a tokio runtime.
    ///
    /// # Errors
    /// If the address cannot be bound, or no secret or folder can be created.
    pub async fn new(options: WorkerPoolOptions) -> io::Result<Self> {
        Self::with_launcher(options, Arc::new(LocalLauncher::new()?)).await
    }

    /// Same as [`new`](Self::new), with another launcher. Workers on other machines need a TCP
    /// address in the options.
    pub async fn with_launcher(
        options: WorkerPoolOptions,
        launcher: Arc<dyn Launcher>,
    ) -> io::Result<Self> {
        Self::listen(options, WorkerSource::Launcher(launcher)).await
    }

    /// Same as [`new`](Self::new), for manual workers.
    pub async fn manual(options: WorkerPoolOptions) -> io::Result<Self> {
        Self::listen(options, WorkerSource::Manual(ManualWorkers::default())).await
    }

    async fn listen(options: WorkerPoolOptions, source: WorkerSource) -> io::Result<Self> {
        let secret = match &options.secret {
            Some(secret) => secret.clone(),
            None => Secret::random()?,
        };
        raise_fd_limit();
        let folder = TemporaryFolder::create()?;
        let socket = || Address::Unix(folder.path().join("workers"));
        let address = options.address.clone().unwrap_or_else(socket);
        let default = WorkerServerLimits::default();
        let message_bytes = options.message_bytes.unwrap_or(default.message_bytes);
        let limits = WorkerServerLimits {
            keepalive: options.keepalive,
            connections: options.limits.connections,
            hello_timeout: options.limits.header_timeout,
            message_bytes,
            event_bytes: default.event_bytes.max(message_bytes),
            ..default
        };
        let tls = options.tls.clone();
        let server_options = WorkerServerOptions::new(address, secret.clone());
        let listening = WorkerServerOptions { limits, tls, ..server_options };
        let server = WorkerServer::bind(listening).await.map_err(io::Error::other)?;
        let alive = CancellationToken::new();
        let (reports, mut report) = mpsc::unbounded_channel::<(Reporter, RunnerReport)>();
        tokio::spawn(async move {
            while let Some((reporter, report)) = report.recv().await {
                reporter.send(vec![report]).await;
            }
        });
        let shared = Arc::new(WorkerPoolShared {
            address: with_host(server.address(), options.host.as_deref()),
            options,
            source,
            secret,
            connections: Mutex::default(),
            assigned: Mutex::default(),
            definitions: Mutex::default(),
            states: RunnerStatusTable::default(),
            reports,
            _folder: folder,
        });
        tokio::spawn(reports::listen(server, Arc::clone(&shared), alive.clone()));
        Ok(Self {
            shared,
            processes: HashMap::new(),
            next_process: 0,
            address_file: None,
            _alive: alive.drop_guard(),
        })
    }

    pub(crate) fn keep(&mut self, address_file: AddressFile) {
        self.address_file = Some(address_file);
    }

    /// Returns the address for workers.
    pub fn address(&self) -> &Address {
        &self.shared.address
    }

    pub fn secret(&self) -> &Secret {
        &self.shared.secret
    }

    /// Adds a runner to the process of its neighbours, or to a new one; an isolated runner to one
    /// of its own.
    fn add_runner(&mut self, launcher: Arc<dyn Launcher>, reporter: &Reporter) {
        let worker_index = reporter.runner().0 / self.shared.options.runners_per_worker.max(1);
        if !reporter.isolated
            && let Some(process) = self.processes.get(&worker_index)
            && process.add(&self.shared, reporter)
        {
            return self.shared.assign(reporter, process);
        }
        let new = if reporter.isolated { WorkerProcess::isolated } else { WorkerProcess::new };
        let process = Arc::new(new(self.next_process));
        self.next_process += 1;
        // A new process accepts its first runner.
        let _ = process.add(&self.shared, reporter);
        let (running, shared) = (Arc::clone(&process), Arc::clone(&self.shared));
        tokio::spawn(async move {
            let ends = Arc::clone(&running).launched(&shared, &*launcher);
            running.supervise(&shared, ends).await;
        });
        self.shared.assign(reporter, &process);
        if !reporter.isolated {
            self.processes.insert(worker_index, process);
        }
    }
}

impl RunnerBackend for WorkerPool {
    fn states(&self) -> RunnerStatusTable {
        self.shared.states.clone()
    }

    fn start(&mut self, reporter: Reporter) {
        match &self.shared.source {
            WorkerSource::Manual(manual) => manual.add(&self.shared, reporter),
            WorkerSource::Launcher(launcher) => self.add_runner(Arc::clone(launcher), &reporter),
        }
    }

    fn send(&mut self, runner: RunnerId, incarnation: Incarnation, command: RunnerCommand) -> bool {
        if let Some(process) = self.shared.process_of(runner, incarnation)
            && let Some((reporter, failed)) =
                process.send(&self.shared, runner, incarnation, command)
        {
            tokio::spawn(async move { reporter.send(failed).await });
        }
        // The end of a dead process is reported separately.
        true
    }

    fn stop(&mut self, runner: RunnerId, incarnation: Incarnation) {
        if let Some(manual) = self.shared.manual() {
            manual.leave(&self.shared, runner, incarnation);
        } else if let Some(process) = self.shared.unassign(runner, incarnation) {
            process.remove_runner(runner, incarnation);
        }
    }

    fn shut_down_workers(&mut self) -> Option<BoxFuture<'static, ()>> {
        self.shared.manual().map(ManualWorkers::shut_down)
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        // Manual workers are shut down by `reports::listen`.
        if self.shared.manual().is_none() {
            for (_, process) in self.shared.assigned.lock().values() {
                process.end();
            }
        }
    }
}

/// Returns an address with the host name for other machines.
fn with_host(address: &Address, host: Option<&str>) -> Address {
    let (Some(bound), Some(host)) = (address.host_port(), host) else { return address.clone() };
    let port = bound.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    address.at(host_port(host, port.unwrap_or(0)))
}
