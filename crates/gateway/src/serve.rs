//! Serve mode: agents outside the job call the gateway, give feedback, and commit.
//!
//! Completions of the trained model are stored before the client receives their end. Feedback
//! rewards recorded choices once, and queues them. A commit delivers all queued choices as one step
//! to a [`Committer`], once. All of it survives `kill -9`.
//!
//! `store.rs` has the thread that owns the database, `tables.rs` and `database.rs` its content,
//! `feedback.rs` and `commit.rs` the two requests, `routes.rs` their HTTP.

mod commit;
mod database;
mod feedback;
mod routes;
mod store;
mod tables;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Router;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use self::commit::CommitQueue;
pub use self::commit::{CommitDelivery, CommitError, CommitReport, CommitStep, Committer};
pub use self::feedback::{Feedback, FeedbackOutcome, FeedbackReceipt};
use self::store::ServeStore;
pub use self::store::{ServeStoreCounts, ServeStoreOptions, StoreError};
use crate::http::{StoreFuture, TurnStore};
use rollway_recording::{RecordError, Turn};

/// The turn store of a gateway. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct ServeMode {
    inner: Arc<ServeModeState>,
}

#[derive(Debug)]
struct ServeModeState {
    needs_key: bool,
    store: ServeStore,
    commits: CommitQueue,
}

impl ServeMode {
    /// Opens the store, or creates it.
    pub async fn open(
        options: ServeStoreOptions,
        committer: Arc<dyn Committer>,
    ) -> Result<Self, StoreError> {
        let needs_key = options.needs_key;
        let store = ServeStore::open(options).await?;
        let commits = CommitQueue::new(store.clone(), committer);
        Ok(Self { inner: Arc::new(ServeModeState { needs_key, store, commits }) })
    }

    /// Delivers a step that was fixed but not finished. Queued feedback waits for a commit.
    pub async fn resume(&self) -> Result<CommitReport, CommitError> {
        self.inner.commits.resume().await
    }

    /// Stores the turns of a response durably.
    pub async fn store_turns(&self, turns: &[Turn]) -> Result<(), StoreError> {
        self.inner.store.store_turns(turns).await
    }

    /// Applies feedback, in one transaction.
    pub async fn feedback(&self, feedback: Feedback) -> Result<FeedbackOutcome, StoreError> {
        self.inner.store.run(move |tables| tables.feedback(&feedback)).await
    }

    /// Delivers all queued feedback as one step.
    pub async fn commit(&self) -> Result<CommitReport, CommitError> {
        self.inner.commits.commit().await
    }

    pub fn counts(&self) -> ServeStoreCounts {
        self.inner.store.counts()
    }
}

impl TurnStore for ServeMode {
    fn store_turns(&self, turns: Vec<Turn>) -> StoreFuture<'_> {
        Box::pin(async move {
            let kept = self.inner.store.store_turns(&turns).await;
            kept.map_err(|error| RecordError::Misread(error.to_string()))
        })
    }

    fn needs_key(&self) -> bool {
        self.inner.needs_key
    }

    fn routes(&self) -> Router {
        routes::routes(self.clone())
    }

    fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(StoreMetrics(self.inner.store.clone())));
    }
}

/// Metrics of the store, collected at each scrape.
#[derive(Debug)]
struct StoreMetrics(ServeStore);

impl Collector for StoreMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let ServeStoreCounts { recorded, ready, step, forgotten, expired, rows, bytes, .. } =
            self.0.counts();
        let gauges = [
            ("explore_step_num", "The last step that was committed", step),
            ("ready_experience_count", "Choices that wait for a commit", ready),
            ("total_experience_count", "Choices that were ever recorded", recorded),
            ("history_rows", "Choices of which something is kept", rows),
            ("history_bytes", "Bytes of choices without feedback", bytes),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        let counters = [
            ("history_forgotten", "Committed choices whose names were removed", forgotten),
            ("history_expired", "Choices that were removed before any feedback", expired),
        ];
        for (name, help, value) in counters {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(
                name,
                help,
                None,
                counter.metric_type(),
            )?)?;
        }
        Ok(())
    }
}
