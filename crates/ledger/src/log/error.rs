//! What can go wrong with a log, in words that name the file and the remedy.

use std::io;
use std::path::{Path, PathBuf};

/// Why a log could not be opened, written or read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The operating system said no.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// Somebody has it open.
    #[error(
        "{} is in use by {holder}; stop that process, or use another folder", path.display()
    )]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// The process, as far as known.
        holder: String,
    },
    /// A file that no log of ours wrote.
    #[error(
        "{} is not part of a Rollway log ({found}); move it away, or use another folder",
        path.display()
    )]
    Foreign {
        /// Which file.
        path: PathBuf,
        found: String,
    },
    /// A newer program wrote it.
    #[error(
        "{} has format version {found}, and this program knows versions up to {known}; open it \
         with \
         the program that wrote it, or a newer one",
        path.display()
    )]
    Version {
        /// Which file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest that is known here.
        known: u32,
    },
    /// It belongs to somebody else.
    #[error(
        "{} has the {what} {found:?}, not {expected:?}; use the folder of {expected:?}",
        path.display()
    )]
    Other {
        /// Which file.
        path: PathBuf,
        /// What differs: `kind` or `identity`.
        what: &'static str,
        /// What it says.
        found: String,
        /// What was asked for.
        expected: String,
    },
    /// A segment is not there.
    #[error(
        "{} is missing; restore it from where it went: what was in it cannot be made up for",
        path.display()
    )]
    Missing {
        /// Which file.
        path: PathBuf,
    },
    /// The bytes are not those that were written.
    #[error(
        "{} is damaged at byte {at}: {found}; restore the file from a copy, or move the whole \
         folder \
         away to begin anew without what it holds",
        path.display()
    )]
    Damaged {
        /// Which file.
        path: PathBuf,
        at: u64,
        /// What is wrong.
        found: String,
    },
    /// One frame is larger than a frame may be.
    #[error("a frame of {bytes} bytes is larger than frame_bytes_max = {max}")]
    TooLarge {
        /// How large it is.
        bytes: u64,
        /// How large it may be.
        max: u32,
    },
    /// There is no durable frame at a position.
    #[error("there is no durable frame at offset {offset}: the log holds {first} to {durable}")]
    NotThere {
        /// Where it was looked for.
        offset: u64,
        /// Where the log begins.
        first: u64,
        /// Where its durable part ends.
        durable: u64,
    },
    /// The log was closed before an answer came.
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
