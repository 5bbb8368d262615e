//! Serve mode: agents elsewhere call the gateway, give feedback, and commit.
//!
//! What the trained model says is in a database before the client hears the end of it. Feedback
//! gives recorded choices a reward, each once, and queues them. A commit makes one step of all that
//! is queued and hands it to a [`Committer`], each once. All of it survives `kill -9`.
//!
//! [`ServeMode`] is what a gateway is started with. `store.rs` has the thread that talks to the
//! database, `tables.rs` and `file.rs` what is in it, `feedback.rs` and `commit.rs` the two
//! requests, `routes.rs` their HTTP.

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
use crate::http::{KeepFuture, TurnStore};
use crate::recording::{RecordError, Turn};

/// Serve mode behind its gateway. Clones are the same.
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
    /// Opens what was recorded, or begins anew.
    pub async fn open(
        options: ServeStoreOptions,
        committer: Arc<dyn Committer>,
    ) -> Result<Self, StoreError> {
        let needs_key = options.needs_key;
        let store = ServeStore::open(options).await?;
        let commits = CommitQueue::new(store.clone(), committer);
        Ok(Self { inner: Arc::new(ServeModeState { needs_key, store, commits }) })
    }

    /// Delivers the step that a commit has fixed and not finished, if there is one. Feedback that
    /// waits stays for a commit.
    pub async fn resume(&self) -> Result<CommitReport, CommitError> {
        self.inner.commits.resume().await
    }

    /// Keeps the turns of an answer: when this has gone well, nothing loses them.
    pub async fn keep(&self, turns: &[Turn]) -> Result<(), StoreError> {
        self.inner.store.keep(turns).await
    }

    /// Takes feedback, in one transaction.
    pub async fn feedback(&self, feedback: Feedback) -> Result<FeedbackOutcome, StoreError> {
        self.inner.feedback(feedback).await
    }

    /// Makes one step of all feedback that waits.
    pub async fn commit(&self) -> Result<CommitReport, CommitError> {
        self.inner.commit().await
    }

    /// What there is, in numbers.
    pub fn counts(&self) -> ServeStoreCounts {
        self.inner.store.counts()
    }
}

impl ServeModeState {
    async fn feedback(&self, feedback: Feedback) -> Result<FeedbackOutcome, StoreError> {
        self.store.feedback(feedback).await
    }

    async fn commit(&self) -> Result<CommitReport, CommitError> {
        self.commits.commit().await
    }
}

impl TurnStore for ServeMode {
    fn keep(&self, turns: Vec<Turn>) -> KeepFuture<'_> {
        Box::pin(async move {
            let kept = self.inner.store.keep(&turns).await;
            kept.map_err(|error| RecordError::Misread(error.to_string()))
        })
    }

    fn needs_key(&self) -> bool {
        self.inner.needs_key
    }

    fn routes(&self) -> Router {
        routes::routes(Arc::clone(&self.inner))
    }

    fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(Numbers(self.inner.store.clone())));
    }
}

/// The numbers of the history, as they are when somebody asks.
#[derive(Debug)]
struct Numbers(ServeStore);

impl Collector for Numbers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let ServeStoreCounts { recorded, ready, step, forgotten, expired, rows, bytes } =
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
