//! APIs that clients of the gateway speak.
//!
//! A client API is one module here and one line in [`CLIENT_APIS`]; the gateway takes its routes,
//! headers of keys and metrics from that list.

mod anthropic_messages;
mod chat_form;
mod openai_chat;
mod openai_completions;
mod openai_responses;
mod request_fields;
mod route;
mod sglang_generate;
#[cfg(test)]
mod tests;
mod token_form;
mod vllm_generate;

use std::fmt::Debug;

use bytes::{Bytes, BytesMut};

pub use self::anthropic_messages::AnthropicMessages;
pub use self::openai_chat::OpenaiChat;
pub use self::openai_completions::OpenaiCompletions;
pub use self::openai_responses::OpenaiResponses;
pub use self::route::{Route, RouteMatch};
pub use self::sglang_generate::SglangGenerate;
pub use self::vllm_generate::VllmGenerate;
use crate::error::CallError;
use crate::model_call::ModelCall;
use crate::sse;

/// All client APIs.
pub const CLIENT_APIS: &[&dyn ClientApi] = &[
    &OpenaiChat,
    &OpenaiCompletions,
    &OpenaiResponses,
    &AnthropicMessages,
    &VllmGenerate,
    &SglangGenerate,
];

/// Data of the last event of an OpenAI stream.
const DONE: &[u8] = b"[DONE]";

/// Returns the client API at a path of the gateway.
pub fn at_path(path: &str) -> Option<RouteMatch<'_>> {
    CLIENT_APIS.iter().find_map(|api| RouteMatch::find(*api, path))
}

/// An API that clients of the gateway speak: parses a request to the internal form, and renders
/// responses, streams and errors from it. The default methods render the internal form, which is
/// OpenAI's, without a change.
pub trait ClientApi: Debug + Send + Sync {
    /// Name in metrics.
    fn name(&self) -> &'static str;

    /// Paths of the gateway that take requests by `POST`.
    fn routes(&self) -> &'static [Route];

    /// Prefix of response ids.
    fn id_prefix(&self) -> &'static str;

    /// Headers that carry a key, besides `Authorization: Bearer KEY`.
    fn key_headers(&self) -> &'static [&'static str] {
        &[]
    }

    /// Parses a request for a completion, or for the number of its tokens.
    fn parse(&self, route: &RouteMatch<'_>, body: &[u8]) -> Result<ModelCall, CallError>;

    /// Parses a request that may have several prompts: one call for each.
    fn parse_all(&self, route: &RouteMatch<'_>, body: &[u8]) -> Result<Vec<ModelCall>, CallError> {
        self.parse(route, body).map(|call| vec![call])
    }

    /// Renders the body of a response with the number of tokens of a call.
    fn render_token_count(&self, tokens: usize) -> Bytes {
        serde_json::json!({ "input_tokens": tokens }).to_string().into()
    }

    /// Renders the body of a full response, given the body in the internal form.
    fn render_body(&self, call: &ModelCall, body: Bytes) -> Bytes {
        let _ = call;
        body
    }

    /// Content type of streams.
    fn stream_content_type(&self) -> &'static str {
        "text/event-stream"
    }

    /// Returns the renderer of one stream.
    fn stream_renderer(&self, call: &ModelCall) -> StreamRenderer {
        let _ = call;
        StreamRenderer::Openai
    }

    /// Renders the body of an error response.
    fn render_error(&self, error: &CallError) -> Bytes {
        error.body().to_string().into()
    }

    /// Renders the body of an error response of a server, given its body in OpenAI's form.
    fn render_server_error(&self, status: u16, body: Bytes) -> Bytes {
        let _ = status;
        body
    }
}

/// Renders the events of one stream. The internal form needs no dynamic dispatch, since a stream
/// has an event per token.
#[derive(Debug)]
pub enum StreamRenderer {
    /// OpenAI's events: the internal form.
    Openai,
    /// Events of another API.
    Translated(Box<dyn StreamTranslator>),
}

/// Translates the events of one stream to another API.
pub trait StreamTranslator: Debug + Send {
    /// Appends the events that an event in the internal form corresponds to.
    fn event(&mut self, data: &[u8], out: &mut BytesMut);

    /// Appends the end of a complete stream.
    fn finish(&mut self, out: &mut BytesMut);

    /// Appends the event of an error that ends the stream.
    fn error(&mut self, error: &CallError, out: &mut BytesMut);
}

impl StreamRenderer {
    /// Appends an event, given its data in the internal form.
    #[inline]
    pub fn event(&mut self, data: &[u8], out: &mut BytesMut) {
        match self {
            Self::Openai => sse::write_event(data, out),
            Self::Translated(translator) => translator.event(data, out),
        }
    }

    /// Appends the end of a complete stream.
    pub fn finish(&mut self, out: &mut BytesMut) {
        match self {
            Self::Openai => sse::write_event(DONE, out),
            Self::Translated(translator) => translator.finish(out),
        }
    }

    /// Returns the event of an error that ends the stream.
    pub fn error(&mut self, error: &CallError) -> Bytes {
        let mut out = BytesMut::new();
        match self {
            Self::Openai => sse::write_event(error.body().to_string().as_bytes(), &mut out),
            Self::Translated(translator) => translator.error(error, &mut out),
        }
        out.freeze()
    }
}
