//! Classification of errors of the server and the connection.

use std::error::Error as _;

use tokio_postgres::Error;

use super::super::BufferError;
use super::super::sql::SqlError;

/// Message of the client library.
const NO_TLS: &str = "server does not support TLS";

pub(super) fn fault(name: &str, cause: &Error) -> SqlError {
    let message = match (cause.as_db_error(), cause.source()) {
        (Some(error), _) => format!("{} ({})", error.message(), error.code().code()),
        (None, Some(source)) if source.to_string() == NO_TLS => {
            format!(
                "{source}: switch it on (`ssl = on`), or permit clear text (`?sslmode=disable`)"
            )
        }
        (None, Some(source)) => format!("{cause}: {source}"),
        (None, None) => cause.to_string(),
    };
    let Some(state) = cause.code() else {
        // No response: the connection is closed or was never made, or the client refused it.
        let caused_by_io = cause.source().is_some_and(|source| source.is::<std::io::Error>());
        let is_retryable = cause.is_closed() || caused_by_io;
        return SqlError {
            error: BufferError::unavailable(name, message),
            breaks: true,
            is_retryable,
        };
    };
    let unavailable = |breaks, is_retryable| SqlError {
        error: BufferError::unavailable(name, message.as_str()),
        breaks,
        is_retryable,
    };
    match state.code() {
        "57P01" | "57P02" | "57P03" | "57P05" | "53300" => unavailable(true, true),
        code if code.starts_with("08") => unavailable(true, true),
        "40001" | "40P01" => unavailable(false, true),
        "53100" => BufferError::full(name, message).into(),
        code if code.starts_with("53") => unavailable(false, true),
        "25P03" => unavailable(true, false),
        // Wrong password, no such database, too slow, cancelled, a read-only server.
        "57014" | "55P03" | "25006" | "3D000" => unavailable(false, false),
        code if code.starts_with("28") => unavailable(false, false),
        // An undefined table or column, an internal error.
        "42P01" | "42703" => BufferError::damaged(name, message).into(),
        // A value that no text or number of the server can be, or a row beyond its limits.
        code if code.starts_with("22") || code == "54000" => {
            BufferError::content(name, message).into()
        }
        code if code.starts_with("XX") => BufferError::damaged(name, message).into(),
        _ => BufferError::unsupported(name, message).into(),
    }
}

/// Returns the error of an exceeded limit; a retry would double the time.
pub(super) fn timed_out(name: &str, action: &str, seconds: f64) -> SqlError {
    let message = format!("{action} took longer than the {seconds} s that it may");
    SqlError { error: BufferError::unavailable(name, message), breaks: true, is_retryable: false }
}

/// Returns the error of a lost connection.
pub(super) fn connection_lost(name: &str, message: &str) -> SqlError {
    SqlError { error: BufferError::unavailable(name, message), breaks: true, is_retryable: true }
}
