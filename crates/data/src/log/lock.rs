//! One opener at a time.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;

use super::error::LogError;

/// The name of the lock file.
pub(super) const NAME: &str = "lock";

/// Held as long as the log is open. The system releases it when the process dies, however it dies.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "it is held, not used")] File);

impl Lock {
    pub(super) fn take(dir: &Path) -> Result<Self, LogError> {
        let path = dir.join(NAME);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(&path).map_err(LogError::io("open", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // Who holds it is a help for people; it may be unreadable while it is written.
                let _ = file.read_to_string(&mut holder);
                let holder = match holder.trim() {
                    "" => "another process".to_owned(),
                    pid => format!("process {pid}"),
                };
                return Err(LogError::Locked { path, holder });
            }
            Err(TryLockError::Error(source)) => {
                return Err(LogError::io("lock", &path)(source));
            }
        }
        // A help for people again, and no reason not to open: the disk may be full.
        let written = file.set_len(0).and_then(|()| file.rewind());
        let _ = written.and_then(|()| write!(file, "{}", std::process::id()));
        Ok(Self(file))
    }
}
