//! In which words a kind of server is asked, and what its answers mean. Nothing here does I/O
//! except [`Dialect::prompt`].

mod chunks;
mod events;
mod fields;
mod gather;
pub mod llama_cpp;
pub mod openai;
mod reply;
pub mod sglang;
pub mod vllm;

#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use serde_json::Value;

use crate::answer::{Answer, End};
use crate::call::{Call, Kind};
use crate::models::Server;

/// The kinds of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Engine {
    /// vLLM: token ids by `return_token_ids`.
    Vllm,
    /// SGLang: token ids in `meta_info`.
    Sglang,
    /// `llama-server` of llama.cpp: token ids in the log-probabilities.
    LlamaCpp,
    /// Anything else that speaks OpenAI's API: text alone, nothing to train on.
    OpenAi,
}

impl Engine {
    /// The dialect of such servers.
    pub fn dialect(self) -> &'static dyn Dialect {
        match self {
            Self::Vllm => &vllm::Vllm,
            Self::Sglang => &sglang::Sglang,
            Self::LlamaCpp => &llama_cpp::LlamaCpp,
            Self::OpenAi => &openai::OpenAi,
        }
    }
}

/// What is sent to a server.
#[derive(Clone, Debug, PartialEq)]
pub struct Outgoing {
    /// Where to, below the server's root: `/v1/chat/completions`.
    pub path: &'static str,
    /// The body.
    pub body: Value,
    /// Whether events come back. A server that tells token ids only in whole answers is asked for
    /// a whole answer even if the client wants a stream; [`Reader::whole`] then makes the events.
    pub stream: bool,
}

/// Words of a server that cannot be understood, or contradict themselves: nothing of the answer may
/// be trained on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Misread(pub String);

/// Where the tokens of an answer come from, as the gateway knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The version of the weights now; none if nobody knows, as in the middle of an update. Used
    /// where the server does not say itself which version produced which token. Of a whole answer
    /// it is the one that was there all the time from the request on; none if there were several,
    /// since nobody knows which of them produced which token.
    pub version: Option<u64>,
}

/// The answer to whoever waits for the prompt's token ids.
pub type PromptFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Option<Vec<i32>>, Misread>> + Send + 'a>>;

/// How to talk to a kind of server.
pub trait Dialect: Debug + Send + Sync {
    /// What to ask so that the server also tells what must be recorded. `model` is the name that
    /// the server knows its model by. `request_id` is what the request can be aborted by.
    fn outgoing(&self, call: &Call, model: &str, request_id: &str) -> Outgoing;

    /// Reads the answer to a call. `id` is what the client is to know the answer by, `model` the
    /// name that the client knows the model by.
    fn reader(&self, call: &Call, id: &str, model: &str) -> Box<dyn Reader>;

    /// What to send so that the server gives up a request; none if it has to notice by itself that
    /// nobody waits any more. Without an effect if the request is over.
    fn abort(&self, kind: Kind, request_id: &str) -> Option<Outgoing> {
        let _ = (kind, request_id);
        None
    }

    /// Asks for the token ids of a call's prompt where answers do not contain them.
    fn prompt<'a>(&'a self, server: &'a Server, call: &'a Call) -> PromptFuture<'a> {
        let _ = (server, call);
        Box::pin(async { Ok(None) })
    }
}

/// Reads one answer, and turns it into what the client gets: the same answer without what only the
/// gateway asked for, under the gateway's id and model name.
pub trait Reader: Debug + Send {
    /// Takes the token ids that [`Dialect::prompt`] brought.
    fn prompt(&mut self, tokens: Vec<i32>) {
        let _ = tokens;
    }

    /// Takes the whole body of a good answer and returns the body for the client; or, for a client
    /// that wants a stream, the data of its events, without the final `[DONE]`.
    fn whole(&mut self, body: &[u8], source: Source) -> Result<Vec<Bytes>, Misread>;

    /// Takes the data of one event, except `[DONE]`, and returns the data of the events for the
    /// client; none if it held only what the client did not ask for.
    ///
    /// It fails only if there is nothing to hand on. Words that the client can be given but that
    /// cannot be recorded are told by [`finish`](Self::finish).
    fn event(&mut self, data: &str, source: Source) -> Result<Vec<Bytes>, Misread>;

    /// The error that the server sent where an answer or more of it should have been, as it came: a
    /// JSON object with `error` in it. It is the reason of the [`Misread`] before; any other means
    /// that the server's words make no sense.
    fn server_error(&self) -> Option<&str> {
        None
    }

    /// Returns what was gathered. An answer that ended as [`End::Complete`] must be whole: every
    /// choice has a finish reason, tokens, log-probabilities and versions are of the same number,
    /// and that number is the one that the server's `usage` states, if it does.
    fn finish(self: Box<Self>, end: End) -> Result<Answer, Misread>;
}
