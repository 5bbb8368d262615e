//! Workers as Ray actors. Ray is known to one process alone, the placer, which is in Python: it
//! joins the cluster, has workers placed and tells what becomes of them (`rollway.ray.launcher`
//! has the words of both sides). Workers then say hello here like all others.
//!
//! ```text
//! launch ──► start ──► the placer ──► Ray ──► a worker somewhere ──► hello, straight to the engine
//!   ▲                     │ waits, placed, ended: to whoever launched it
//!   └── the engine orders replacements; Ray starts nothing again by itself
//! ```
//!
//! A placer that dies takes its workers along, which Ray ends with their owner, and is started
//! again; it ends itself when its orders end, so that nothing outlives the engine.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rollway_config::{ClusterConfig, Config, Placement};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::WorkerPoolOptions;
use super::launcher::{
    ClusterError, LaunchSpec, LaunchStatus, LaunchedProcess, Launcher, ProcessExit, Suspect,
};
use crate::process::lines;
use crate::process::python;

/// How long is waited before a placer is started again: at first, and at most.
const RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);

/// A placer that has lasted so long was a good one.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);

/// How many machines that came or went are named at once.
const NODES_TOLD: usize = 8;

/// How workers are placed.
#[derive(Clone, Debug)]
pub struct RayLauncherOptions {
    /// The Python that has Ray.
    pub program: PathBuf,
    /// Arguments with which it is a placer.
    pub args: Vec<String>,
    pub cluster: ClusterConfig,
    /// Ray's namespace.
    pub namespace: String,
    /// Variables that are there before anything else is in a worker's process.
    pub variables: BTreeMap<String, String>,
    /// How long joining the cluster may take.
    pub patience: Duration,
}

impl RayLauncherOptions {
    /// Runs the launcher.
    const PLACER: &'static str = "from rollway.ray.launcher import main; main()";

    /// Returns options for the workers of a configuration.
    pub fn new(config: &Config, workers: &WorkerPoolOptions) -> Self {
        let cluster = config.cluster.clone();
        let job = || format!("{}/{}", config.project, config.name);
        let usual = || python::arguments(Self::PLACER);
        Self {
            program: workers.program.clone(),
            args: workers.placer.clone().unwrap_or_else(usual),
            namespace: cluster.namespace.clone().unwrap_or_else(job),
            cluster,
            variables: config.explorer.env_vars.clone(),
            patience: config.explorer.supervision.start_timeout.into(),
        }
    }

    /// Returns the first order.
    fn open(&self) -> Value {
        let mut environment = self.cluster.runtime_env.clone();
        let named = environment.remove("env_vars");
        let named = named.as_ref().and_then(Value::as_object).cloned().unwrap_or_default();
        // Where modules are found is for each machine to say; a worker looks in these folders last.
        let ours = self.variables.iter().filter(|(name, _)| *name != "PYTHONPATH");
        let variables = ours.map(|(name, value)| (name.clone(), json!(value)));
        let variables: serde_json::Map<_, _> = variables.chain(named).collect();
        if !variables.is_empty() {
            environment.insert("env_vars".to_owned(), variables.into());
        }
        json!({
            "order": "open",
            "address": self.cluster.address,
            "namespace": self.namespace,
            "runtime_env": environment,
            "version": env!("CARGO_PKG_VERSION"),
        })
    }

    /// Returns the order for a worker.
    fn start(&self, ticket: LaunchSpec) -> Value {
        let cluster = &self.cluster;
        let mut resources = cluster.resources_per_worker.clone();
        resources.insert("CPU".to_owned(), cluster.cpus_per_worker);
        resources.insert("GPU".to_owned(), cluster.gpus_per_worker);
        let placement = match cluster.placement {
            Placement::Spread => "spread",
            Placement::Pack => "pack",
        };
        json!({
            "order": "start",
            "id": ticket.number,
            "env": ticket.env.into_iter().collect::<BTreeMap<_, _>>(),
            "resources": resources,
            "placement": placement,
        })
    }
}

