//! Requests that find out the token ids of a prompt.

use serde_json::Value;

use super::{ResponseParseError, UpstreamBody};

/// Finds out the token ids of a prompt by requests to the server. The caller sends the requests.
pub trait PromptLookup: Send {
    fn start(&mut self) -> Result<LookupStep, ResponseParseError>;

    /// Takes the reply to the last request, and returns the next step.
    fn reply(&mut self, reply: &Value) -> Result<LookupStep, ResponseParseError>;
}

#[derive(Clone, Debug, PartialEq)]
pub enum LookupStep {
    Request(UpstreamBody),
    Tokens(Vec<i32>),
}
