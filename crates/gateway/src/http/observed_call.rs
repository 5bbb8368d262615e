//! Calls as somebody outside sees them: that they began, where they were sent, how they ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::HeaderValue;
use parking_lot::Mutex;
use rollway_model_api::ModelResponse;

use super::upstream::UpstreamFailure;
use crate::call_observer::{CallEnded, CallObserver};
use crate::keys::RunRef;

/// What a call is said to have ended with if its client left before it was answered.
const CLIENT_LEFT: u16 = 499;

/// A call that is watched, or not. Clones are the same; with the last of them it has ended.
#[derive(Clone, Debug, Default)]
pub(super) struct ObservedCall(Option<Arc<ObservedCallState>>);

#[derive(Debug)]
struct ObservedCallState {
    watcher: Arc<dyn CallObserver>,
    run: RunRef,
    call: u64,
    ended: Mutex<CallEnded>,
}

impl ObservedCall {
    /// A call of a run begins.
    pub(super) fn begin(
        watcher: Option<&Arc<dyn CallObserver>>,
        run: Option<RunRef>,
        model: Option<&str>,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (Some(watcher), Some(run)) = (watcher, run) else { return Self(None) };
        let call = NEXT.fetch_add(1, Ordering::Relaxed);
        watcher.began(run, call, model);
        let ended = CallEnded {
            status: CLIENT_LEFT,
            prompt_tokens: None,
            answer_tokens: None,
            version: None,
        };
        let watcher = Arc::clone(watcher);
        Self(Some(Arc::new(ObservedCallState { watcher, run, call, ended: Mutex::new(ended) })))
    }

    /// Returns what makes the server's spans part of a trace, if there is one.
    pub(super) fn traceparent(&self) -> Option<HeaderValue> {
        let inner = self.0.as_ref()?;
        let text = inner.watcher.traceparent(inner.run, inner.call)?;
        HeaderValue::from_str(&text).ok()
    }

    /// It is sent to a server.
    pub(super) fn sent(&self, server: &str) {
        if let Some(inner) = &self.0 {
            inner.watcher.sent(inner.run, inner.call, server);
        }
    }

    /// A server has answered.
    pub(super) fn on_response(&self, answer: &ModelResponse, version: Option<u64>) {
        self.note(|ended| {
            let count = |tokens: usize| u64::try_from(tokens).unwrap_or(u64::MAX);
            ended.prompt_tokens = answer.prompt.as_ref().map(|prompt| count(prompt.len()));
            let said = answer.choices.iter().filter_map(|choice| choice.tokens.as_ref());
            ended.answer_tokens = said.map(|tokens| count(tokens.len())).reduce(|a, b| a + b);
            ended.version = version;
        });
    }

    /// The client is given this status.
    pub(super) fn status(&self, status: u16) {
        self.note(|ended| ended.status = status);
    }

    /// The client is told that it failed.
    pub(super) fn failed(&self, failure: &UpstreamFailure) {
        self.status(match failure {
            UpstreamFailure::Ours(error) => error.kind.status(),
            UpstreamFailure::Theirs { status, .. } => *status,
            UpstreamFailure::Unrecordable(_) => 502,
        });
    }

    fn note(&self, change: impl FnOnce(&mut CallEnded)) {
        if let Some(inner) = &self.0 {
            change(&mut inner.ended.lock());
        }
    }
}

impl Drop for ObservedCallState {
    fn drop(&mut self) {
        let ended = *self.ended.get_mut();
        self.watcher.ended(self.run, self.call, ended);
    }
}
