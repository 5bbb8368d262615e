//! The embedded model: an inference server with the API of vLLM, and a trainer that reads a buffer
//! and publishes weights.
//!
//! Knows no gateway, engine or job. The arithmetic (model, sampling, gradients) is
//! `rollway-tiny-model`, which is built optimized.

mod server;
pub mod trainer;

pub use rollway_tiny_model::{ModelWeights, arithmetic};

pub use self::server::{GenerationCounts, TinyServer, TinyServerLimits, TinyServerOptions};
