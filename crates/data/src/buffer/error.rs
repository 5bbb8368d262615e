//! What can go wrong with a buffer.

use rollway_experience::PayloadError;

/// What went wrong with a buffer. Nothing that was acknowledged before is lost by any of these.
#[derive(Debug, thiserror::Error)]
pub enum BufferError {
    /// The storage does not answer, or not now: it may be tried again.
    #[error("{storage} is not available: {message}")]
    Unavailable {
        /// Which storage: its address without secrets.
        storage: String,
        /// What it said.
        message: String,
    },
    /// There is no room; it may be tried again when there is.
    #[error("{storage} has no room: {message}")]
    Full {
        storage: String,
        /// Which limit.
        message: String,
    },
    /// The storage holds something that is not what we wrote.
    #[error("{storage} is damaged: {message}")]
    Damaged {
        storage: String,
        /// What was found, where.
        message: String,
    },
    /// The storage cannot do what was asked.
    #[error("{storage} cannot do this: {message}")]
    Unsupported {
        storage: String,
        /// What, and what to do instead.
        message: String,
    },
    /// The writer, the reader or the buffer was closed.
    #[error("{0} is closed")]
    Closed(String),
    /// An experience does not encode or decode.
    #[error(transparent)]
    Payload(#[from] PayloadError),
}
