//! Token ids of a chat by one request to the server.

use super::exact_prompt::token_ids;
use super::{LookupStep, PromptLookup, ResponseParseError, UpstreamBody};
use serde_json::Value;

/// Finds out the tokens of a chat by an endpoint that renders and tokenizes messages.
pub(super) struct TokenizeLookup(pub(super) UpstreamBody);

impl PromptLookup for TokenizeLookup {
    fn start(&mut self) -> Result<LookupStep, ResponseParseError> {
        Ok(LookupStep::Request(self.0.clone()))
    }

    fn reply(&mut self, reply: &Value) -> Result<LookupStep, ResponseParseError> {
        token_ids(reply, "tokens").map(LookupStep::Tokens)
    }
}
