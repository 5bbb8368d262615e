//! What a server's answer taught us, whatever its dialect.

use rollway_experience::ModelVersions;
use serde_json::Value;

/// An answer, gathered.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelResponse {
    /// What the client knows the answer by: the `id` in what it was given.
    pub id: String,
    /// The name of the model that answered.
    pub model: String,
    /// The ids of the prompt's tokens; none if the server does not tell.
    pub prompt: Option<Vec<i32>>,
    /// The choices, by their index.
    pub choices: Vec<ResponseChoice>,
    pub end: ResponseEnd,
}

/// One choice of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResponseChoice {
    /// The ids of the tokens; none if the server does not tell.
    pub tokens: Option<Vec<i32>>,
    /// The log-probability of each token, of the same number; none if the server does not tell.
    pub logprobs: Option<Vec<f32>>,
    /// Which version produced which token, of the same number as the tokens.
    pub versions: ModelVersions,
    /// Why it ended, as the server says; none if it did not end.
    pub finish_reason: Option<String>,
    /// What the client was told: the message of a chat, or a text.
    pub reply: Value,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseEnd {
    /// The server said all it had to say.
    Complete,
    /// The client left, or the run was cancelled, before the server was done.
    Aborted,
}
