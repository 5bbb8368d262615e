//! Parsed responses, independent of the server kind.

use rollway_experience::ModelVersions;
use serde_json::Value;

#[derive(Clone, Debug, PartialEq)]
pub struct ModelResponse {
    /// Response id for the client.
    pub id: String,
    pub model: String,
    /// Token ids of the prompt. `None`: not returned.
    pub prompt: Option<Vec<i32>>,
    pub choices: Vec<ResponseChoice>,
    pub end: ResponseEnd,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResponseChoice {
    /// `None`: the server did not return token ids.
    pub tokens: Option<Vec<i32>>,
    /// One per token. `None`: not returned.
    pub logprobs: Option<Vec<f32>>,
    /// Version of the weights of each token.
    pub versions: ModelVersions,
    /// `None`: the choice did not end.
    pub finish_reason: Option<String>,
    /// Message of a chat, or text.
    pub reply: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseEnd {
    Complete,
    /// The client disconnected, or the run was cancelled, before the end.
    Aborted,
}
