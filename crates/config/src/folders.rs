//! Folders and the unique name of a job.

use std::io;
use std::path::{Path, PathBuf};

use rollway_base::folder::{FolderAccess, create_folder};

use super::{Config, JobPermissions};

impl Config {
    /// Creates the folder of the job with its permissions. Refuses one that other users can
    /// change.
    ///
    /// # Errors
    /// If the folder cannot be created, or is refused.
    pub fn create_job_dir(&self) -> io::Result<PathBuf> {
        let access = match self.permissions {
            JobPermissions::Private => FolderAccess::Private,
            JobPermissions::Group => FolderAccess::Group,
            JobPermissions::Unchecked => FolderAccess::Unchecked,
        };
        let folder = self.job_dir();
        let hint = |error: io::Error| match error.kind() {
            io::ErrorKind::PermissionDenied => {
                let message = format!("{error} (`permissions: unchecked` omits this check)");
                io::Error::new(io::ErrorKind::PermissionDenied, message)
            }
            _ => error,
        };
        create_folder(&folder, access).map_err(hint)?;
        Ok(folder)
    }

    /// Returns the folder of all files of the job.
    pub fn job_dir(&self) -> PathBuf {
        let root = match self.checkpoint_root_dir.as_str() {
            "" => "checkpoints",
            root => root,
        };
        let folder = Path::new(root).join(&self.project).join(&self.group).join(&self.name);
        std::path::absolute(&folder).unwrap_or(folder)
    }

    /// Returns the folder for files of buffers without a path.
    pub fn cache_dir(&self) -> PathBuf {
        match self.buffer.cache_dir.as_deref().filter(|folder| !folder.is_empty()) {
            Some(folder) => std::path::absolute(folder).unwrap_or_else(|_| folder.into()),
            None => self.job_dir().join("buffer"),
        }
    }

    /// Returns the unique name of the job, which prefixes the names of its write batches.
    pub fn job(&self) -> String {
        let Self { project, group, name, .. } = self;
        if group.is_empty() {
            format!("{project}/{name}")
        } else {
            format!("{project}/{group}/{name}")
        }
    }
}
