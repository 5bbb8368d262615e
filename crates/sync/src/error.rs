//! Errors of the synchronizer, and of one request to its host.

use std::path::{Path, PathBuf};

#[derive(Clone, Debug, thiserror::Error)]
pub enum SyncError {
    /// The address is invalid or in use.
    #[error("{0}")]
    Address(String),
    #[error("{0}")]
    Unreachable(String),
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Weights(String),
    #[error("{}: {problem}", path.display())]
    File { path: PathBuf, problem: String },
}

impl SyncError {
    pub(super) fn file(path: &Path, error: &dyn std::fmt::Display) -> Self {
        Self::File { path: path.into(), problem: error.to_string() }
    }
}

/// Error of one request to the host.
#[derive(Clone, Debug)]
pub(super) enum SyncLinkError {
    /// The host is gone or ends.
    Unreachable(String),
    Refused(SyncError),
}

pub(super) type SyncReply<T> = Result<T, SyncLinkError>;
