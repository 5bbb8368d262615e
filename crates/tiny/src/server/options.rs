//! How a server of the embedded model is started.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use rollway_tiny_model::{ModelWeights, Vocabulary, arithmetic};

/// How a server behaves.
#[derive(Clone, Debug)]
pub struct TinyServerOptions {
    /// Where to listen; port 0 means any that is free.
    pub address: SocketAddr,
    /// What the model is called.
    pub model: String,
    /// The parameters.
    pub weights: Arc<ModelWeights>,
    /// The version of these parameters.
    pub version: u64,
    /// What texts are made of. The model has a token for each of its characters.
    pub vocabulary: Vocabulary,
    /// Decides what chance does in answers to requests that bring no `seed`.
    pub seed: u64,
    /// How much at once.
    pub limits: TinyServerLimits,
}

/// How much at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TinyServerLimits {
    /// How many choices are continued together; more wait.
    pub max_running: usize,
    /// How many requests wait; more are refused.
    pub max_waiting: usize,
    /// How large the body of a request may be, in bytes.
    pub max_body_bytes: usize,
}

impl Default for TinyServerLimits {
    fn default() -> Self {
        Self { max_running: 512, max_waiting: 16_384, max_body_bytes: 1 << 20 }
    }
}

impl Default for TinyServerOptions {
    /// The model that comes with the program, at any free port of this machine.
    fn default() -> Self {
        let (weights, vocabulary) = arithmetic();
        Self {
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            model: "tiny".to_owned(),
            weights: Arc::new(weights),
            version: 0,
            vocabulary,
            seed: 0,
            limits: TinyServerLimits::default(),
        }
    }
}
