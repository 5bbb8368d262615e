//! Where the results of finalized batches go.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use rollway_core::metrics::Metrics;
use rollway_core::{BatchId, BatchKey, Status, TaskId};

/// The results of a batch on their way to the sink.
#[derive(Clone, Debug)]
pub struct Parcel {
    /// The batch.
    pub batch: BatchId,
    /// Which life of that id.
    pub key: BatchKey,
    /// The results, by task id.
    pub results: Vec<Delivered>,
}

/// The result of one task.
#[derive(Clone, Debug)]
pub struct Delivered {
    /// Which task.
    pub task_id: TaskId,
    /// How it ended.
    pub status: Arc<Status>,
    /// The experiences of its good runs, in the order of runs.
    pub payloads: Vec<Bytes>,
}

/// What a sink answers: metrics of its own, or what went wrong.
pub type Stored = Result<Metrics, String>;

/// Takes experiences, and says so when they are safe.
pub trait Sink: Send + Sync + 'static {
    /// Stores the results of a batch. A parcel whose outcome nobody learned comes again: taking it
    /// twice must have the effect of taking it once.
    fn deliver(&self, parcel: Parcel) -> Pin<Box<dyn Future<Output = Stored> + Send + '_>>;

    /// Stores experiences that belong to no batch.
    fn process(&self, payloads: Vec<Bytes>) -> Pin<Box<dyn Future<Output = Stored> + Send + '_>>;
}
