//! Temporary folder of a process. A killed process leaves its folder, which the next one removes.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use tempfile::{Builder, TempDir};

/// Beginning of the names of the folders.
const PREFIX: &str = "rollway-";

/// File that is locked while the process lives.
const LOCK: &str = "in_use.lock";

/// Maximum number of names that are searched for folders of killed processes.
const MAX_SEARCHED: usize = 100_000;

/// A folder that only this user can enter. It is removed when it is dropped.
#[derive(Debug)]
pub(super) struct TemporaryFolder {
    folder: TempDir,
    _lock: File,
}

impl TemporaryFolder {
    /// Creates a folder, and removes those of killed processes.
    pub(super) fn create() -> io::Result<Self> {
        let root = std::env::temp_dir();
        remove_abandoned(&root);
        Self::create_in(&root)
    }

    fn create_in(root: &Path) -> io::Result<Self> {
        // Without it the umask decides.
        let owner_only = Permissions::from_mode(0o700);
        let folder = Builder::new().prefix(PREFIX).permissions(owner_only).tempdir_in(root)?;
        // A folder whose lock is not complete is not taken for an abandoned one.
        let new = folder.path().join("new.lock");
        let lock = File::create(&new)?;
        lock.lock()?;
        fs::rename(&new, folder.path().join(LOCK))?;
        Ok(Self { folder, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes the folders whose processes have ended without removing them.
fn remove_abandoned(root: &Path) {
    let Ok(entries) = fs::read_dir(root) else { return };
    let user = rustix::process::getuid().as_raw();
    for entry in entries.take(MAX_SEARCHED).flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let path = entry.path();
        // Neither a link nor the folder of another user.
        let is_own = fs::symlink_metadata(&path).is_ok_and(|it| it.is_dir() && it.uid() == user);
        let lock = is_own.then(|| File::open(path.join(LOCK)));
        if let Some(Ok(lock)) = lock
            && lock.try_lock().is_ok()
        {
            tracing::debug!(folder = %path.display(), "folder of a killed process removed");
            let _ = fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_killed_processes_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let used = TemporaryFolder::create_in(root.path()).unwrap();
        assert_eq!(fs::metadata(used.path()).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(used.path().join(LOCK).exists());
        // The lock ends with the process, the folder does not.
        let abandoned = root.path().join("rollway-killed");
        let elsewhere = root.path().join("elsewhere");
        let foreign = root.path().join("rollway-foreign");
        for path in [&abandoned, &elsewhere, &foreign] {
            fs::create_dir(path).unwrap();
        }
        for path in [&abandoned, &elsewhere] {
            fs::write(path.join(LOCK), "").unwrap();
        }
        std::os::unix::fs::symlink(&elsewhere, root.path().join("rollway-link")).unwrap();
        remove_abandoned(root.path());
        assert!(!abandoned.exists());
        assert!(used.path().exists() && foreign.exists() && elsewhere.exists());
    }
}
