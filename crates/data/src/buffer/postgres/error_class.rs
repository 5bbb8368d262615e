//! What the errors of the server and of the way to it mean.

use std::error::Error as _;

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use super::super::BufferError;
use super::super::sql::SqlError;

/// What can be done about an error.
enum Remedy {
    /// Connect and try again.
    Reconnect,
    /// Try again on the same connection.
    Again,
    /// Nothing that this side could do.
    None,
}

pub(super) fn fault(name: &str, cause: &Error) -> SqlError {
    let (storage, message) = (name.to_owned(), describe(cause));
    let Some(state) = cause.code() else {
        // No answer: the connection is closed or was never made, or the server refused it in a way
        // that the client found wanting. An encoding error leaves the connection as it is.
        let lost = cause.is_closed() || caused_by_io(cause);
        let error = BufferError::Unavailable { storage, message };
        return SqlError { error, breaks: true, again: lost };
    };
    let (remedy, unavailable) = match state.code() {
        code if code.starts_with("08") => (Remedy::Reconnect, true),
        "57P01" | "57P02" | "57P03" | "57P05" | "53300" => (Remedy::Reconnect, true),
        "40001" | "40P01" => (Remedy::Again, true),
        code if code.starts_with("53") && code != "53100" => (Remedy::Again, true),
        // Wrong password, no such database, too slow, cancelled, a server that only reads.
        "57014" | "55P03" | "25P03" | "25006" | "3D000" => (Remedy::None, true),
        code if code.starts_with("28") => (Remedy::None, true),
        _ => (Remedy::None, false),
    };
    let error = match state {
        _ if unavailable => BufferError::Unavailable { storage, message },
        state if *state == SqlState::DISK_FULL => BufferError::Full { storage, message },
        state
            if *state == SqlState::UNDEFINED_TABLE
                || *state == SqlState::UNDEFINED_COLUMN
                || state.code().starts_with("XX") =>
        {
            BufferError::Damaged { storage, message }
        }
        _ => BufferError::Unsupported { storage, message },
    };
    SqlError {
        error,
        breaks: matches!(remedy, Remedy::Reconnect) || state.code() == "25P03",
        again: !matches!(remedy, Remedy::None),
    }
}

/// Returns a fault for something that took longer than it may; trying again would double that.
pub(super) fn late(name: &str, what: &str, seconds: f64) -> SqlError {
    let message = format!("{what} took longer than the {seconds} s that it may");
    let error = BufferError::Unavailable { storage: name.into(), message };
    SqlError { error, breaks: true, again: false }
}

/// Returns a fault for a connection that is gone.
pub(super) fn lost(name: &str, message: &str) -> SqlError {
    let error = BufferError::Unavailable { storage: name.into(), message: message.into() };
    SqlError { error, breaks: true, again: true }
}

fn describe(cause: &Error) -> String {
    match (cause.as_db_error(), cause.source()) {
        (Some(said), _) => format!("{} ({})", said.message(), said.code().code()),
        (None, Some(source)) => format!("{cause}: {source}"),
        (None, None) => cause.to_string(),
    }
}

fn caused_by_io(cause: &Error) -> bool {
    cause.source().is_some_and(|source| source.is::<std::io::Error>())
}
