//! One opener at a time.

use std::path::Path;

use rollway_base::{FileLock, FileLockError};

use super::error::LogError;

/// The name of the lock file.
pub(super) const NAME: &str = "lock";

/// Locks the folder of a log.
pub(super) fn acquire(dir: &Path) -> Result<FileLock, LogError> {
    let path = dir.join(NAME);
    FileLock::acquire(&path).map_err(|error| match error {
        FileLockError::Io(source) => LogError::io("lock", &path)(source),
        held @ FileLockError::Held { .. } => LogError::Locked { path, holder: held.to_string() },
    })
}
