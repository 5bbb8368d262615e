//! APIs of inference servers: request bodies, response parsing and control endpoints.
//!
//! A server kind is one module here and one line in [`server_api`].

mod chunk_parser;
mod client_reply;
mod control;
mod exact_prompt;
mod json_fields;
mod llama_cpp;
mod load;
mod openai;
mod response_builder;
mod sglang;
mod synthesize_stream;
mod token_count;
mod vllm;

#[cfg(test)]
mod tests;

use std::fmt::Debug;

use bytes::Bytes;
use rollway_base::ServerKind;
use serde_json::Value;

pub use self::control::{ControlEndpoint, ControlStep, EndpointPurpose, PauseMode, WeightControl};
pub use self::exact_prompt::{ChatReason, ExactPrompt, ExactStep, RecordedPrefix};
pub use self::load::{LoadMetrics, ServerLoad};
use crate::model_call::{CallKind, ModelCall};
use crate::response::{ModelResponse, ResponseEnd};

/// Returns the API of a kind of server.
pub fn server_api(kind: ServerKind) -> &'static dyn ServerApi {
    match kind {
        ServerKind::Vllm => &vllm::VllmApi,
        ServerKind::Sglang => &sglang::SglangApi,
        ServerKind::LlamaCpp => &llama_cpp::LlamaCppApi,
        ServerKind::Openai => &openai::OpenaiApi,
    }
}

/// Returns the requests of weight updates of a kind of server, or the reason why there are none
/// with the remedy.
pub fn weight_control(kind: ServerKind) -> Result<&'static dyn WeightControl, String> {
    server_api(kind).weight_control().map_err(|reason| {
        format!("{reason}: train with {}", ServerKind::either(ServerKind::updates_weights))
    })
}

/// A request to a server.
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamBody {
    /// Path, below the server's root: `/v1/chat/completions`.
    pub path: &'static str,
    pub body: Value,
    /// True if the response is a stream. A server that returns token ids in full responses only is
    /// sent a request for a full response even if the client requested a stream;
    /// [`ResponseParser::parse_full`] then synthesizes the events.
    pub stream: bool,
}

/// A response of a server that cannot be parsed or is inconsistent: it must not be trained on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ResponseParseError(pub String);

impl ResponseParseError {
    fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

/// Origin of the tokens of a response, as far as the gateway knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenSource {
    /// Current version of the weights. `None`: unknown, as during an update. Used where the server
    /// does not report versions. Of a full response: the version since the request, if it did not
    /// change.
    pub version: Option<u64>,
}

/// API of a kind of server.
pub trait ServerApi: Debug + Send + Sync {
    /// Returns the request that also returns what must be recorded. `model` is the server's name of
    /// its model, `request_id` identifies the request in [`abort_body`](Self::abort_body).
    fn upstream_body(&self, call: &ModelCall, model: &str, request_id: &str) -> UpstreamBody;

    /// Returns the parser of the response to a call. `id` is the client's id of the response,
    /// `model` the client's name of the model.
    fn response_parser(&self, call: &ModelCall, id: &str, model: &str) -> Box<dyn ResponseParser>;

    /// Returns the request that aborts a request; none if the server aborts it only when its
    /// connection is closed. Without an effect on a request that has ended.
    fn abort_body(&self, kind: CallKind, request_id: &str) -> Option<UpstreamBody> {
        let _ = (kind, request_id);
        None
    }

    /// Returns the requests that find out the token ids of a call's prompt, for servers whose
    /// responses do not contain them.
    fn prompt_lookup(&self, call: &ModelCall) -> Option<Box<dyn PromptLookup>> {
        let _ = call;
        None
    }

    /// Returns the requests that count the tokens of a chat. `None`: the server has none.
    fn token_count(&self, call: &ModelCall, model: &str) -> Option<Box<dyn PromptLookup>> {
        let _ = model;
        self.prompt_lookup(call)
    }

