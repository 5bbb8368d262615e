//! Workers as Ray actors. Only one process uses Ray, the launcher (`rollway.ray.launcher`):
//! it joins the cluster, places workers and reports their states as JSON lines.
//!
//! ```text
//! launch ──► start ──► launcher ──► Ray ──► worker ──► hello to the engine
//!   ▲                    │ waits, placed, ended
//!   └── the engine orders replacements; Ray restarts nothing itself
//! ```
//!
//! Ray ends the workers of a launcher process that dies, which is restarted. The process ends when
//! its standard input closes, so that nothing outlives the engine.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rollway_config::secrets::secret_variables;
use rollway_config::{ClusterConfig, Config, Placement};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;

use super::WorkerPoolOptions;
use super::launcher::{
    ClusterError, LaunchSpec, LaunchStatus, LaunchedProcess, Launcher, ProcessExit, Suspect,
};
use crate::process::lines;
use crate::process::python;

/// First and longest pause before a launcher process is restarted.
const RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);

/// Lifetime after which the restart pause is reset.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);

/// Maximum number of node changes in one log line.
const MAX_NODE_CHANGES: usize = 8;

#[derive(Clone, Debug)]
pub struct RayLauncherOptions {
    /// Python interpreter with Ray.
    pub program: PathBuf,
    /// Arguments that start the launcher process.
    pub args: Vec<String>,
    pub cluster: ClusterConfig,
    pub namespace: String,
    /// Timeout of joining the cluster.
    pub join_timeout: Duration,
    /// Environment variables with secrets of this process, which are not passed on: the processes
    /// of a local cluster inherit those of the launcher process.
    pub removed_env: BTreeSet<String>,
}

impl RayLauncherOptions {
    const SCRIPT: &'static str = "from rollway.ray.launcher import main; main()";

    /// Returns options for the workers of a configuration.
    pub fn new(config: &Config, workers: &WorkerPoolOptions) -> Self {
        let cluster = config.cluster.clone();
        let job = || format!("{}/{}", config.project, config.name);
        Self {
            program: workers.program.clone(),
            args: workers.ray_launcher.clone().unwrap_or_else(|| python::arguments(Self::SCRIPT)),
            namespace: cluster.namespace.clone().unwrap_or_else(job),
            cluster,
            removed_env: secret_variables(config),
            join_timeout: config.explorer.supervision.start_timeout.into(),
        }
    }

    /// Returns the order to join the cluster. Variables of workers are not part of it, because Ray
    /// shows the runtime environment in its dashboard: each worker gets them when it starts.
    fn open(&self) -> Value {
        json!({
            "order": "open",
            "address": self.cluster.address,
            "namespace": self.namespace,
            "runtime_env": self.cluster.runtime_env,
            "version": env!("CARGO_PKG_VERSION"),
        })
    }

    /// Returns the order to start a worker.
    fn start(&self, spec: LaunchSpec) -> Value {
        let cluster = &self.cluster;
        let mut resources = cluster.resources_per_worker.clone();
        resources.insert("CPU".to_owned(), cluster.cpus_per_worker);
        resources.insert("GPU".to_owned(), cluster.gpus_per_worker);
        let is_spread = cluster.placement == Placement::Spread;
        json!({
            "order": "start",
            "id": spec.number,
            "env": spec.env.into_iter().collect::<BTreeMap<_, _>>(),
            "resources": resources,
            "placement": if is_spread { "spread" } else { "pack" },
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
    state: Mutex<RayLauncherState>,
}

#[derive(Debug)]
struct RayLauncherState {
    /// Sender of orders, or the reason why there is no launcher process.
    orders: Result<mpsc::UnboundedSender<Value>, String>,
    workers: HashMap<u64, Worker>,
    /// Last logged reason for waiting.
    logged: Option<String>,
}

struct Worker {
    status: LaunchStatus,
    ended: oneshot::Sender<ProcessExit>,
    /// Start order. `None` once it was sent.
    order: Option<Value>,
    is_placed: bool,
}

/// Omits the order: its environment has the secret of the worker.
impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, is_placed, .. } = self;
        f.debug_struct("Worker")
            .field("status", status)
            .field("is_placed", is_placed)
            .finish_non_exhaustive()
    }
}

/// Event of the launcher process.
#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum RayEvent {
    Opened { ip: String, nodes: u64 },
    Failed { message: String, hint: String },
    Waits { id: u64, reason: String },
    Placed { id: u64, ip: String, pid: u32 },
    Ended { id: u64, reason: String, suspect: RaySuspect },
    Nodes { nodes: u64, changes: Vec<String> },
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RaySuspect {
    None,
    Worker,
}

