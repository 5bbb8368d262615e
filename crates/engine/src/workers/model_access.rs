//! Gives every run a gateway key from the start of its attempt to its end.
//!
//! ```text
//! Start ──► open ──► Cancel, Ended, Ready after it, Lost, StartFailed, stop, drop ──► close
//! ```
//!
//! Each attempt is closed once; reports about other attempts or incarnations close nothing.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use rollway_base::Secret;
use rollway_core::{AttemptId, Incarnation, RunId, RunnerId};
use rollway_gateway::gateway::{CallInFlight, Gateway, GatewayHandle};
use rollway_gateway::keys::RunRef;
use rollway_gateway::models::ServerView;

use crate::job_wait::WaitReason;
use crate::run::RunnerReport;
use crate::runner_status::RunnerStatusTable;
use crate::workers::{AttemptSpec, ModelAccess, Reporter, RunnerBackend, RunnerCommand};

/// Issues gateway keys for runs.
pub trait RunKeyIssuer: Send + 'static {
    /// Returns the base URL of the gateway, with `/v1`.
    fn base_url(&self) -> Arc<str>;

    /// Opens an attempt and returns the key of each run, in order. Must not block.
    fn open(&mut self, attempt: &AttemptSpec) -> Vec<Secret>;

    /// Revokes the keys of an attempt and aborts its model calls. Called once per opened attempt.
    /// Must not block.
    fn close(&mut self, attempt: AttemptId);

    /// Returns a lookup of the model calls in flight, if available.
    fn under_way(&self) -> Option<CallLookupFn> {
        None
    }

    /// Returns a lookup of the wait of model calls for a usable server, if available.
    fn server_wait(&self) -> Option<ServerWaitFn> {
        None
    }
}

/// Returns the wait of model calls for a usable server. `None`: no call waits for one.
pub type ServerWaitFn = Box<dyn Fn() -> Option<WaitReason> + Send + Sync>;

/// Returns the model versions that were recorded for a run. `None`: nothing was recorded.
pub type RecordedVersionsFn = Arc<dyn Fn(AttemptId, RunId) -> Option<BTreeSet<u64>> + Send + Sync>;

/// Returns the model calls of an attempt in flight, oldest first.
pub type CallLookupFn = Box<dyn Fn(AttemptId) -> Vec<CallInFlight> + Send + Sync>;

/// Issues keys of a gateway.
#[derive(Clone, Debug)]
pub struct GatewayRunKeys {
    handle: GatewayHandle,
    base_url: Arc<str>,
}

impl GatewayRunKeys {
    pub fn new(gateway: &Gateway) -> Self {
        let base_url = format!("{}/v1", gateway.url()).into();
        Self { handle: gateway.handle(), base_url }
    }

    /// Returns a lookup of the model versions that the gateway has recorded.
    pub fn recorded_versions(&self) -> RecordedVersionsFn {
        let handle = self.handle.clone();
        Arc::new(move |AttemptId(attempt), RunId(run)| {
            handle.recorded_versions(RunRef { attempt, run })
        })
    }
}

impl RunKeyIssuer for GatewayRunKeys {
    fn base_url(&self) -> Arc<str> {
        Arc::clone(&self.base_url)
    }

    fn open(&mut self, attempt: &AttemptSpec) -> Vec<Secret> {
        let AttemptSpec { id, runs, .. } = attempt;
        let task = format!("{}/{}", attempt.batch, attempt.task_id.0);
        let keys = self.handle.open_task(id.0, runs.first, runs.count, &task);
        keys.into_iter().flat_map(Secret::new).collect()
    }

    fn close(&mut self, attempt: AttemptId) {
        self.handle.close(attempt.0);
    }

    fn under_way(&self) -> Option<CallLookupFn> {
        let handle = self.handle.clone();
        Some(Box::new(move |attempt| handle.calls_in_flight(attempt.0)))
    }

    fn server_wait(&self) -> Option<ServerWaitFn> {
        let handle = self.handle.clone();
        Some(Box::new(move || unusable_model(&handle)))
    }
}

