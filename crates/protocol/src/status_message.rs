//! Formatting of gRPC errors.

use std::error::Error;

use rollway_base::error_chain;
use tonic::Status;

/// Returns the message and the causes of a stream error.
pub(crate) fn status_message(status: &Status) -> String {
    match status.source() {
        Some(cause) => format!("{}: {}", status.message(), error_chain(cause)),
        None => status.message().to_owned(),
    }
}
