//! Where the results of finalized batches go.
//!
//! [`PipelineSink`] is what jobs use: the pipeline and the buffer of a configuration.
//! `buffer_target.rs` names the buffer, `operators.rs` the pipeline's operators, `delivery_key.rs`
//! the idempotency keys of deliveries.

mod buffer_target;
mod delivery_key;
mod operators;
mod pipeline;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use rollway_core::metrics::Metrics;
use rollway_core::{BatchId, BatchKey, Status, TaskId};

pub use self::buffer_target::BufferTarget;
pub use self::pipeline::PipelineSink;

/// The results of a batch on their way to the sink.
#[derive(Clone, Debug)]
pub struct BatchDelivery {
    pub batch: BatchId,
    /// Which life of that id.
    pub key: BatchKey,
    /// The results, by task id.
    pub results: Vec<TaskPayloads>,
}

/// The result of one task.
#[derive(Clone, Debug)]
pub struct TaskPayloads {
    pub task_id: TaskId,
    /// How it ended.
    pub status: Arc<Status>,
    /// The experiences of its good runs, in the order of runs.
    pub payloads: Vec<Bytes>,
}

/// What a sink answers: metrics of its own, or what went wrong.
pub type DeliveryResult = Result<Metrics, String>;

/// Takes experiences, and says so when they are safe.
pub trait Sink: Send + Sync + 'static {
    /// Stores the results of a batch. A parcel whose outcome nobody learned comes again: taking it
    /// twice must have the effect of taking it once.
    fn deliver(
        &self,
        parcel: BatchDelivery,
    ) -> Pin<Box<dyn Future<Output = DeliveryResult> + Send + '_>>;

    /// Stores experiences that belong to no batch.
    fn process(
        &self,
        payloads: Vec<Bytes>,
    ) -> Pin<Box<dyn Future<Output = DeliveryResult> + Send + '_>>;
}

/// Why there is no sink for a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SinkError {
    /// A key has a value that cannot be.
    #[error("{key}: {message}")]
    Config {
        key: String,
        /// What is wrong with it, and what to do.
        message: String,
    },
    /// There is no room for another thread.
    #[error("the thread of the experience pipeline does not start: {0}")]
    Thread(String),
}

impl SinkError {
    fn config(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Config { key: key.into(), message: message.into() }
    }
}
