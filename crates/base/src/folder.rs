//! Creation of folders with access rights.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

/// Users that may access a folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FolderAccess {
    /// Its owner.
    #[default]
    Private,
    /// Its owner, and its group for reading.
    Group,
    /// Those of the umask; owner and rights of an existing folder are not checked.
    Unchecked,
}

impl FolderAccess {
    const fn mode(self) -> u32 {
        match self {
            Self::Private => 0o700,
            Self::Group => 0o750,
            Self::Unchecked => 0o777,
        }
    }
}

/// Creates a folder, and its parents with the rights of the umask. An existing folder keeps its
/// rights, but must belong to this user and not be writable by all users: its files are trusted.
///
/// # Errors
/// If the folder cannot be created, or other users can change its files.
pub fn create_folder(path: &Path, access: FolderAccess) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(access.mode()).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        created => return created,
    }
    if access == FolderAccess::Unchecked {
        return Ok(());
    }
    let mode = check_owner(path)?;
    if access == FolderAccess::Group && mode & 0o050 != 0o050 {
        fs::set_permissions(path, Permissions::from_mode(mode | 0o050))?;
    }
    Ok(())
}

/// Creates a missing folder for its owner alone. An existing one is not checked.
///
/// # Errors
/// If the folder cannot be created.
pub fn create_missing_folder(path: &Path) -> io::Result<()> {
    if path.is_dir() { Ok(()) } else { create_folder(path, FolderAccess::Private) }
}

/// Tells whether a folder, not a symbolic link to one, can be accessed by this user only.
pub fn is_private_folder(path: &Path) -> bool {
    let found = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_dir);
    found.is_some() && check_owner(path).is_ok_and(|mode| mode & 0o077 == 0)
}

/// Returns the mode of a folder of this user.
fn check_owner(path: &Path) -> io::Result<u32> {
    let found = fs::metadata(path)?;
    let (owner, user) = (found.uid(), rustix::process::geteuid().as_raw());
    if owner != user {
        let message = format!("the folder belongs to user {owner}, not to user {user}");
        return Err(refused(&message));
    }
    let mode = found.mode() & 0o7777;
    if mode & 0o002 != 0 {
        let message = format!("all users can change the folder (mode {mode:o}); chmod o-w it");
        return Err(refused(&message));
    }
    Ok(mode)
}

fn refused(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn folders_get_the_rights_of_their_access() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("project/job");
        create_folder(&path, FolderAccess::Private).unwrap();
        assert_eq!(mode(&path), 0o700);
        create_folder(&path, FolderAccess::Group).unwrap();
        assert_eq!(mode(&path), 0o750);
        set_mode(&path, 0o755);
        create_folder(&path, FolderAccess::Private).unwrap();
        assert_eq!(mode(&path), 0o755, "the choice of the operator is kept");
    }

    #[test]
    fn folders_that_all_users_can_change_are_refused_unless_unchecked() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("job");
        create_folder(&path, FolderAccess::Private).unwrap();
        set_mode(&path, 0o777);
        let error = create_folder(&path, FolderAccess::Private).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        create_folder(&path, FolderAccess::Unchecked).unwrap();
        // The folder for temporary files is the example of a folder of another user, or of all.
        assert!(create_folder(Path::new("/tmp"), FolderAccess::Group).is_err());
    }

    #[test]
    fn private_folders_are_neither_links_nor_readable_by_others() {
        let root = tempfile::tempdir().unwrap();
        let (path, link) = (root.path().join("weights"), root.path().join("link"));
        create_folder(&path, FolderAccess::Private).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(is_private_folder(&path) && !is_private_folder(&link));
        set_mode(&path, 0o750);
        assert!(!is_private_folder(&path));
    }
}
