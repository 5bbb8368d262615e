//! Options and limits of the gateway.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rollway_base::Secret;
use rollway_base::tls::TlsOptions;
use rollway_net::{ListenerKind, ListenerLimits};
use rollway_recording::{ExperienceWeights, RecorderLimits};
use serde_json::{Map, Value};

use crate::call_observer::CallObserver;
use crate::models;

#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// Address to listen on, as `host:port`; port 0 means any free port.
    pub listen: String,
    /// Host name in the URL for clients; none: the address that is listened on.
    pub host: Option<String>,
    /// Encryption of the connections of clients.
    pub tls: TlsOptions,
    /// Admin key: servers, weights and metrics.
    pub admin_key: Secret,
    /// Agent key of serve mode: model calls, feedback and commits. Different from the admin key.
    pub agent_key: Option<Secret>,
    pub limits: GatewayLimits,
    pub record: RecorderLimits,
    /// Weights of the experiences of a run.
    pub weights: ExperienceWeights,
    pub budget: RunBudget,
    pub models: models::RoutingOptions,
    /// Sampling arguments (`temperature`, `top_p`, ...) for calls of the trained model.
    pub sampling: Map<String, Value>,
    /// Further names of the trained model; a final `*` stands for any end.
    pub model_aliases: Vec<String>,
    /// True if `sampling` also replaces arguments of clients, instead of filling in missing ones.
    pub force_sampling: bool,
    /// Seed of the calls of runs: every call gets its own, derived from this, its task, its run and
    /// its number. `None`: no seeds are sent.
    pub seed: Option<u64>,
    /// True if a chat that continues a recorded turn is sent with the tokens of that turn, where
    /// the API of the server takes token ids.
    pub exact_histories: bool,
    /// Further fields that runs and agents may send to servers; `*`: all.
    pub pass_fields: Vec<String>,
    /// True if servers may load images and other media from addresses in requests.
    pub remote_media: bool,
    pub watcher: Option<Arc<dyn CallObserver>>,
}

impl GatewayOptions {
    /// Returns the default options: any free port of the loopback interface.
    pub fn new(admin_key: Secret) -> Self {
        Self {
            listen: "127.0.0.1:0".to_owned(),
            host: None,
            tls: TlsOptions::off(),
            admin_key,
            agent_key: None,
            limits: GatewayLimits::default(),
            record: RecorderLimits::default(),
            weights: ExperienceWeights::default(),
            budget: RunBudget::default(),
            models: models::RoutingOptions::default(),
            model_aliases: Vec::new(),
            sampling: Map::new(),
            force_sampling: false,
            seed: None,
            exact_histories: true,
            pass_fields: Vec::new(),
            remote_media: false,
            watcher: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayLimits {
    /// Maximum size of a request body.
    pub request_body_bytes: usize,
    /// Maximum size of a response or a stream.
    pub response_body_bytes: usize,
    /// Objects, lists and items of a request body.
    pub json_nodes: u64,
    /// Levels of objects and lists in a request body.
    pub json_depth: u32,
    /// Memory of the requests of calls in flight, as received and as parsed.
    pub request_bytes: ByteLimits,
    /// Memory of responses until they are sent and recorded.
    pub response_bytes: ByteLimits,
    /// Memory of the recordings of all open runs.
    pub recorded_bytes: u64,
    pub calls: usize,
    pub calls_per_run: usize,
    /// Connections of clients.
    pub listener: ListenerLimits,
    /// Timeout of the body of a request.
    pub request_timeout: Duration,
    /// Timeout of a call, from its first byte to the last byte of its response.
    pub call_timeout: Duration,
    /// Timeout between two chunks of a server's stream.
    pub idle_timeout: Duration,
    /// Maximum number of times that a call is sent to another server because one was unreachable
    /// or failed before the first byte of its response.
    pub max_retries: u32,
}

/// Bytes of all calls together, and of those of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteLimits {
    pub total: u64,
    pub per_run: u64,
}

impl Default for GatewayLimits {
    fn default() -> Self {
        Self {
            request_body_bytes: 32 << 20,
            response_body_bytes: 64 << 20,
            json_nodes: 2_000_000,
            json_depth: 100,
            request_bytes: ByteLimits { total: 2 << 30, per_run: 256 << 20 },
            response_bytes: ByteLimits { total: 1 << 30, per_run: 256 << 20 },
            recorded_bytes: 4 << 30,
            calls: 32_768,
            calls_per_run: 256,
            listener: ListenerLimits::of(ListenerKind::Gateway),
            request_timeout: Duration::from_secs(60),
            call_timeout: Duration::from_secs(1800),
            idle_timeout: Duration::from_secs(300),
            max_retries: 2,
        }
    }
}

/// Maximum usage of the trained model by one run. `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunBudget {
    pub model_calls: Option<u64>,
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    /// Completions with tool calls.
    pub tool_turns: Option<u64>,
    /// Time since the first call of the run.
    pub duration: Option<Duration>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCounts {
    pub prompt: u64,
    pub answer: u64,
}

/// Metrics that `GET /metrics` appends to the gateway's own.
pub trait ExtraMetrics: fmt::Debug + Send + Sync + 'static {
    /// Returns the metrics as OpenMetrics, without the final line. No name begins with
    /// `rollway_gateway_`.
    fn metrics(&self) -> Pin<Box<dyn Future<Output = String> + Send + '_>>;
}
