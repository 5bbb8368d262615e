//! Requests that find out the token ids of a prompt.

use serde_json::Value;

use super::{ResponseParseError, UpstreamBody};

/// Finds out the token ids of a prompt by requests to the server. The caller sends the requests.
pub trait PromptLookup: Send {
    /// Returns the first step.
    fn start(&mut self) -> Result<LookupStep, ResponseParseError>;

    /// Takes the reply to the last request, and returns the next step.
    fn reply(&mut self, reply: &Value) -> Result<LookupStep, ResponseParseError>;
}

/// A step of a [`PromptLookup`].
#[derive(Clone, Debug, PartialEq)]
pub enum LookupStep {
    /// A request whose reply is needed.
    Request(UpstreamBody),
    /// The token ids.
    Tokens(Vec<i32>),
}
