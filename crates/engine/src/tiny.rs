//! The embedded model: a server that speaks like vLLM, so that it stands behind the gateway like
//! any other, and a trainer that reads a buffer and publishes weights.
//!
//! `ask` reads requests, `brain` answers all that are under way token by token on a thread of its
//! own, `answer` gives the answers their shape, `routes` are the endpoints. [`trainer`] is the
//! other half: from experiences to the next weights.

mod answer;
mod ask;
mod brain;
mod options;
mod refusal;
mod routes;
mod seeds;
mod server;
mod template;
pub mod trainer;

pub use self::brain::Counts;
pub use self::options::{Limits, Options};
pub use self::server::TinyServer;
pub use rollway_tiny::{Weights, arithmetic};
