//! Runners whose runs may call the models: a key for every run, from the moment its attempt is
//! given to a runner until it is over, whatever becomes of the runner.
//!
//! ```text
//! Start ──► open ──► Cancel, Ended, Ready after it, Lost, StartFailed, stop, the end ──► close
//! ```
//!
//! Whichever comes first closes; nothing closes twice, and words about another attempt or of
//! another life close nothing.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use rollway_base::Secret;
use rollway_core::{AttemptId, Incarnation, RunRange, RunnerId};
use rollway_gateway::gateway::{CallInFlight, Gateway, GatewayHandle};

use crate::run::RunnerReport;
use crate::runner_status::RunnerStatusTable;
use crate::workers::{ModelAccess, Reporter, RunnerBackend, RunnerCommand};

/// Who hands out keys to the models.
pub trait RunKeyIssuer: Send + 'static {
    /// Where the models are, with `/v1`.
    fn base_url(&self) -> Arc<str>;

    /// Lets the runs of an attempt in. Returns the key of each, in order. Must not block.
    fn open(&mut self, attempt: AttemptId, runs: RunRange) -> Vec<Secret>;

    /// Refuses the keys of an attempt from now on, and aborts what its runs have under way. Called
    /// once for every attempt that was opened. Must not block.
    fn close(&mut self, attempt: AttemptId);

    /// Returns what finds the calls that an attempt has under way, if anybody knows.
    fn under_way(&self) -> Option<CallLookupFn> {
        None
    }
}

/// Finds the calls that an attempt has under way, the oldest first.
pub type CallLookupFn = Box<dyn Fn(AttemptId) -> Vec<CallInFlight> + Send + Sync>;

/// Keys to a gateway.
#[derive(Clone, Debug)]
pub struct GatewayRunKeys {
    handle: GatewayHandle,
    base_url: Arc<str>,
}

impl GatewayRunKeys {
    /// Returns what opens and closes a gateway for attempts.
    pub fn new(gateway: &Gateway) -> Self {
        let base_url = format!("{}/v1", gateway.url()).into();
        Self { handle: gateway.handle(), base_url }
    }
}

impl RunKeyIssuer for GatewayRunKeys {
    fn base_url(&self) -> Arc<str> {
        Arc::clone(&self.base_url)
    }

    fn open(&mut self, attempt: AttemptId, runs: RunRange) -> Vec<Secret> {
        let keys = self.handle.open(attempt.0, runs.first, runs.count);
        keys.into_iter().flat_map(Secret::new).collect()
    }

    fn close(&mut self, attempt: AttemptId) {
        self.handle.close(attempt.0);
    }

    fn under_way(&self) -> Option<CallLookupFn> {
        let handle = self.handle.clone();
        Some(Box::new(move |attempt| handle.calls_in_flight(attempt.0)))
    }
}

/// Runners from elsewhere, with keys to the models for what they execute.
pub struct WithModelAccess<W, K: RunKeyIssuer = GatewayRunKeys> {
    workers: W,
    keys: K,
    /// What each runner executes. It gets one attempt at a time.
    open: HashMap<RunnerId, (Incarnation, AttemptId)>,
}

impl<W: RunnerBackend, K: RunKeyIssuer> WithModelAccess<W, K> {
    /// Returns these runners with these keys.
    pub fn new(workers: W, keys: K) -> Self {
        Self { workers, keys, open: HashMap::new() }
    }

    fn close_if(&mut self, runner: RunnerId, is_it: impl FnOnce(Incarnation, AttemptId) -> bool) {
        if self.open.get(&runner).is_some_and(|(life, attempt)| is_it(*life, *attempt))
            && let Some((_, attempt)) = self.open.remove(&runner)
        {
            self.keys.close(attempt);
        }
    }
}

impl<W: RunnerBackend, K: RunKeyIssuer> RunnerBackend for WithModelAccess<W, K> {
    fn start(&mut self, reporter: Reporter) {
        // Whatever an earlier life was at is over.
        self.close_if(reporter.runner(), |_, _| true);
        self.workers.start(reporter);
    }

    fn send(&mut self, runner: RunnerId, life: Incarnation, command: RunnerCommand) -> bool {
        match command {
            RunnerCommand::Start(mut attempt) => {
                self.close_if(runner, |_, _| true);
                let id = attempt.id;
                let keys = self.keys.open(id, attempt.runs);
                self.open.insert(runner, (life, id));
                attempt.models = Some(ModelAccess { base_url: self.keys.base_url(), keys });
                let heard = self.workers.send(runner, life, RunnerCommand::Start(attempt));
                if !heard {
                    self.close_if(runner, |_, _| true);
                }
                heard
            }
            RunnerCommand::Cancel { attempt: id, .. } => {
                // Before the runner hears of it: what waits for a model need not wait any longer.
                self.close_if(runner, |_, attempt| attempt == id);
                self.workers.send(runner, life, command)
            }
        }
    }

    fn stop(&mut self, runner: RunnerId, life: Incarnation) {
        self.close_if(runner, |current, _| current == life);
        self.workers.stop(runner, life);
    }

    fn shut_down_workers(&mut self) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        self.workers.shut_down_workers()
    }

    fn on_report(&mut self, runner: RunnerId, life: Incarnation, said: &RunnerReport) {
        match said {
            RunnerReport::AttemptEnded { attempt: id }
            | RunnerReport::Ready { after: Some(id) } => {
                self.close_if(runner, |current, attempt| current == life && attempt == *id);
            }
            RunnerReport::Lost { .. } | RunnerReport::StartFailed { .. } => {
                self.close_if(runner, |current, _| current == life);
            }
            RunnerReport::Ready { after: None }
            | RunnerReport::Heartbeat
            | RunnerReport::Waits { .. }
            | RunnerReport::AttemptBegan { .. }
            | RunnerReport::RunFinished { .. } => {}
        }
        self.workers.on_report(runner, life, said);
    }

    fn states(&self) -> RunnerStatusTable {
        let states = self.workers.states();
        match self.keys.under_way() {
            Some(calls) => states.with_calls(calls),
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
        let mut shown = f.debug_struct("Gated");
        shown.field("workers", &self.workers).field("open", &self.open).finish_non_exhaustive()
    }
}
