//! Observation of model calls.

use std::fmt::Debug;

use crate::keys::RunRef;

/// Observes the calls of runs. Must not block.
pub trait CallObserver: Debug + Send + Sync + 'static {
    /// `model` is `None`: the trained model.
    fn began(&self, run: RunRef, call: u64, model: Option<&str>);

    /// Returns the header `traceparent` that the call carries to its server, if it is traced and
    /// its client did not send one.
    fn traceparent(&self, run: RunRef, call: u64) -> Option<String>;

    fn sent(&self, run: RunRef, call: u64, server: &str);

    /// The call ended. Called exactly once for every call that began.
    fn ended(&self, run: RunRef, call: u64, ended: CallEnded);
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallEnded {
    /// Status of the response; 499 if the client disconnected before it. Of a stream that broke
    /// off, the status of the error.
    pub status: u16,
    pub prompt_tokens: Option<u64>,
    pub answer_tokens: Option<u64>,
    pub version: Option<u64>,
}
