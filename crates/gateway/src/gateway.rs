//! The running gateway and its handle for the engine.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

pub use crate::call_observer::{CallEnded, CallObserver};
pub use crate::http::CallInFlight;
use crate::http::{GatewayState, TurnStore, router, token_texts};
use crate::keys::RunRef;
use crate::models::{Models, ServerSpec};
pub use crate::options::{
    ByteLimits, ExtraMetrics, GatewayLimits, GatewayOptions, RunBudget, TokenCounts,
};
use rollway_base::Address;
use rollway_base::net::host_port;
use rollway_model_api::CallError;
use rollway_net::tls::TlsIdentity;
use rollway_net::{BoundListener, ListenerKind, ListenerOptions, RunningListener};
use rollway_recording::RecordError;

const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot listen at {address}: {source}")]
    Listen { address: String, source: io::Error },
    #[error("the operating system has no random numbers: {0}")]
    Random(io::Error),
    #[error("{0}")]
    Server(String),
}

/// A running gateway. Dropping it without [`Self::stop`] closes all connections at once.
#[derive(Debug)]
pub struct Gateway {
    handle: GatewayHandle,
    listening: RunningListener,
    url: String,
    identity: Option<TlsIdentity>,
}

/// The engine's access to its gateway. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct GatewayHandle {
    app: Arc<GatewayState>,
}

impl Gateway {
    /// Starts listening. Servers are used after their first successful health check.
    pub async fn start(
        options: GatewayOptions,
        servers: Vec<ServerSpec>,
    ) -> Result<Self, StartError> {
        Self::start_with(options, servers, None).await
    }

    /// Starts listening, with the turn store of serve mode.
    pub async fn start_with(
        options: GatewayOptions,
        servers: Vec<ServerSpec>,
        history: Option<Arc<dyn TurnStore>>,
    ) -> Result<Self, StartError> {
        let models = Models::new(options.models.clone());
        for server in servers {
            models.add(server).map_err(|error| StartError::Server(error.message))?;
        }
        let cannot_listen = |source| StartError::Listen { address: options.listen.clone(), source };
        let bound = BoundListener::bind(&Address::Tcp(options.listen.clone())).await;
        let bound = bound.map_err(|error| cannot_listen(error.into()))?;
        let identity = bound.identity(&options.tls).map_err(|error| cannot_listen(error.into()))?;
        let scheme = if identity.is_some() { "https" } else { "http" };
        let url = match (&options.host, bound.tcp_address()) {
            (Some(host), Some(address)) => {
                format!("{scheme}://{}", host_port(host, address.port()))
            }
            _ => format!("{scheme}://{}", bound.address()),
        };
        let limits = options.limits.listener.clone();
        let tls = identity.clone();
        let listener_options =
            ListenerOptions { tls, ..ListenerOptions::new(ListenerKind::Gateway, limits) };
        let app = GatewayState::new(options, models, history).map_err(StartError::Random)?;
        let app = Arc::new(app);
        let listening = RunningListener::serve_shared(bound, listener_options, router(&app));
        tracing::debug!(url, "gateway listening");
        Ok(Self { handle: GatewayHandle { app }, listening, url, identity })
    }

    /// Root URL, without `/v1`: `http://127.0.0.1:8010`, or `https://` with a certificate.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the certificate of the gateway. `None`: it speaks clear text.
    pub const fn identity(&self) -> Option<&TlsIdentity> {
        self.identity.as_ref()
    }

    pub fn handle(&self) -> GatewayHandle {
        self.handle.clone()
    }

    /// Takes no more calls, waits until the deadline for calls in flight, then aborts them.
    pub async fn stop(self, deadline: Duration) {
        let app = &self.handle.app;
        let _ = tokio::time::timeout(deadline, self.listening.finish()).await;
        // Streams end with an error event, which needs time to reach their clients.
        app.stopping.cancel();
        app.tasks.close();
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, self.listening.finish()).await;
        self.listening.cut();
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, app.tasks.wait()).await;
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.handle.app.stopping.cancel();
    }
}

impl GatewayHandle {
    /// Opens the runs of an attempt. Returns their run keys, in order.
    pub fn open(&self, attempt: u64, first_run: u32, runs: u32) -> Vec<String> {
        self.open_task(attempt, first_run, runs, "")
    }

    /// Opens the runs of an attempt at a task. The name of the task in its job and the number of a
    /// run determine the seeds of its calls.
    pub fn open_task(&self, attempt: u64, first_run: u32, runs: u32, task: &str) -> Vec<String> {
        self.app.runs.open(attempt, first_run, runs, task);
        let runs = first_run..first_run.saturating_add(runs);
        runs.map(|run| self.app.keys.of(RunRef { attempt, run })).collect()
    }

    /// Closes an attempt: refuses its run keys, aborts its calls, also in the servers, and drops
    /// its recordings.
    pub fn close(&self, attempt: u64) {
        self.app.runs.close(attempt);
    }

    /// Returns the experiences of a run from turn `since` on as a payload, and the number of turns.
    /// A run without calls or without an open attempt has none.
    pub fn experiences(&self, run: RunRef, since: u64) -> Result<(Vec<u8>, u64), RecordError> {
        self.app.experiences(run, since).map(|(payload, turns)| (payload.into(), turns))
    }

    /// Returns the model versions of the tokens that were recorded for a run. `None`: no turn was
    /// recorded, or the attempt is closed.
    pub fn recorded_versions(&self, run: RunRef) -> Option<BTreeSet<u64>> {
        self.app.recorded_versions(run)
    }

    /// Returns the calls of an attempt in flight, oldest first.
    pub fn calls_in_flight(&self, attempt: u64) -> Vec<CallInFlight> {
        self.app.calls_in_flight.of(attempt)
    }

    pub fn models(&self) -> &Models {
        &self.app.models
    }

    /// Returns the metrics as OpenMetrics, without the final line.
    pub fn metrics(&self) -> String {
        self.app.metrics()
    }

    /// Appends further metrics to `GET /metrics`. Only the first call has an effect.
    pub fn add_metrics(&self, further: Arc<dyn ExtraMetrics>) {
        let _ = self.app.further.set(further);
    }

    /// Returns the texts of tokens of the trained model; those that its servers do not tell are
    /// missing.
    ///
    /// # Errors
    /// If no server of the model is available.
    pub async fn token_texts(
        &self,
        tokens: BTreeSet<i32>,
    ) -> Result<HashMap<i32, String>, CallError> {
        token_texts(&self.app, tokens).await
    }

    /// Returns the tokens of ended calls.
    pub fn tokens(&self) -> TokenCounts {
        self.app.metrics.token_counts()
    }
}
