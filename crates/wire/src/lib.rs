//! What the engine and its workers say to each other, and how.
//!
//! A worker is a process that hosts runners. It keeps one gRPC stream to the engine, over a Unix
//! socket or TCP. [`server`] is the engine's end of it, [`worker`] the other, and [`conformance`]
//! checks workers in any language. None of them decides anything: what is to be done comes from
//! the core, through the engine.
//!
//! The schema is `proto/worker.proto`; only [`proto`] knows it. Everything else deals in
//! [`WorkerMessage`] and [`EngineMessage`], whose fields were checked when they arrived.

#![warn(missing_docs)]

mod codec;
pub mod conformance;
mod convert;
pub mod experience;
mod invalid;
mod message;
pub mod reader;
mod refusal;
mod room;
pub mod server;
mod words;
pub mod worker;

pub use invalid::Invalid;
pub use message::{
    Definition, DefinitionId, EngineMessage, Hello, LogLevel, LogLine, LogSource, Outcome,
    RunnerReport, RunnerState, StartAttempt, StopCause, Versions, Welcome, WorkerMessage,
};
pub use refusal::{Refusal, RefusalCode};

/// The messages as they travel, generated from the schema.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::use_self,
    reason = "generated code follows the generator's habits"
)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/rollway.worker.v1.rs"));

    impl std::fmt::Debug for Hello {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("Hello").field("token", &self.token).finish_non_exhaustive()
        }
    }

    impl std::fmt::Debug for Welcome {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("Welcome").field("runners", &self.runners).finish_non_exhaustive()
        }
    }

    impl std::fmt::Debug for StartAttempt {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("StartAttempt").field("attempt", &self.attempt).finish_non_exhaustive()
        }
    }

    impl std::fmt::Debug for start_attempt::Batch {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            match self {
                Self::BatchNumber(number) => write!(f, "{number}"),
                Self::BatchText(text) => write!(f, "{text:?}"),
            }
        }
    }
}

/// The variables of the environment that tell a worker where to go.
pub mod env {
    /// The engine's [`Address`](crate::Address).
    pub const ADDRESS: &str = "ROLLWAY_WORKER_ADDRESS";
    /// The engine's secret.
    pub const SECRET: &str = "ROLLWAY_WORKER_SECRET";
    /// The worker's token.
    pub const TOKEN: &str = "ROLLWAY_WORKER_TOKEN";
    /// How many runners the worker is to offer.
    pub const RUNNERS: &str = "ROLLWAY_WORKER_RUNNERS";
    /// A file with a byte for every runner of the worker, at the runner's number modulo
    /// [`RUNNERS`]. It is not 0 while the worker executes code for the runner, and 0 while that
    /// code waits, so that it is known whose code was executed when a worker died.
    pub const EXECUTION_MARKS: &str = "ROLLWAY_WORKER_EXECUTION_MARKS";
    /// Set if the engine reads what the worker prints: a line may begin with a record separator
    /// (U+001E), and is then a JSON object with `line`, and what is known of `level`, `logger`,
    /// `batch`, `task`, `run` and `attempt`.
    pub const LOG_RELAY: &str = "ROLLWAY_WORKER_LOG_RELAY";
    /// Where the model gateway is, with `/v1`; not set if there is none.
    pub const GATEWAY_URL: &str = "ROLLWAY_WORKER_GATEWAY_URL";
    /// What a worker in Python is told about models, as JSON.
    pub const SETUP: &str = "ROLLWAY_WORKER_SETUP_JSON";
}
