//! Calls as somebody outside sees them: that they began, where they were sent, how they ended.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::HeaderValue;
use rollway_model_api::ModelResponse;

use super::upstream::Failure;
use crate::access::RunName;
use crate::call_observer::{CallEnded, CallWatcher};

/// What a call is said to have ended with if its client left before it was answered.
const CLIENT_LEFT: u16 = 499;

/// A call that is watched, or not. Clones are the same; with the last of them it has ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Watched(Option<Arc<Inner>>);

#[derive(Debug)]
struct Inner {
    watcher: Arc<dyn CallWatcher>,
    run: RunName,
    call: u64,
    ended: Mutex<CallEnded>,
}

impl Watched {
    /// A call of a run begins.
    pub(super) fn begin(
        watcher: Option<&Arc<dyn CallWatcher>>,
        run: Option<RunName>,
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
        Self(Some(Arc::new(Inner { watcher, run, call, ended: Mutex::new(ended) })))
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
    pub(super) fn heard(&self, answer: &ModelResponse, version: Option<u64>) {
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
    pub(super) fn failed(&self, failure: &Failure) {
        self.status(match failure {
            Failure::Ours(error) => error.kind.status(),
            Failure::Theirs { status, .. } => *status,
            Failure::Unrecordable(_) => 502,
        });
    }

    fn note(&self, change: impl FnOnce(&mut CallEnded)) {
        if let Some(inner) = &self.0 {
            change(&mut inner.ended.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let ended = *self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.watcher.ended(self.run, self.call, ended);
    }
}
