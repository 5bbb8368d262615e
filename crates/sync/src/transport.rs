//! Transports of weights from the trainer to the servers: what a sync method does.
//!
//! A sync method is one module here and one line in [`transport`].

mod checkpoint;
mod memory;
mod nccl;

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollway_config::{Config, SyncMethod};

use self::checkpoint::CheckpointTransport;
use self::memory::MemoryTransport;
use self::nccl::NcclTransport;
use super::checkpoints::{CheckpointFolder, WeightFinder};
use super::error::SyncError;
use super::options::SynchronizerOptions;
use super::weight_folder::CheckpointRetention;

/// Returns the transport of a sync method.
pub fn transport(method: SyncMethod) -> &'static dyn WeightTransport {
    match method {
        SyncMethod::Checkpoint => &CheckpointTransport,
        SyncMethod::Nccl => &NcclTransport,
        SyncMethod::Memory => &MemoryTransport,
    }
}

/// Returns the source of the weights that mode `serve` loads.
pub fn served_weights(config: &Config) -> Arc<dyn WeightFinder> {
    transport(config.synchronizer.sync_method).served(&config.job_dir())
}

/// Storage of the weights of a sync method.
pub trait WeightTransport: Debug + Send + Sync {
    /// Returns the folder of weights that are published as bytes, if it is not that of the job;
    /// creates it if needed. `known`: that of the last host.
    fn folder(
        &self,
        options: &SynchronizerOptions,
        known: Option<PathBuf>,
    ) -> Result<Option<PathBuf>, SyncError> {
        let _ = (options, known);
        Ok(None)
    }

    /// Returns the source of published weights in the folder. `None`: they are not in files.
    fn published(&self, folder: &Path) -> Option<CheckpointFolder> {
        Some(CheckpointFolder::new(folder))
    }

    /// Returns whether weights appear in the folder without a publish call.
    fn is_watched(&self) -> bool {
        false
    }

    /// Returns the rule for deleting published weights, given that of the configuration.
    fn retention(&self, configured: CheckpointRetention) -> CheckpointRetention {
        configured
    }

    /// Returns whether a trainer in the job publishes bytes. Otherwise it publishes a folder.
    fn is_sent_as_bytes(&self) -> bool {
        false
    }

    /// Removes what no process needs after the job.
    fn job_done(&self, folder: &Path) {
        let _ = folder;
    }

    /// Returns the source of the weights that mode `serve` loads, given the folder of the job.
    fn served(&self, job_dir: &Path) -> Arc<dyn WeightFinder> {
        Arc::new(CheckpointFolder::new(job_dir))
    }
}
