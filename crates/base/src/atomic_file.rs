//! Small files that a reader sees whole or not at all.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
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

/// Returns the secret in a file, and takes the file from other users; creates the file with a
/// random secret if it does not exist.
pub fn load_or_create_secret(path: &Path) -> Result<Secret, FileError> {
    let fail = |error: &dyn std::fmt::Display| FileError::new(path, error);
    match fs::read_to_string(path) {
        Ok(text) if !text.trim().is_empty() => {
            let metadata = fs::metadata(path).map_err(|error| fail(&error))?;
            if metadata.permissions().mode() & 0o077 != 0 {
                let owner_only = Permissions::from_mode(0o600);
                fs::set_permissions(path, owner_only).map_err(|error| fail(&error))?;
            }
            Secret::chosen(&text).map_err(|error| fail(&error))
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
    // A random name that must not exist: another user may have prepared a predictable one.
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", &Secret::random()?.reveal()[..16]));
    let new = PathBuf::from(name);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    if let Err(error) = written.and_then(|()| fs::rename(&new, path)) {
        let _ = fs::remove_file(&new);
        return Err(error);
    }
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_made_once_and_taken_from_other_users() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret.txt");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        let made = load_or_create_secret(&path).unwrap();
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(load_or_create_secret(&path).unwrap(), made);
        assert_eq!(mode(), 0o600);
        fs::write(&path, "put-a-long-random-text-here\n").unwrap();
        let error = load_or_create_secret(&path).unwrap_err().to_string();
        assert!(error.contains("example of the documentation"), "{error}");
    }

    #[test]
    fn predictable_names_are_not_followed_and_failures_leave_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let (path, victim) = (folder.path().join("state.json"), folder.path().join("victim"));
        fs::write(&victim, "mine").unwrap();
        let predictable = folder.path().join(format!("state.json.{}", std::process::id()));
        std::os::unix::fs::symlink(&victim, predictable).unwrap();
        write_atomic(&path, b"new", 0o600).unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"mine");
        assert_eq!(fs::read(&path).unwrap(), b"new");
        // A folder cannot be replaced by a file.
        fs::create_dir_all(folder.path().join("taken/inner")).unwrap();
        let before = fs::read_dir(folder.path()).unwrap().count();
        assert!(write_atomic(&folder.path().join("taken"), b"new", 0o600).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), before);
    }

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
