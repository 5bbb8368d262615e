//! Locks in the folder of a job, one per member, so that no member runs twice.

use std::fs;
use std::path::Path;

use super::preflight_error::PreflightError;
use rollway_base::{FileLock, FileLockError};

/// Locks the name of a member in a folder.
pub(super) fn acquire(folder: &Path, name: &str) -> Result<FileLock, PreflightError> {
    let path = folder.join(format!("{name}.lock"));
    let hint = "see that the folder can be written to, or set `checkpoint_root_dir`";
    fs::create_dir_all(folder).map_err(|error| {
        PreflightError::new(format!("{} cannot be made: {error}", folder.display()), hint)
    })?;
    FileLock::acquire(&path).map_err(|error| match error {
        FileLockError::Io(error) => {
            PreflightError::new(format!("{} cannot be written: {error}", path.display()), hint)
        }
        FileLockError::Held { pid } => running(folder, name, pid),
    })
}

fn running(folder: &Path, name: &str, pid: Option<u32>) -> PreflightError {
    let process = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
    let what = format!("`{name}` of the job in {} is running already{process}", folder.display());
    PreflightError::new(
        what,
        "wait for it or end it; another job needs another `name`, another explorer of the same \
         job another `explorer.name`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_until_it_is_let_go() {
        let folder = tempfile::tempdir().unwrap();
        let lock = acquire(folder.path(), "explorer").unwrap();
        let trouble = acquire(folder.path(), "explorer").unwrap_err();
        assert!(trouble.what.contains(&std::process::id().to_string()), "{trouble}");
        let other = acquire(folder.path(), "other").unwrap();
        drop((lock, other));
        acquire(folder.path(), "explorer").unwrap();
    }
}