/// Places workers on a Ray cluster. Dropping it ends them all.
#[derive(Debug)]
pub struct RayLauncher {
    shared: Arc<RayShared>,
    _alive: DropGuard,
}

#[derive(Debug)]
struct RayShared {
    options: RayLauncherOptions,
    desk: Mutex<RayLauncherState>,
}

/// Who is to be placed, and how the placer is told.
#[derive(Debug)]
struct RayLauncherState {
    /// Why there is no placer at the moment, or its orders.
    placer: Result<mpsc::UnboundedSender<Value>, String>,
    workers: HashMap<u64, Worker>,
    /// What was last said about workers that wait; none: nobody has since.
    said: Option<String>,
}

#[derive(Debug)]
struct Worker {
    whereabouts: LaunchStatus,
    ended: oneshot::Sender<ProcessExit>,
    /// What the placer is told; none: it was.
    order: Option<Value>,
    is_placed: bool,
}

/// What the placer says.
#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum RayEvent {
    Opened { ip: String, nodes: u64 },
    Failed { what: String, hint: String },
    Waits { id: u64, why: String },
    Placed { id: u64, ip: String, pid: u32 },
    Ended { id: u64, how: String, blame: RayFault },
    Nodes { nodes: u64, said: Vec<String> },
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RayFault {
    Nobody,
    Worker,
}

impl RayLauncher {
    /// Starts a placer and waits until it has joined the cluster. Needs a tokio runtime.
    ///
    /// # Errors
    /// If there is no such cluster, no Ray or no Python.
    pub async fn open(options: RayLauncherOptions) -> Result<Self, ClusterError> {
        let down = Err("the cluster is being joined".to_owned());
        let desk = RayLauncherState { placer: down, workers: HashMap::new(), said: None };
        let shared = Arc::new(RayShared { options, desk: Mutex::new(desk) });
        let alive = CancellationToken::new();
        let (opened, opening) = oneshot::channel();
        tokio::spawn(keep(Arc::clone(&shared), alive.clone(), opened));
        let alive = alive.drop_guard();
        match timeout(shared.options.patience, opening).await {
            Ok(Ok(Ok(()))) => Ok(Self { shared, _alive: alive }),
            Ok(Ok(Err(error))) => Err(error),
            Ok(Err(_)) => Err(unexpected("the placer was given up")),
            Err(_) => {
                let seconds = shared.options.patience.as_secs_f64();
                Err(ClusterError {
                    what: format!("the Ray cluster was not joined within {seconds} s"),
                    hint: "see that cluster.address is right and in reach, or give it more time \
                           with explorer.supervision.start_timeout"
                        .to_owned(),
                })
            }
        }
    }
}

impl Launcher for RayLauncher {
    fn launch(&self, ticket: LaunchSpec) -> Box<dyn LaunchedProcess> {
        let number = ticket.number;
        let (ended, receiver) = oneshot::channel();
        let whereabouts = ticket.whereabouts.clone();
        let order = Some(self.shared.options.start(ticket));
        let mut worker = Worker { whereabouts, ended, order, is_placed: false };
        let mut desk = self.shared.desk.lock();
        desk.tell(&mut worker);
        desk.workers.insert(number, worker);
        drop(desk);
        Box::new(RayWorker { shared: Arc::clone(&self.shared), number, ended: receiver })
    }
}

impl RayLauncherState {
    /// Tells the placer of a worker, or the worker why there is none.
    fn tell(&self, worker: &mut Worker) {
        match &self.placer {
            Ok(orders) => {
                // One that is gone is about to be noticed, and its workers with it.
                let _ = worker.order.take().map(|order| orders.send(order));
            }
            Err(why) => worker.whereabouts.set_waiting(why),
        }
    }
}

