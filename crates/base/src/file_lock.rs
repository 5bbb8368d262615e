//! Locks on files that name the process which holds them.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::Path;
use std::time::Duration;

/// Pauses between attempts to lock a file whose holder was killed, and their number.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSES: u32 = 200;

/// An exclusive lock on a file. Dropping it releases the lock; so does the end of the process,
/// however it ends.
#[derive(Debug)]
pub struct FileLock {
    file: File,
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Closing the file is not enough: a process that another thread is just starting holds a
        // copy of the descriptor, and with it the lock, until it executes its program.
        let _ = self.file.unlock();
    }
}

/// Reason why a file could not be locked.
#[derive(Debug)]
pub enum FileLockError {
    /// Another process holds the lock.
    Held {
        /// Its process id, if it could be read.
        pid: Option<u32>,
    },
    /// The file could not be opened or locked.
    Io(io::Error),
}

impl FileLock {
    /// Creates the file if needed, locks it and writes the id of this process into it. Does not
    /// wait for another process that is alive.
    ///
    /// # Errors
    /// If another process holds the lock, or if the file cannot be opened.
    pub fn acquire(path: &Path) -> Result<Self, FileLockError> {
        // No event reports the end of the copy.
        Self::acquire_between(path, || std::thread::sleep(RETRY_PAUSE))
    }

    /// Locks the file, with a pause between two attempts. A process that was killed while it
    /// started another one leaves a copy of its descriptor in there, until that executes its
    /// program or ends.
    fn acquire_between(path: &Path, mut pause: impl FnMut()) -> Result<Self, FileLockError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(path).map_err(FileLockError::Io)?;
        for pauses in 0.. {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {
                    let pid = holder(&mut file);
                    if pid.is_none_or(is_alive) || pauses == MAX_PAUSES {
                        return Err(FileLockError::Held { pid });
                    }
                    pause();
                }
                Err(TryLockError::Error(error)) => return Err(FileLockError::Io(error)),
            }
        }
        // The id only serves error messages: a full disk must not prevent the lock.
        let written = file.set_len(0).and_then(|()| file.rewind());
        let _ = written.and_then(|()| write!(file, "{}", std::process::id()));
        Ok(Self { file })
    }
}

/// Returns the process id in the file.
fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().and_then(|()| file.take(32).read_to_string(&mut text)).ok()?;
    text.trim().parse().ok()
}

fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// Shows the holder of a lock: `process 42`, or `another process`.
impl fmt::Display for FileLockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held { pid: Some(pid) } => write!(f, "process {pid}"),
            Self::Held { pid: None } => f.write_str("another process"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for FileLockError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_lock_names_the_holder_until_the_first_is_dropped() {
        let path = std::env::temp_dir().join(format!("rollway-lock-{}", std::process::id()));
        let lock = FileLock::acquire(&path).unwrap();
        let error = FileLock::acquire(&path).unwrap_err();
        assert_eq!(error.to_string(), format!("process {}", std::process::id()));
        drop(lock);
        FileLock::acquire(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn copy_of_a_killed_holder_is_waited_for() {
        let path = std::env::temp_dir().join(format!("rollway-killed-{}", std::process::id()));
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let mut copy = Some(File::create(&path).unwrap());
        copy.as_ref().unwrap().try_lock().unwrap();
        std::fs::write(&path, ended.id().to_string()).unwrap();
        FileLock::acquire_between(&path, || copy = None).unwrap();
        // At last, a copy that stays is reported.
        let stays = File::open(&path).unwrap();
        stays.try_lock().unwrap();
        std::fs::write(&path, ended.id().to_string()).unwrap();
        let mut pauses = 0;
        let error = FileLock::acquire_between(&path, || pauses += 1).unwrap_err();
        assert!(matches!(error, FileLockError::Held { pid } if pid == Some(ended.id())));
        assert_eq!(pauses, MAX_PAUSES);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn dropped_lock_is_free_although_a_copy_of_the_descriptor_is_open() {
        let path = std::env::temp_dir().join(format!("rollway-copy-{}", std::process::id()));
        let lock = FileLock::acquire(&path).unwrap();
        let copy = lock.file.try_clone().unwrap();
        drop(lock);
        FileLock::acquire(&path).unwrap();
        drop(copy);
        std::fs::remove_file(&path).unwrap();
    }
}
