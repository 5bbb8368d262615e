//! Conversion of I/O and SQLite errors.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::buffer::{BufferError, Result};

/// Adds the storage to an error.
pub(in crate::buffer) trait IoContext<T> {
    fn at(self, storage: &str) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn at(self, storage: &str) -> Result<T> {
        self.map_err(|error| {
            let (storage, message) = (storage.to_owned(), error.to_string());
            match error.kind() {
                io::ErrorKind::StorageFull
                | io::ErrorKind::QuotaExceeded
                | io::ErrorKind::FileTooLarge => BufferError::full(storage, message),
                _ => BufferError::unavailable(storage, message),
            }
        })
    }
}

impl<T> IoContext<T> for rusqlite::Result<T> {
    fn at(self, storage: &str) -> Result<T> {
        self.map_err(|error| {
            let message = format!("its index: {error}");
            let storage = storage.to_owned();
            match error.sqlite_error_code() {
                Some(rusqlite::ErrorCode::DiskFull) => BufferError::full(storage, message),
                Some(rusqlite::ErrorCode::DatabaseCorrupt | rusqlite::ErrorCode::NotADatabase) => {
                    BufferError::damaged(storage, message)
                }
                _ => BufferError::unavailable(storage, message),
            }
        })
    }
}

/// Makes the entries of a folder durable.
pub(in crate::buffer) fn sync_folder(folder: &Path) -> io::Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    File::open(folder)?.sync_all()
}