impl RayLauncher {
    /// Starts a launcher process and waits until it has joined the cluster. Needs a tokio runtime.
    ///
    /// # Errors
    /// If the cluster, Ray or Python is not available.
    pub async fn open(options: RayLauncherOptions) -> Result<Self, ClusterError> {
        let down = Err("the cluster is being joined".to_owned());
        let state = RayLauncherState { orders: down, workers: HashMap::new(), logged: None };
        let shared = Arc::new(RayShared { options, state: Mutex::new(state) });
        let alive = CancellationToken::new();
        let (opened, opening) = oneshot::channel();
        tokio::spawn(keep_running(Arc::clone(&shared), alive.clone(), opened));
        let alive = alive.drop_guard();
        match timeout(shared.options.join_timeout, opening).await {
            Ok(Ok(Ok(()))) => Ok(Self { shared, _alive: alive }),
            Ok(Ok(Err(error))) => Err(error),
            Ok(Err(_)) => Err(unexpected("the launcher process was abandoned")),
            Err(_) => {
                let seconds = shared.options.join_timeout.as_secs_f64();
                Err(ClusterError {
                    what: format!("the Ray cluster was not joined within {seconds} s"),
                    hint: "check that cluster.address is correct and reachable, or raise \
                           explorer.supervision.start_timeout"
                        .to_owned(),
                })
            }
        }
    }
}

impl Launcher for RayLauncher {
    fn launch(&self, spec: LaunchSpec) -> Box<dyn LaunchedProcess> {
        let number = spec.number;
        let (ended, receiver) = oneshot::channel();
        let status = spec.status.clone();
        let order = Some(self.shared.options.start(spec));
        let mut worker = Worker { status, ended, order, is_placed: false };
        let mut state = self.shared.state.lock();
        state.send_order(&mut worker);
        state.workers.insert(number, worker);
        drop(state);
        Box::new(RayWorker { shared: Arc::clone(&self.shared), number, ended: receiver })
    }
}

impl RayLauncherState {
    /// Sends a worker's order, or sets its status to waiting.
    fn send_order(&self, worker: &mut Worker) {
        match &self.orders {
            Ok(orders) => {
                // The end of a dead launcher process is handled by `keep_running`.
                let _ = worker.order.take().map(|order| orders.send(order));
            }
            Err(reason) => worker.status.set_waiting(reason),
        }
    }
}

/// A requested worker. Dropping it ends the worker.
struct RayWorker {
    shared: Arc<RayShared>,
    number: u64,
    ended: oneshot::Receiver<ProcessExit>,
}

impl LaunchedProcess for RayWorker {
    fn ended(&mut self) -> BoxFuture<'_, ProcessExit> {
        Box::pin(async {
            let ended = (&mut self.ended).await;
            ended.unwrap_or_else(|_| {
                ProcessExit::unattributed("the state of the worker process is unknown")
            })
        })
    }
}

impl Drop for RayWorker {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        let known = state.workers.remove(&self.number);
        if known.is_some_and(|worker| worker.order.is_none())
            && let Ok(orders) = &state.orders
        {
            let _ = orders.send(json!({ "order": "stop", "id": self.number }));
        }
    }
}

/// Keeps a launcher process running until the launcher is dropped.
async fn keep_running(
    shared: Arc<RayShared>,
    alive: CancellationToken,
    opened: oneshot::Sender<Result<(), ClusterError>>,
) {
    let mut first = Some(opened);
    let mut pause = RETRY_DELAY;
    loop {
        let began = Instant::now();
        let ended = tokio::select! {
            // Dropping its standard input ends the process.
            () = alive.cancelled() => return,
            ended = serve(&shared, &mut first) => ended,
        };
        if let Some(opened) = first.take() {
            let _ = opened.send(Err(ended));
            return;
        }
        if began.elapsed() > HEALTHY_AFTER {
            pause = RETRY_DELAY;
        }
        let reason = format!("{}; retrying in {} s", ended.what, pause.as_secs());
        tracing::warn!(target: "rollway::ray", "{reason}; {}", ended.hint);
        shared.launcher_lost(&ended.what, &reason);
        tokio::select! {
            () = alive.cancelled() => return,
            () = sleep(pause) => {}
        }
        pause = (pause * 2).min(MAX_RETRY_DELAY);
    }
}

/// Starts a launcher process and serves it until it ends.
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
                hint: "set explorer.python to a Python with the packages rollway and \
                       ray"
                .to_owned(),
            };
        }
    };
    let (orders, queue) = mpsc::unbounded_channel();
    let _writer = AbortOnDropHandle::new(tokio::spawn(write_orders(stdin, queue)));
    let _ = orders.send(shared.options.open());
    let mut failed = None;
    lines(stdout, |line| match serde_json::from_str(line) {
        Ok(RayEvent::Opened { ip, nodes }) => {
            tracing::info!(target: "rollway::ray", nodes, "joined the cluster as {ip}");
            shared.launcher_ready(&orders);
            if let Some(opened) = first.take() {
                let _ = opened.send(Ok(()));
            }
        }
        Ok(RayEvent::Failed { message, hint }) => {
            failed = Some(ClusterError { what: message, hint });
        }
        Ok(event) => shared.on_event(event),
        Err(error) => tracing::warn!(target: "rollway::ray", "{line}: {error}"),
    })
    .await;
    let status = match child.wait().await {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    failed.unwrap_or_else(|| unexpected(&format!("the Ray launcher ended: {status}")))
}

