//! Discovery of the newest weights in a folder of checkpoints.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::weight_folder::{LATEST, latest, weights};

/// The newest weights of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewestWeights {
    /// Model version.
    pub version: u64,
    /// Folder of the weights, as the inference servers see it.
    pub path: PathBuf,
}

/// A source of weights. Its methods block on disks.
pub trait WeightFinder: Debug + Send + Sync + 'static {
    /// Returns the newest weights. `None`: there are none yet.
    fn newest(&self) -> io::Result<Option<NewestWeights>>;

    /// Returns the folder whose changes announce newer weights, if there is one.
    fn folder(&self) -> Option<&Path> {
        None
    }
}

/// A folder with checkpoints: `latest_state_dict_iteration.txt` names the last complete one, which
/// is in `global_step_N`.
#[derive(Clone, Debug)]
pub struct CheckpointFolder {
    folder: PathBuf,
}

impl CheckpointFolder {
    /// Returns the source of a folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }
}

impl WeightFinder for CheckpointFolder {
    fn newest(&self) -> io::Result<Option<NewestWeights>> {
        let named = latest(&self.folder);
        let named = named.map_err(|error| io::Error::new(error.source.kind(), error))?;
        let Some(version) = named else { return Ok(None) };
        let path = weights(&self.folder, version);
        if path.try_exists()? && fs::metadata(&path)?.is_dir() {
            return Ok(Some(NewestWeights { version, path }));
        }
        let message = format!("{LATEST} names {}, which is not a folder", path.display());
        Err(io::Error::new(io::ErrorKind::NotFound, message))
    }

    fn folder(&self) -> Option<&Path> {
        Some(&self.folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_checkpoint_is_the_newest() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let source = CheckpointFolder::new(root);
        assert_eq!(source.newest().unwrap(), None);
        fs::create_dir_all(root.join("global_step_4/actor/huggingface")).unwrap();
        fs::create_dir_all(root.join("global_step_9")).unwrap();
        assert_eq!(source.newest().unwrap(), None, "incomplete without the file that names them");
        fs::write(root.join(LATEST), "4\n").unwrap();
        let path = root.join("global_step_4/actor/huggingface");
        assert_eq!(source.newest().unwrap(), Some(NewestWeights { version: 4, path }));
        fs::write(root.join(LATEST), "9").unwrap();
        let path = root.join("global_step_9");
        assert_eq!(source.newest().unwrap(), Some(NewestWeights { version: 9, path }));
        fs::write(root.join(LATEST), "10").unwrap();
        let error = source.newest().unwrap_err().to_string();
        assert!(error.contains("global_step_10"), "{error}");
        fs::write(root.join(LATEST), "").unwrap();
        source.newest().unwrap_err();
    }
}