/// A worker that was asked for. Dropping it ends the worker.
struct RayWorker {
    shared: Arc<RayShared>,
    number: u64,
    ended: oneshot::Receiver<ProcessExit>,
}

impl LaunchedProcess for RayWorker {
    fn ended(&mut self) -> Pin<Box<dyn Future<Output = ProcessExit> + Send + '_>> {
        Box::pin(async {
            let ended = (&mut self.ended).await;
            ended.unwrap_or_else(|_| ProcessExit::unattributed("nobody knows what became of it"))
        })
    }
}

impl Drop for RayWorker {
    fn drop(&mut self) {
        let mut desk = self.shared.desk.lock();
        let known = desk.workers.remove(&self.number);
        if known.is_some_and(|worker| worker.order.is_none())
            && let Ok(orders) = &desk.placer
        {
            let _ = orders.send(json!({ "order": "stop", "id": self.number }));
        }
    }
}

/// Keeps a placer alive until nobody needs it.
async fn keep(
    shared: Arc<RayShared>,
    alive: CancellationToken,
    opened: oneshot::Sender<Result<(), ClusterError>>,
) {
    let mut first = Some(opened);
    let mut rest = RETRY_DELAY;
    loop {
        let began = Instant::now();
        let ended = tokio::select! {
            // Dropping the placer's standard input ends it.
            () = alive.cancelled() => return,
            ended = serve(&shared, &mut first) => ended,
        };
        if let Some(opened) = first.take() {
            let _ = opened.send(Err(ended));
            return;
        }
        if began.elapsed() > HEALTHY_AFTER {
            rest = RETRY_DELAY;
        }
        let why = format!("{}; it is tried again in {} s", ended.what, rest.as_secs());
        tracing::warn!(target: "rollway::ray", "{why}; {}", ended.hint);
        shared.lose(&ended.what, &why);
        tokio::select! {
            () = alive.cancelled() => return,
            () = sleep(rest) => {}
        }
        rest = (rest * 2).min(MAX_RETRY_DELAY);
    }
}

