//! `synchronizer.json`: the address and the secret of the synchronizer of a job.

use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use rollway_base::atomic_file::write_atomic;
use rollway_config::SyncMethod;
use serde::{Deserialize, Serialize};

use super::error::SyncError;
use super::messages::MemberStatus;
use super::weight_folder::CheckpointRetention;

/// Content of `synchronizer.json`.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct SyncAddressFile {
    /// `https://HOST:PORT#FINGERPRINT` with TLS.
    pub(super) url: String,
    pub(super) secret: String,
    pub(super) job: String,
    pub(super) method: SyncMethod,
    #[serde(default)]
    pub(super) retention: CheckpointRetention,
    /// Members that have left, for the next host.
    #[serde(default)]
    pub(super) explorers: Vec<MemberStatus>,
    #[serde(default)]
    pub(super) trainer: Option<MemberStatus>,
    /// Folder of pushed weights with method `memory`, now or in an earlier life of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) memory: Option<PathBuf>,
}

/// Without the secret.
impl fmt::Debug for SyncAddressFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncAddressFile").field("url", &self.url).finish_non_exhaustive()
    }
}

pub(super) fn file(job_dir: &Path) -> PathBuf {
    job_dir.join("synchronizer.json")
}

/// Returns the retention of weights of a job's folder; the default without a synchronizer.
pub fn retention(job_dir: &Path) -> Result<CheckpointRetention, SyncError> {
    let found = SyncAddressFile::read(&file(job_dir))?;
    Ok(found.map(|address_file| address_file.retention).unwrap_or_default())
}

impl SyncAddressFile {
    pub(super) fn read(path: &Path) -> Result<Option<Self>, SyncError> {
        match fs::read(path) {
            // Written atomically; other content is replaced by the next host.
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(SyncError::file(path, &error)),
        }
    }

    /// Writes the file atomically, readable by its owner only.
    pub(super) fn write(&self, path: &Path) -> Result<(), SyncError> {
        let write = || {
            let mut bytes = serde_json::to_vec_pretty(self).map_err(io::Error::other)?;
            bytes.push(b'\n');
            write_atomic(path, &bytes, 0o600)
        };
        write().map_err(|error| SyncError::file(path, &error))
    }
}
