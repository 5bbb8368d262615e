//! Batches of earlier processes, restored from the ledger.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rollway_core::{BatchId, BatchResult};
use rollway_engine::RestoreReport;

/// Batches that need not be submitted again, and results that need no wait.
#[derive(Debug, Default)]
pub(super) struct RestoredBatches {
    /// Unfinished batches and their number of tasks.
    active: HashMap<BatchId, usize>,
    ended: HashMap<BatchId, Arc<BatchResult>>,
    /// Newest version of the weights in the ledger.
    version: AtomicU64,
}

impl RestoredBatches {
    pub(super) fn new(restored: RestoreReport) -> Self {
        let active = restored.batches.into_iter().map(|it| (it.batch, it.tasks)).collect();
        // Of several uses of a batch id the last counts.
        let ended = restored.results.into_iter().map(|it| (it.batch.clone(), it)).collect();
        Self { active, ended, version: AtomicU64::new(restored.version) }
    }

    /// Advances the version. Returns false for an old one: versions in the ledger never decrease,
    /// though servers may get the older weights of a resumed job.
    pub(super) fn advance_version(&self, version: u64) -> bool {
        self.version.fetch_max(version, Ordering::Relaxed) < version
    }

    /// Returns the number of tasks of a batch. `None`: the ledger does not have it.
    pub(super) fn tasks(&self, batch: &BatchId) -> Option<usize> {
        let ended = || self.ended.get(batch).map(|it| it.tasks.total() as usize);
        self.active.get(batch).copied().or_else(ended)
    }

    pub(super) fn is_active(&self, batch: &BatchId) -> bool {
        self.active.contains_key(batch)
    }

    pub(super) fn result(&self, batch: &BatchId) -> Option<&Arc<BatchResult>> {
        // An active batch is a later use of the id.
        self.ended.get(batch).filter(|_| !self.is_active(batch))
    }
}