/// Starts a placer and serves it until it is gone; returns how it ended.
async fn serve(
    shared: &Arc<RayShared>,
    first: &mut Option<oneshot::Sender<Result<(), ClusterError>>>,
) -> ClusterError {
    let (mut child, stdin, stdout) = match shared.spawn() {
        Ok(parts) => parts,
        Err(error) => {
            let program = shared.options.program.display();
            return ClusterError {
                what: format!("{program} could not be started: {error}"),
                hint: "name the Python that has rollway and ray with explorer.python".to_owned(),
            };
        }
    };
    let (orders, told) = mpsc::unbounded_channel();
    // Whoever places nothing any more has ended for a reason of its own, which is read below.
    let telling = tokio::spawn(tell(stdin, told));
    let _end = RayAbort(telling.abort_handle());
    let _ = orders.send(shared.options.open());
    let mut failed = None;
    lines(stdout, |line| match serde_json::from_str(line) {
        Ok(RayEvent::Opened { ip, nodes }) => {
            tracing::info!(target: "rollway::ray", nodes, "joined the cluster as {ip}");
            shared.gain(&orders);
            if let Some(opened) = first.take() {
                let _ = opened.send(Ok(()));
            }
        }
        Ok(RayEvent::Failed { what, hint }) => failed = Some(ClusterError { what, hint }),
        Ok(event) => shared.hear(event),
        Err(error) => tracing::warn!(target: "rollway::ray", "{line}: {error}"),
    })
    .await;
    let status = match child.wait().await {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    failed.unwrap_or_else(|| unexpected(&format!("the placer of workers ended: {status}")))
}

/// Ends a task with whoever began it.
struct RayAbort(tokio::task::AbortHandle);

impl Drop for RayAbort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl RayShared {
    fn spawn(&self) -> io::Result<(Child, ChildStdin, ChildStdout)> {
        let options = &self.options;
        let mut child = Command::new(&options.program)
            .args(&options.args)
            .env("RAY_COLOR_PREFIX", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C in a terminal is for this process, which tells others what to do.
            .process_group(0)
            .spawn()?;
        let missing = || io::Error::other("it has no standard streams");
        if let Some(stderr) = child.stderr.take() {
            let log = |line: &str| tracing::info!(target: "rollway::worker", "{line}");
            tokio::spawn(async move { lines(stderr, log).await });
        }
        let stdin = child.stdin.take().ok_or_else(missing)?;
        let stdout = child.stdout.take().ok_or_else(missing)?;
        Ok((child, stdin, stdout))
    }

    /// There is a placer: it is told of everybody who waits for one.
    fn gain(&self, orders: &mpsc::UnboundedSender<Value>) {
        let mut desk = self.desk.lock();
        desk.placer = Ok(orders.clone());
        let mut workers = std::mem::take(&mut desk.workers);
        workers.values_mut().for_each(|worker| desk.tell(worker));
        desk.workers = workers;
    }

    /// There is no placer any more, and none of its workers: Ray ends them with it.
    fn lose(&self, what: &str, why: &str) {
        let mut desk = self.desk.lock();
        desk.placer = Err(why.to_owned());
        let (told, waiting) =
            desk.workers.drain().partition(|(_, worker): &(u64, Worker)| worker.order.is_none());
        desk.workers = waiting;
        for worker in desk.workers.values() {
            worker.whereabouts.set_waiting(why);
        }
        drop(desk);
        let told: HashMap<u64, Worker> = told;
        for worker in told.into_values() {
            let _ = worker.ended.send(ProcessExit::unattributed(what));
        }
    }

    /// Passes on what the placer says.
    fn hear(&self, event: RayEvent) {
        let mut desk = self.desk.lock();
        // Of those that are not known any more nobody wants to hear.
        match event {
            RayEvent::Waits { id, why } => {
                if let Some(worker) = desk.workers.get(&id) {
                    worker.whereabouts.set_waiting(&why);
                    // Many wait for the same; it is said once.
                    if desk.said.as_ref() != Some(&why) {
                        tracing::warn!(target: "rollway::ray", "a worker waits: {why}");
                        desk.said = Some(why);
                    }
                }
            }
            RayEvent::Placed { id, ip, pid } => {
                desk.said = None;
                if let Some(worker) = desk.workers.get_mut(&id) {
                    worker.is_placed = true;
                    worker.whereabouts.set_location(format!("{ip}, pid {pid}"));
                }
            }
            RayEvent::Ended { id, how, blame } => {
                if let Some(worker) = desk.workers.remove(&id) {
                    let blame = match blame {
                        RayFault::Nobody => Suspect::None,
                        RayFault::Worker => Suspect::SoleAttempt,
                    };
                    let (started, message) = (worker.is_placed, how);
                    if !started {
                        tracing::warn!(target: "rollway::ray", "no worker was started: {message}");
                    }
                    let _ = worker.ended.send(ProcessExit { message, started, blame });
                }
            }
            RayEvent::Nodes { nodes, said } => {
                let more = said.len().saturating_sub(NODES_TOLD);
                let said = said[..said.len() - more].join("; ");
                tracing::info!(target: "rollway::ray", nodes, more, "{said}");
            }
            RayEvent::Opened { .. } | RayEvent::Failed { .. } => {}
        }
    }
}

/// Writes orders, a line each, until there is nobody left to give or take them.
async fn tell(mut stdin: ChildStdin, mut orders: mpsc::UnboundedReceiver<Value>) {
    while let Some(order) = orders.recv().await {
        let line = format!("{order}\n");
        if stdin.write_all(line.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn unexpected(what: &str) -> ClusterError {
    let hint = "the log has what it said before";
    ClusterError { what: what.to_owned(), hint: hint.to_owned() }
}
