//! A file that tells other processes how to reach a running job.

use std::io;
use std::path::PathBuf;

use crate::atomic_file::write_line;

/// A written address file. Dropping it removes the file unless another process has replaced it.
#[derive(Debug)]
pub struct AddressFile {
    path: PathBuf,
    text: String,
}

impl AddressFile {
    /// Writes the file, readable by its owner only.
    pub fn create(path: PathBuf, text: String) -> io::Result<Self> {
        write_line(&path, &text, true).map_err(io::Error::other)?;
        Ok(Self { path, text })
    }
}

impl Drop for AddressFile {
    fn drop(&mut self) {
        if std::fs::read_to_string(&self.path).is_ok_and(|text| text.trim() == self.text) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
