//! Errors of others, told down to the cause.

use std::error::Error;

use tonic::Status;

/// Returns what broke a stream.
pub(crate) fn status(status: &Status) -> String {
    with_causes(status.message().to_owned(), status)
}

/// Returns an error and its causes.
pub(crate) fn causes(error: &dyn Error) -> String {
    with_causes(error.to_string(), error)
}

fn with_causes(mut words: String, error: &dyn Error) -> String {
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // Many errors repeat what is below them.
        if !words.contains(&next) {
            words = format!("{words}: {next}");
        }
        cause = error.source();
    }
    words
}
