//! Sinks of finalized batches. [`PipelineSink`] is the one of jobs: pipeline and buffer of a
//! configuration.

mod buffer_target;
mod delivery_key;
mod operators;
mod pipeline;
mod quarantine;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use rollway_core::metrics::Metrics;
use rollway_core::{BatchId, BatchKey, Status, TaskId};

pub use self::buffer_target::BufferTarget;
pub use self::operators::check_operators;
pub use self::pipeline::{PipelineSink, QUARANTINED};

#[derive(Clone, Debug)]
pub struct BatchDelivery {
    pub batch: BatchId,
    /// Use of that batch id.
    pub key: BatchKey,
    /// Sorted by task id.
    pub results: Vec<TaskPayloads>,
}

#[derive(Clone, Debug)]
pub struct TaskPayloads {
    pub task_id: TaskId,
    pub status: Arc<Status>,
    /// Payloads of successful runs, in order.
    pub payloads: Vec<Bytes>,
}

/// Metrics of the sink, or an error message.
pub type DeliveryResult = Result<Metrics, String>;

/// Stores experiences; returns once they are durable.
pub trait Sink: Send + Sync + 'static {
    /// Stores the results of a batch. Must be idempotent: a delivery with an unknown outcome is
    /// repeated.
    fn deliver(&self, delivery: BatchDelivery) -> BoxFuture<'_, DeliveryResult>;

    fn process(&self, payloads: Vec<Bytes>) -> BoxFuture<'_, DeliveryResult>;

    /// Returns the number of unread samples of a full buffer, in which a delivery waits for room.
    fn full_buffer(&self) -> Option<u64> {
        None
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SinkError {
    #[error("{key}: {message}")]
    Config {
        key: String,
        /// The problem and the remedy.
        message: String,
    },
    #[error("the thread of the experience pipeline does not start: {0}")]
    Thread(String),
}

impl SinkError {
    fn config(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Config { key: key.into(), message: message.into() }
    }
}
