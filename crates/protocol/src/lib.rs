//! The worker protocol and the reader protocol, both ends of each.
//!
//! A worker is a process that hosts runners. It keeps one gRPC stream to the engine, over a Unix
//! socket or TCP. [`worker_server`] is the engine's end of the stream, [`worker_client`] the
//! worker's. A trainer reads experiences over [`reader`]. No scheduling decision is made here.
//!
//! The schema is `proto/worker.proto`, compiled into [`proto`]. All other modules use
//! [`WorkerMessage`] and [`EngineMessage`], whose fields are validated on arrival.

mod authentication;
mod byte_budget;
mod codec;
mod convert;
pub mod env;
mod field_error;
mod handshake_limit;
mod message;
mod peer;
pub mod reader;
mod refusal;
mod status_message;
mod stream_service;
pub mod worker_client;
pub mod worker_server;

pub use field_error::InvalidField;
pub use message::{
    DefinitionId, EngineMessage, Hello, LogLine, LogSource, RunnerHeartbeat, StartAttempt,
    StopCause, VersionRange, Welcome, WorkerLogLevel, WorkerMessage, WorkerReport,
    WorkflowDefinition,
};
pub use refusal::{ConnectRefusal, RefusalCode};

/// Wire messages, generated from the schema.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::use_self,
    reason = "generated code follows the generator's habits"
)]
pub mod proto {
    include!("../proto/worker.prost.inc");

    impl std::fmt::Debug for Hello {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("Hello").field("runners", &self.runners).finish_non_exhaustive()
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
