//! Method `memory`: the synchronizer holds the last weights in a folder in memory, until the job
//! ends.

use std::fs;
use std::path::{Path, PathBuf};

use rollway_base::folder::is_private_folder;

use super::WeightTransport;
use crate::error::SyncError;
use crate::options::SynchronizerOptions;
use crate::weight_folder::{self, CheckpointRetention};

/// Versions kept in memory: servers may still load the last but one.
const KEPT_VERSIONS: u32 = 2;

#[derive(Debug)]
pub(super) struct MemoryTransport;

impl WeightTransport for MemoryTransport {
    fn folder(
        &self,
        options: &SynchronizerOptions,
        known: Option<PathBuf>,
    ) -> Result<Option<PathBuf>, SyncError> {
        if let Some(folder) = known.filter(|folder| is_private_folder(folder)) {
            return Ok(Some(folder));
        }
        let created = weight_folder::create_memory(&options.memory_root);
        created.map(Some).map_err(|it| SyncError::file(&it.path, &it.source))
    }

    fn retention(&self, _: CheckpointRetention) -> CheckpointRetention {
        CheckpointRetention { max_kept: KEPT_VERSIONS, save_interval: 0 }
    }

    fn is_sent_as_bytes(&self) -> bool {
        true
    }

    fn job_done(&self, folder: &Path) {
        let _ = fs::remove_dir_all(folder);
    }
}
