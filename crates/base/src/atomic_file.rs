//! Small files that a reader sees whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::Secret;

/// Error of reading or writing a small file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", path.display())]
pub struct FileError {
    pub path: PathBuf,
    pub message: String,
}

impl FileError {
    fn new(path: &Path, error: &dyn std::fmt::Display) -> Self {
        Self { path: path.into(), message: error.to_string() }
    }
}

/// Returns the secret in a file; creates the file with a random secret if it does not exist.
pub fn load_or_create_secret(path: &Path) -> Result<Secret, FileError> {
    let fail = |error: &dyn std::fmt::Display| FileError::new(path, error);
    match fs::read_to_string(path) {
        Ok(text) if !text.trim().is_empty() => {
            Secret::new(text.trim()).map_err(|error| fail(&error))
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(fail(&error)),
        _ => {
            let secret = Secret::random().map_err(|error| fail(&error))?;
            write_line(path, secret.reveal(), true)?;
            Ok(secret)
        }
    }
}

/// Writes one line to a file atomically. A secret is readable by its owner only.
pub fn write_line(path: &Path, line: &str, is_secret: bool) -> Result<(), FileError> {
    let mode = if is_secret { 0o600 } else { 0o644 };
    write_atomic(path, format!("{line}\n").as_bytes(), mode)
        .map_err(|error| FileError::new(path, &error))
}

/// Replaces a file atomically: a reader sees the earlier content or the whole new content. The new
/// content is on disk when this returns.
pub fn write_atomic(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    fs::create_dir_all(folder)?;
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let new = PathBuf::from(name);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(mode);
    let mut file = options.open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn secret_file_is_created_once_and_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job/key.txt");
        let first = load_or_create_secret(&path).unwrap();
        assert_eq!(load_or_create_secret(&path).unwrap(), first);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }
}
