//! The gateway as whoever starts it sees it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

pub use crate::call_observer::{CallEnded, CallObserver};
pub use crate::http::CallInFlight;
use crate::http::{GatewayState, HttpListener, TurnStore, listen, router};
use crate::keys::RunRef;
use crate::models::{Models, ServerSpec};
pub use crate::options::{ExtraMetrics, GatewayLimits, GatewayOptions, TokenCounts};
use crate::recording::RecordError;

/// How long the last words of a gateway that stops may take.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a gateway did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be listened at.
    #[error("cannot listen at {address}: {source}")]
    Listen { address: String, source: io::Error },
    /// No secret can be made up.
    #[error("the operating system has no random numbers: {0}")]
    Random(io::Error),
    /// A server is described wrongly.
    #[error("{0}")]
    Server(String),
}

/// A gateway that is running. Dropped without being stopped, it cuts everything at once.
#[derive(Debug)]
pub struct Gateway {
    handle: GatewayHandle,
    listening: HttpListener,
    url: String,
}

/// What the engine says to its gateway. Clones are the same.
#[derive(Clone, Debug)]
pub struct GatewayHandle {
    app: Arc<GatewayState>,
}

impl Gateway {
    /// Starts listening. Servers are used as soon as they have said that they are well.
    pub async fn start(
        options: GatewayOptions,
        servers: Vec<ServerSpec>,
    ) -> Result<Self, StartError> {
        Self::start_with(options, servers, None).await
    }

    /// Starts listening, with what serve mode adds.
    pub async fn start_with(
        options: GatewayOptions,
        servers: Vec<ServerSpec>,
        history: Option<Arc<dyn TurnStore>>,
    ) -> Result<Self, StartError> {
        let models = Models::new(options.models.clone());
        for server in servers {
            models.add(server).map_err(|error| StartError::Server(error.message))?;
        }
        let (address, limits) = (options.listen.clone(), options.limits.clone());
        let host = options.host.clone();
        let cannot_listen = |source| StartError::Listen { address: address.clone(), source };
        let app = GatewayState::new(options, models, history).map_err(StartError::Random)?;
        let app = Arc::new(app);
        let listening = listen(&address, &limits, router(&app)).await.map_err(cannot_listen)?;
        let url = match host {
            Some(host) if host.contains(':') => {
                format!("http://[{host}]:{}", listening.address.port())
            }
            Some(host) => format!("http://{host}:{}", listening.address.port()),
            None => format!("http://{}", listening.address),
        };
        tracing::info!(url, "the gateway listens");
        Ok(Self { handle: GatewayHandle { app }, listening, url })
    }

    /// Where it is, without `/v1`: `http://127.0.0.1:8010`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns what the engine talks to.
    pub fn handle(&self) -> GatewayHandle {
        self.handle.clone()
    }

    /// Stops: takes no more calls, waits for those under way until the deadline, then aborts them.
    pub async fn stop(self, deadline: Duration) {
        let app = &self.handle.app;
        let _ = tokio::time::timeout(deadline, self.listening.finish()).await;
        // Streams end with an error, which is given a moment to reach their clients.
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
    /// Lets the runs of an attempt in. Returns the key of each, in order.
    pub fn open(&self, attempt: u64, first_run: u32, runs: u32) -> Vec<String> {
        self.app.open(attempt, first_run, runs);
        let runs = first_run..first_run.saturating_add(runs);
        runs.map(|run| self.app.keys.of(RunRef { attempt, run })).collect()
    }

    /// Ends the runs of an attempt: their keys are refused from now on, what they have under way
    /// is aborted, in the servers too, and what was recorded of them is dropped.
    pub fn close(&self, attempt: u64) {
        self.app.close(attempt);
    }

    /// Returns the experiences of a run as a payload, from turn `since` on, and the number of
    /// turns. A run that has not called, or whose attempt is not open, has none.
    pub fn experiences(&self, run: RunRef, since: u64) -> Result<(Vec<u8>, u64), RecordError> {
        self.app.experiences(run, since).map(|(payload, turns)| (payload.into(), turns))
    }

    /// Returns the calls of an attempt that are under way, the oldest first.
    pub fn calls_in_flight(&self, attempt: u64) -> Vec<CallInFlight> {
        self.app.board.of(attempt)
    }

    /// The servers.
    pub fn models(&self) -> &Models {
        &self.app.models
    }

    /// The numbers of the gateway as OpenMetrics, without the line that ends them.
    pub fn metrics(&self) -> String {
        self.app.metrics()
    }

    /// Has `GET /metrics` show somebody's numbers below the gateway's own. The first one stays.
    pub fn add_metrics(&self, further: Arc<dyn ExtraMetrics>) {
        let _ = self.app.further.set(further);
    }

    /// How many tokens went through so far, of calls that have ended.
    pub fn tokens(&self) -> TokenCounts {
        self.app.tokens()
    }
}
