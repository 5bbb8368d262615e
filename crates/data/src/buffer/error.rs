//! Errors of buffers.

use rollway_experience::PayloadError;

/// Error of a buffer. Acknowledged data is never lost by it.
#[derive(Debug, thiserror::Error)]
pub enum BufferError {
    /// The storage does not respond; a retry may succeed.
    #[error("{storage} is not available: {message}")]
    Unavailable {
        /// Address without secrets.
        storage: String,
        message: String,
    },
    /// The storage is full; a retry may succeed once there is room.
    #[error("{storage} has no room: {message}")]
    Full { storage: String, message: String },
    /// The storage holds unexpected data.
    #[error("{storage} is damaged: {message}")]
    Damaged { storage: String, message: String },
    /// The storage does not support the request.
    #[error("{storage} cannot do this: {message}")]
    Unsupported { storage: String, message: String },
    /// The storage refuses a value of the written experiences; a retry fails again.
    #[error("{storage} does not take these experiences: {message}")]
    Content { storage: String, message: String },
    /// The writer, the reader or the buffer was closed.
    #[error("{0} is closed")]
    Closed(String),
    #[error(transparent)]
    Payload(#[from] PayloadError),
}

impl BufferError {
    pub(crate) fn unavailable(storage: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Unavailable { storage: storage.into(), message: message.into() }
    }

    pub(crate) fn full(storage: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Full { storage: storage.into(), message: message.into() }
    }

    pub(crate) fn damaged(storage: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Damaged { storage: storage.into(), message: message.into() }
    }

    pub(crate) fn unsupported(storage: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Unsupported { storage: storage.into(), message: message.into() }
    }

    pub(crate) fn content(storage: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Content { storage: storage.into(), message: message.into() }
    }
}
