//! Errors of the synchronizer, and of one request to its host.

use std::path::{Path, PathBuf};

/// Why the synchronizer could not be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SyncError {
    /// Its address is none, or is taken.
    #[error("{0}")]
    Address(String),
    /// It does not answer.
    #[error("{0}")]
    Unreachable(String),
    /// It said no.
    #[error("{0}")]
    Refused(String),
    /// Weights that cannot be used.
    #[error("{0}")]
    Weights(String),
    /// A file of its own cannot be read or written.
    #[error("{}: {problem}", path.display())]
    File {
        path: PathBuf,
        /// What is the matter.
        problem: String,
    },
}

impl SyncError {
    pub(super) fn file(path: &Path, error: &dyn std::fmt::Display) -> Self {
        Self::File { path: path.into(), problem: error.to_string() }
    }
}

/// Why an answer is none.
#[derive(Clone, Debug)]
pub(super) enum SyncLinkError {
    /// The host is gone, or goes; in words.
    Gone(String),
    /// It said no.
    Refused(SyncError),
}

pub(super) type SyncReply<T> = Result<T, SyncLinkError>;
