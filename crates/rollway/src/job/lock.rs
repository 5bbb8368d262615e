//! One process at a time: whoever works in a job's folder holds a lock under its name.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::Path;

use super::preflight_error::Trouble;

/// A lock, which ends with this or with the process.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of somebody in a folder, or says who has it.
    pub(super) fn take(folder: &Path, name: &str) -> Result<Self, Trouble> {
        let path = folder.join(format!("{name}.lock"));
        let hint = "see that the folder can be written to, or set `checkpoint_root_dir`";
        let failed = |error: std::io::Error| {
            Trouble::new(format!("{} cannot be written: {error}", path.display()), hint)
        };
        fs::create_dir_all(folder).map_err(|error| {
            Trouble::new(format!("{} cannot be made: {error}", folder.display()), hint)
        })?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(taken(&mut file, folder, name)),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let put = |file: &mut File| {
            file.set_len(0)?;
            writeln!(file, "{}", std::process::id())
        };
        put(&mut file).map_err(failed)?;
        Ok(Self { _file: file })
    }
}

fn taken(file: &mut File, folder: &Path, name: &str) -> Trouble {
    let mut process = String::new();
    let _ = file.rewind().and_then(|()| file.take(32).read_to_string(&mut process));
    let process = match process.trim() {
        "" => String::new(),
        number => format!(" (process {number})"),
    };
    let what = format!("`{name}` of the job in {} is running already{process}", folder.display());
    Trouble::new(
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
        let lock = Lock::take(folder.path(), "explorer").unwrap();
        let trouble = Lock::take(folder.path(), "explorer").unwrap_err();
        assert!(trouble.what.contains(&std::process::id().to_string()), "{trouble}");
        let other = Lock::take(folder.path(), "other").unwrap();
        drop((lock, other));
        Lock::take(folder.path(), "explorer").unwrap();
    }
}