/// Returns the wait for the first model with waiting calls and without a usable server.
fn unusable_model(gateway: &GatewayHandle) -> Option<WaitReason> {
    let is_usable = |server: &ServerView| server.state.is_usable();
    let models = gateway.models().view();
    let model = models
        .into_iter()
        .find(|model| model.waiting > 0 && !model.servers.iter().any(is_usable))?;
    let state = |server: &ServerView| format!("{} is {}", server.url, server.state);
    let servers: Vec<String> = model.servers.iter().map(state).collect();
    Some(WaitReason::Server { model: model.name, servers: servers.join("; ") })
}

/// Adds gateway keys to the attempts of another backend.
pub struct WithModelAccess<W, K: RunKeyIssuer = GatewayRunKeys> {
    workers: W,
    keys: K,
    /// Current attempt of each runner.
    open: HashMap<RunnerId, (Incarnation, AttemptId)>,
}

impl<W: RunnerBackend, K: RunKeyIssuer> WithModelAccess<W, K> {
    pub fn new(workers: W, keys: K) -> Self {
        Self { workers, keys, open: HashMap::new() }
    }

    fn close_if(&mut self, runner: RunnerId, matches: impl FnOnce(Incarnation, AttemptId) -> bool) {
        if self
            .open
            .get(&runner)
            .is_some_and(|(incarnation, attempt)| matches(*incarnation, *attempt))
            && let Some((_, attempt)) = self.open.remove(&runner)
        {
            self.keys.close(attempt);
        }
    }
}

impl<W: RunnerBackend, K: RunKeyIssuer> RunnerBackend for WithModelAccess<W, K> {
    fn start(&mut self, reporter: Reporter) {
        // The attempt of an earlier incarnation has ended.
        self.close_if(reporter.runner(), |_, _| true);
        self.workers.start(reporter);
    }

    fn send(&mut self, runner: RunnerId, incarnation: Incarnation, command: RunnerCommand) -> bool {
        match command {
            RunnerCommand::Start(mut attempt) => {
                self.close_if(runner, |_, _| true);
                let id = attempt.id;
                let keys = self.keys.open(&attempt);
                self.open.insert(runner, (incarnation, id));
                attempt.models = Some(ModelAccess { base_url: self.keys.base_url(), keys });
                let sent = self.workers.send(runner, incarnation, RunnerCommand::Start(attempt));
                if !sent {
                    self.close_if(runner, |_, _| true);
                }
                sent
            }
            RunnerCommand::Cancel { attempt: id, .. } => {
                // Before the cancel is sent: pending model calls end immediately.
                self.close_if(runner, |_, attempt| attempt == id);
                self.workers.send(runner, incarnation, command)
            }
        }
    }

    fn stop(&mut self, runner: RunnerId, incarnation: Incarnation) {
        self.close_if(runner, |current, _| current == incarnation);
        self.workers.stop(runner, incarnation);
    }

    fn shut_down_workers(&mut self) -> Option<BoxFuture<'static, ()>> {
        self.workers.shut_down_workers()
    }

    fn on_report(&mut self, runner: RunnerId, incarnation: Incarnation, report: &RunnerReport) {
        match report {
            RunnerReport::AttemptEnded { attempt: id }
            | RunnerReport::Ready { after: Some(id) } => {
                self.close_if(runner, |current, attempt| current == incarnation && attempt == *id);
            }
            RunnerReport::Lost { .. } | RunnerReport::StartFailed { .. } => {
                self.close_if(runner, |current, _| current == incarnation);
            }
            RunnerReport::Ready { after: None }
            | RunnerReport::Heartbeat
            | RunnerReport::StartBlocked { .. }
            | RunnerReport::AttemptBegan { .. }
            | RunnerReport::RunFinished { .. } => {}
        }
        self.workers.on_report(runner, incarnation, report);
    }

    fn states(&self) -> RunnerStatusTable {
        let mut states = self.workers.states();
        if let Some(calls) = self.keys.under_way() {
            states = states.with_calls(calls);
        }
        match self.keys.server_wait() {
            Some(wait) => states.with_server_wait(wait),
            None => states,
        }
    }
}

impl<W, K: RunKeyIssuer> Drop for WithModelAccess<W, K> {
    fn drop(&mut self) {
        for (_, (_, attempt)) in self.open.drain() {
            self.keys.close(attempt);
        }
    }
}

impl<W: fmt::Debug, K: RunKeyIssuer> fmt::Debug for WithModelAccess<W, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("WithModelAccess");
        debug.field("workers", &self.workers).field("open", &self.open).finish_non_exhaustive()
    }
}
