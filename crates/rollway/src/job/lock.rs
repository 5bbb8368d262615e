//! Locks in the folder of a job, one per member, so that no member runs twice.

use std::path::Path;

use super::preflight_error::PreflightError;
use rollway_base::{FileLock, FileLockError};

/// Locks the name of a member in a folder.
pub(super) fn acquire(folder: &Path, name: &str) -> Result<FileLock, PreflightError> {
    let path = folder.join(format!("{name}.lock"));
    let hint = "make the folder writable, or set `checkpoint_root_dir`";
    FileLock::acquire(&path).map_err(|error| match error {
        FileLockError::Io(error) => {
            PreflightError::new(format!("{} cannot be written: {error}", path.display()), hint)
        }
        FileLockError::Held { pid } => running(folder, name, pid),
    })
}

fn running(folder: &Path, name: &str, pid: Option<u32>) -> PreflightError {
    let process = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
    let message =
        format!("`{name}` of the job in {} is already running{process}", folder.display());
    PreflightError::new(
        message,
        "wait for it or end it; another job needs another `name`, another explorer of the same \
         job another `explorer.name`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_locked_until_the_lock_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let lock = acquire(folder.path(), "explorer").unwrap();
        let error = acquire(folder.path(), "explorer").unwrap_err();
        assert!(error.message.contains(&std::process::id().to_string()), "{error}");
        let other = acquire(folder.path(), "other").unwrap();
        drop((lock, other));
        acquire(folder.path(), "explorer").unwrap();
    }
}