impl RayShared {
    fn spawn(&self) -> io::Result<(Child, ChildStdin, ChildStdout)> {
        let options = &self.options;
        let mut command = Command::new(&options.program);
        for name in &options.removed_env {
            command.env_remove(name);
        }
        let mut child = command
            .args(&options.args)
            .env("RAY_COLOR_PREFIX", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C in a terminal goes to this process only.
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

    /// Sends the orders of all waiting workers to a new launcher process.
    fn launcher_ready(&self, orders: &mpsc::UnboundedSender<Value>) {
        let mut state = self.state.lock();
        state.orders = Ok(orders.clone());
        let mut workers = std::mem::take(&mut state.workers);
        workers.values_mut().for_each(|worker| state.send_order(worker));
        state.workers = workers;
    }

    /// Ends the workers of a launcher process that ended; the others wait for the next process.
    fn launcher_lost(&self, message: &str, waiting: &str) {
        let mut state = self.state.lock();
        state.orders = Err(waiting.to_owned());
        for (_, worker) in state.workers.extract_if(|_, worker| worker.order.is_none()) {
            let _ = worker.ended.send(ProcessExit::unattributed(message));
        }
        for worker in state.workers.values() {
            worker.status.set_waiting(waiting);
        }
    }

    /// Applies an event of the launcher process; events of unknown workers are ignored.
    fn on_event(&self, event: RayEvent) {
        let mut state = self.state.lock();
        match event {
            RayEvent::Waits { id, reason } => {
                if let Some(worker) = state.workers.get(&id) {
                    worker.status.set_waiting(&reason);
                    // Many workers wait for the same reason, which is logged once.
                    if state.logged.as_ref() != Some(&reason) {
                        tracing::warn!(target: "rollway::ray", "worker waits: {reason}");
                        state.logged = Some(reason);
                    }
                }
            }
            RayEvent::Placed { id, ip, pid } => {
                state.logged = None;
                if let Some(worker) = state.workers.get_mut(&id) {
                    worker.is_placed = true;
                    worker.status.set_location(format!("{ip}, pid {pid}"));
                }
            }
            RayEvent::Ended { id, reason, suspect } => {
                if let Some(worker) = state.workers.remove(&id) {
                    let suspect = match suspect {
                        RaySuspect::None => Suspect::None,
                        RaySuspect::Worker => Suspect::AnyAttempt,
                    };
                    let (started, message) = (worker.is_placed, reason);
                    if !started {
                        tracing::warn!(target: "rollway::ray", "worker not started: {message}");
                    }
                    let _ = worker.ended.send(ProcessExit { message, started, suspect });
                }
            }
            RayEvent::Nodes { nodes, changes } => {
                let more = changes.len().saturating_sub(MAX_NODE_CHANGES);
                let changes = changes[..changes.len() - more].join("; ");
                tracing::info!(target: "rollway::ray", nodes, more, "{changes}");
            }
            RayEvent::Opened { .. } | RayEvent::Failed { .. } => {}
        }
    }
}

/// Writes orders as JSON lines until either end is closed.
async fn write_orders(mut stdin: ChildStdin, mut orders: mpsc::UnboundedReceiver<Value>) {
    while let Some(order) = orders.recv().await {
        let line = format!("{order}\n");
        if stdin.write_all(line.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn unexpected(what: &str) -> ClusterError {
    let hint = "see its output in the log";
    ClusterError { what: what.to_owned(), hint: hint.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn options(script: &str, keys: &Value) -> RayLauncherOptions {
        let config = Config::from_value(keys).expect("a configuration");
        let workers = WorkerPoolOptions::new("sh");
        let args = vec!["-c".to_owned(), script.to_owned()];
        RayLauncherOptions {
            program: "sh".into(),
            args,
            ..RayLauncherOptions::new(&config, &workers)
        }
    }

    #[tokio::test]
    async fn secrets_of_the_engine_do_not_reach_the_cluster() {
        // Cargo sets both variables; the configuration names the first one as a secret.
        let script = r#"
            found="${CARGO_PKG_NAME-none},$CARGO_PKG_VERSION"
            echo '{"event": "failed", "message": "'"$found"'", "hint": ""}'
        "#;
        let keys = json!({ "explorer": { "proxy_key_env": "CARGO_PKG_NAME" } });
        let error = RayLauncher::open(options(script, &keys)).await.expect_err("it has failed");
        assert_eq!(error.what, concat!("none,", env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn a_worker_is_shown_without_its_environment() {
        let (ended, _exit) = oneshot::channel();
        let order = Some(json!({ "env": { "ROLLWAY_WORKER_SECRET": "open sesame" } }));
        let status = LaunchStatus::default();
        let worker = Worker { status, ended, order, is_placed: false };
        assert!(!format!("{worker:?}").contains("sesame"));
    }
}
