//! The gateway as whoever starts it sees it.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rollway_base::Secret;
use serde_json::{Map, Value};

use crate::access::RunName;
use crate::http::{App, History, Listening, listen, router};
pub use crate::http::{CallEnded, CallWatcher, UnderWay};
use crate::models::{self, Models, ServerSpec};
use crate::record::{self, RecordError};

/// How long the last words of a gateway that stops may take.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How a gateway behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen, as `host:port`; port 0 means any that is free.
    pub listen: String,
    /// What clients call this machine; none: the address that is listened on.
    pub host: Option<String>,
    /// Opens everything that is not a run's own: models, metrics, calls of agents in serve mode.
    pub admin_key: Secret,
    /// What a request may be.
    pub limits: Limits,
    /// What is kept of a run.
    pub record: record::Limits,
    /// How servers are watched and chosen.
    pub models: models::Options,
    /// Sampling arguments (`temperature`, `top_p`, ...) for calls of the trained model.
    pub sampling: Map<String, Value>,
    /// Whether `sampling` also replaces what clients say, instead of filling in what they leave
    /// out.
    pub force_sampling: bool,
    /// Who sees the calls of runs; none: nobody.
    pub watcher: Option<Arc<dyn CallWatcher>>,
}

/// What a request may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest body of a request, in bytes.
    pub max_body_bytes: usize,
    /// The largest answer of a server, in bytes as it says it; of a stream, all events together.
    pub max_answer_bytes: usize,
    /// How many calls may be under way.
    pub max_in_flight: usize,
    /// How many calls of one run may be under way.
    pub max_in_flight_per_run: usize,
    /// How many connections may be open; further ones wait to be accepted.
    pub max_connections: usize,
    /// How long a client may take for the head of a request, and for its body.
    pub request_timeout: Duration,
    /// How long a call may take, from its first byte to the last of its answer.
    pub call_timeout: Duration,
    /// How long a server may say nothing in the middle of a stream.
    pub idle_timeout: Duration,
    /// How often a call is sent to another server when one could not be reached or failed before
    /// the first byte of its answer.
    pub max_retries: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_body_bytes: 32 << 20,
            max_answer_bytes: 64 << 20,
            max_in_flight: 32_768,
            max_in_flight_per_run: 256,
            max_connections: 65_536,
            request_timeout: Duration::from_secs(60),
            call_timeout: Duration::from_secs(1800),
            idle_timeout: Duration::from_secs(300),
            max_retries: 2,
        }
    }
}

/// Why a gateway did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be listened at.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// Which address.
        address: String,
        /// Why.
        source: io::Error,
    },
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
    handle: Handle,
    listening: Listening,
    url: String,
}

/// Tokens that went through a gateway, as its servers told them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Of prompts.
    pub prompt: u64,
    /// Of answers.
    pub answer: u64,
}

/// Whoever has numbers that `GET /metrics` shows below the gateway's own.
pub trait FurtherMetrics: fmt::Debug + Send + Sync + 'static {
    /// Returns them as OpenMetrics, without the line that ends them. No name begins with
    /// `rollway_gateway_`.
    fn metrics(&self) -> Pin<Box<dyn Future<Output = String> + Send + '_>>;
}

/// What the engine says to its gateway. Clones are the same.
#[derive(Clone, Debug)]
pub struct Handle {
    app: Arc<App>,
}

impl Gateway {
    /// Starts listening. Servers are used as soon as they have said that they are well.
    pub async fn start(options: Options, servers: Vec<ServerSpec>) -> Result<Self, StartError> {
        Self::start_with(options, servers, None).await
    }

    /// Starts listening, with what serve mode adds.
    pub async fn start_with(
        options: Options,
        servers: Vec<ServerSpec>,
        history: Option<Arc<dyn History>>,
    ) -> Result<Self, StartError> {
        let models = Models::new(options.models.clone());
        for server in servers {
            models.add(server).map_err(|error| StartError::Server(error.message))?;
        }
        let (address, limits) = (options.listen.clone(), options.limits.clone());
        let host = options.host.clone();
        let cannot_listen = |source| StartError::Listen { address: address.clone(), source };
        let app = App::new(options, models, history).map_err(StartError::Random)?;
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
        Ok(Self { handle: Handle { app }, listening, url })
    }

    /// Where it is, without `/v1`: `http://127.0.0.1:8010`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns what the engine talks to.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Stops: takes no more calls, waits for those under way until the deadline, then aborts them.
    pub async fn stop(self, deadline: Duration) {
        let app = &self.handle.app;
        let _ = tokio::time::timeout(deadline, self.listening.finish()).await;
        // Streams end with an error, which is given a moment to reach their clients.
        app.stopping.cancel();
        app.tasks.close();
        let _ = tokio::time::timeout(LAST_WORDS, self.listening.finish()).await;
        self.listening.cut();
        let _ = tokio::time::timeout(LAST_WORDS, app.tasks.wait()).await;
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.handle.app.stopping.cancel();
    }
}

impl Handle {
    /// Lets the runs of an attempt in. Returns the key of each, in order.
    pub fn open(&self, attempt: u64, first_run: u32, runs: u32) -> Vec<String> {
        self.app.open(attempt, first_run, runs);
        let runs = first_run..first_run.saturating_add(runs);
        runs.map(|run| self.app.keys.of(RunName { attempt, run })).collect()
    }

    /// Ends the runs of an attempt: their keys are refused from now on, what they have under way
    /// is aborted, in the servers too, and what was recorded of them is dropped.
    pub fn close(&self, attempt: u64) {
        self.app.close(attempt);
    }

    /// Returns the experiences of a run as a payload, from turn `since` on, and the number of
    /// turns. A run that has not called, or whose attempt is not open, has none.
    pub fn experiences(&self, run: RunName, since: u64) -> Result<(Vec<u8>, u64), RecordError> {
        self.app.experiences(run, since).map(|(payload, turns)| (payload.into(), turns))
    }

    /// Returns the calls of an attempt that are under way, the oldest first.
    pub fn under_way(&self, attempt: u64) -> Vec<UnderWay> {
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
    pub fn show_metrics(&self, further: Arc<dyn FurtherMetrics>) {
        let _ = self.app.further.set(further);
    }

    /// How many tokens went through so far, of calls that have ended.
    pub fn tokens(&self) -> Tokens {
        self.app.tokens()
    }
}
