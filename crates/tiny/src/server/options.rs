//! Options of the server.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use rollway_base::Secret;
use rollway_net::{ListenerKind, ListenerLimits};
use rollway_tiny_model::{ModelWeights, Vocabulary, arithmetic};

#[derive(Clone, Debug)]
pub struct TinyServerOptions {
    /// Port 0: any free port.
    pub address: SocketAddr,
    /// Key of all requests but health checks. `None`: every process and every web page on this
    /// machine can use and change the model.
    pub api_key: Option<Secret>,
    /// Name of the model.
    pub model: String,
    pub weights: Arc<ModelWeights>,
    /// Version of the weights.
    pub version: u64,
    /// Characters of the model; it has a token for each.
    pub vocabulary: Vocabulary,
    /// Seed of requests without a `seed`.
    pub seed: u64,
    pub limits: TinyServerLimits,
    pub listener: ListenerLimits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TinyServerLimits {
    /// Choices that are generated together; more wait.
    pub max_running: usize,
    /// Requests that wait; more are refused.
    pub max_waiting: usize,
    pub max_body_bytes: usize,
}

impl Default for TinyServerLimits {
    fn default() -> Self {
        Self { max_running: 512, max_waiting: 16_384, max_body_bytes: 1 << 20 }
    }
}

impl Default for TinyServerOptions {
    /// The bundled model at any free port of the loopback.
    fn default() -> Self {
        let (weights, vocabulary) = arithmetic();
        Self {
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            api_key: None,
            model: "tiny".to_owned(),
            weights: Arc::new(weights),
            version: 0,
            vocabulary,
            seed: 0,
            limits: TinyServerLimits::default(),
            listener: ListenerLimits::of(ListenerKind::EmbeddedModel),
        }
    }
}
