//! Errors of the log.

use std::io;
use std::path::{Path, PathBuf};

/// Error of opening, writing or reading a log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("cannot {doing} {}: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "{} is in use by {holder}; stop that process, or use another folder", path.display()
    )]
    Locked { path: PathBuf, holder: String },
    #[error(
        "{} is not part of a Rollway log ({found}); move it away, or use another folder",
        path.display()
    )]
    Foreign { path: PathBuf, found: String },
    #[error(
        "{} has format version {found}, and this program reads versions up to {known}; open it \
         with the release that wrote it, or a newer one",
        path.display()
    )]
    Version { path: PathBuf, found: u32, known: u32 },
    #[error(
        "{} has the {what} {found:?}, not {expected:?}; use the folder of {expected:?}",
        path.display()
    )]
    Other {
        path: PathBuf,
        /// `kind` or `identity`.
        what: &'static str,
        found: String,
        expected: String,
    },
    #[error(
        "{} is missing; restore it: its content cannot be recovered otherwise",
        path.display()
    )]
    Missing { path: PathBuf },
    #[error(
        "{} is damaged at byte {at}: {found}; restore the file from a copy, or move the whole \
         folder away to start over without its content",
        path.display()
    )]
    Damaged { path: PathBuf, at: u64, found: String },
    /// Acknowledged frames are missing at the end.
    #[error(
        "{} ends at offset {end}, but everything up to {acknowledged} was acknowledged: its end \
         was cut off, or later segments were removed; restore them from a copy, or remove {} to go \
         on without what is missing", path.display(), record.display()
    )]
    Short {
        /// The last segment.
        path: PathBuf,
        end: u64,
        acknowledged: u64,
        /// File with the end of the acknowledged frames.
        record: PathBuf,
    },
    #[error("a frame of {bytes} bytes is larger than frame_bytes_max = {max}")]
    TooLarge { bytes: u64, max: u32 },
    #[error("there is no durable frame at offset {offset}: the log holds {first} to {durable}")]
    NotThere { offset: u64, first: u64, durable: u64 },
    #[error("the log was closed")]
    Closed,
}

impl LogError {
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }

    pub(super) fn damaged(path: &Path, at: u64, found: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), at, found: found.into() }
    }
}
