//! What the ledger knew of an earlier process's batches when this one began.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rollway_core::{BatchId, BatchResult};
use rollway_engine::RestoreReport;

/// Batches that need not be submitted, and results that need not be waited for.
#[derive(Debug, Default)]
pub(super) struct RestoredBatches {
    /// Batches that go on, and how many tasks they have.
    active: HashMap<BatchId, usize>,
    ended: HashMap<BatchId, Arc<BatchResult>>,
    /// The newest version of the weights that it has noted.
    version: AtomicU64,
}

impl RestoredBatches {
    pub(super) fn new(restored: RestoreReport) -> Self {
        let active = restored.batches.into_iter().map(|it| (it.batch, it.tasks)).collect();
        // Of several lives of a name the last counts.
        let ended = restored.results.into_iter().map(|it| (it.batch.clone(), it)).collect();
        Self { active, ended, version: AtomicU64::new(restored.version) }
    }

    /// Tells whether a version is news for the ledger, which it then is no more: versions in it do
    /// not go backwards, though servers may be given the weights back that the job was at.
    pub(super) fn is_news(&self, version: u64) -> bool {
        self.version.fetch_max(version, Ordering::Relaxed) < version
    }

    /// Returns how many tasks a batch has; none if it is not known.
    pub(super) fn tasks(&self, batch: &BatchId) -> Option<usize> {
        let ended = || self.ended.get(batch).map(|it| it.tasks.total() as usize);
        self.active.get(batch).copied().or_else(ended)
    }

    /// Tells whether a batch goes on.
    pub(super) fn is_active(&self, batch: &BatchId) -> bool {
        self.active.contains_key(batch)
    }

    /// Returns the result of a batch that has ended.
    pub(super) fn result(&self, batch: &BatchId) -> Option<&Arc<BatchResult>> {
        // One that goes on is a later life of the name.
        self.ended.get(batch).filter(|_| !self.is_active(batch))
    }
}
