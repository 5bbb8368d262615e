//! What a process was executing when it died: a byte for each of its runners, in a file that the
//! process writes and that outlives it.
//!
//! A runner whose workflow merely waits is not marked. So a process that runs many workflows in one
//! event loop and is ended by one of them names it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The marks of one process. The file is removed with this.
#[derive(Debug)]
pub(super) struct ExecutionMarks(PathBuf);

impl ExecutionMarks {
    /// Makes a file with room for a number of runners.
    pub(super) fn new(path: PathBuf, runners: u32) -> io::Result<Self> {
        fs::write(&path, vec![0; runners as usize])?;
        Ok(Self(path))
    }

    /// Returns where the process finds it.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns which runner was executing, by its place, if it was exactly one.
    pub(super) fn culprit(&self) -> Option<u32> {
        let marks = fs::read(&self.0).ok()?;
        let mut marked = marks.iter().zip(0..).filter(|(mark, _)| **mark != 0);
        match (marked.next(), marked.next()) {
            (Some((_, place)), None) => Some(place),
            _ => None,
        }
    }
}

impl Drop for ExecutionMarks {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
