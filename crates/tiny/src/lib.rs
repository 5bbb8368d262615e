//! The embedded model: a server with the API of vLLM, so that it stands behind the gateway like any
//! other inference server, and a trainer that reads a buffer and publishes weights.
//!
//! Must not know who calls the server or who fills the buffer: no gateway, no engine, no job. The
//! arithmetic (model, sampling, gradients) is `rollway-tiny-model`, which is built optimized.

mod server;
pub mod trainer;

pub use rollway_tiny_model::{ModelWeights, arithmetic};

pub use self::server::{GenerationCounts, TinyServer, TinyServerLimits, TinyServerOptions};