    /// Returns the request for the text of a token, and the field of the reply that has it. `None`:
    /// the server has no such endpoint.
    fn detokenize(&self, token: i32, model: &str) -> Option<(UpstreamBody, &'static str)> {
        let _ = (token, model);
        None
    }

    /// Returns the requests that send a chat with the exact tokens of a recorded turn. `None`: the
    /// server takes no token ids for such a chat.
    fn exact_prompt(
        &self,
        call: &ModelCall,
        model: &str,
        request_id: &str,
        prefix: RecordedPrefix,
    ) -> Option<Box<dyn ExactPrompt>> {
        let _ = (call, model, request_id, prefix);
        None
    }

    /// Returns whether requests for other names than those of `/v1/models` are refused.
    fn refuses_unknown_models(&self) -> bool {
        false
    }

    /// Returns whether full responses are parsed into values, which take many times their bytes.
    fn parses_values(&self) -> bool {
        false
    }

    /// Path that answers `GET` with success while the server is healthy.
    fn health_path(&self) -> &'static str {
        "/health"
    }

    /// Paths that answer `GET` with the version of the weights, in the order of preference.
    fn version_paths(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the name of the version in a reply of a [version path](Self::version_paths); none
    /// if the next path is to be tried.
    fn version_name<'a>(&self, reply: &'a Value) -> Option<&'a str> {
        reply.get("weight_version").and_then(Value::as_str)
    }

    /// Metrics of the load. `None`: a server of this kind does not report it.
    fn load_metrics(&self) -> Option<&'static LoadMetrics> {
        None
    }

    /// Control endpoints that a server of this kind may lack.
    fn control_endpoints(&self) -> &'static [ControlEndpoint] {
        &[]
    }

    /// Returns the requests of weight updates, or the reason why there are none.
    fn weight_control(&self) -> Result<&'static dyn WeightControl, &'static str>;
}

/// Parses one response, and returns it in the internal form: without the fields that the gateway
/// alone requested, under the gateway's id and model name.
pub trait ResponseParser: Debug + Send {
    /// Takes the token ids that [`ServerApi::prompt_lookup`] found.
    fn set_prompt(&mut self, tokens: Vec<i32>) {
        let _ = tokens;
    }

    /// Takes the body of a full response and returns the body for the client; or, for a client
    /// that requested a stream, the data of its events, without the final `[DONE]`.
    fn parse_full(
        &mut self,
        body: &[u8],
        source: TokenSource,
    ) -> Result<Vec<Bytes>, ResponseParseError>;

    /// Takes the data of one event, except `[DONE]`, and returns the data of the events for the
    /// client; none if the event contains only what the client did not request.
    ///
    /// Fails only if there is nothing to forward. [`finish`](Self::finish) fails if the response
    /// can be forwarded but not recorded.
    fn parse_event(
        &mut self,
        data: &str,
        source: TokenSource,
    ) -> Result<Vec<Bytes>, ResponseParseError>;

    /// The error that the server sent in place of a response or of an event, unchanged: a JSON
    /// object with `error` in it. It is the reason of the preceding [`ResponseParseError`].
    fn server_error(&self) -> Option<&str> {
        None
    }

    /// Memory of what was parsed so far.
    fn kept_bytes(&self) -> usize {
        0
    }

    /// Returns whether tokens have the version of a [`TokenSource`], because the server did not
    /// report it.
    fn has_assumed_versions(&self) -> bool {
        false
    }

    /// Makes the versions unknown that came from a [`TokenSource`].
    fn drop_assumed_versions(&mut self) {}

    /// Returns the parsed response. One that ended as [`ResponseEnd::Complete`] must be complete:
    /// every choice has a finish reason, the numbers of tokens, log-probabilities and versions are
    /// equal, and equal to the server's `usage` if present.
    fn finish(self: Box<Self>, end: ResponseEnd) -> Result<ModelResponse, ResponseParseError>;
}

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
