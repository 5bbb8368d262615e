//! Formatting of an error together with its causes.

use std::error::Error;

/// Returns the message of an error followed by those of its causes, separated by colons. A cause
/// whose message is already part of the text is left out: many errors repeat what caused them.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{message}")]
    struct Layer {
        message: &'static str,
        #[source]
        source: Option<Box<Self>>,
    }

    #[test]
    fn repeated_causes_are_left_out() {
        let root = Layer { message: "connection refused", source: None };
        let middle = Layer { message: "send: connection refused", source: Some(root.into()) };
        let top = Layer { message: "request failed", source: Some(middle.into()) };
        assert_eq!(error_chain(&top), "request failed: send: connection refused");
    }
}
