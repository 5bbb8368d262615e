//! Events of a call for its observer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::HeaderValue;
use parking_lot::Mutex;
use rollway_model_api::ModelResponse;

use super::upstream::UpstreamFailure;
use crate::call_observer::{CallEnded, CallObserver};
use crate::keys::RunRef;

/// Status of a call whose client disconnected before the response.
const CLIENT_DISCONNECTED: u16 = 499;

/// A call with an observer, or none. Clones share state; the call ends with the last one.
#[derive(Clone, Debug, Default)]
pub(super) struct ObservedCall(Option<Arc<ObservedCallState>>);

#[derive(Debug)]
struct ObservedCallState {
    observer: Arc<dyn CallObserver>,
    run: RunRef,
    call: u64,
    ended: Mutex<CallEnded>,
}

impl ObservedCall {
    pub(super) fn begin(
        observer: Option<&Arc<dyn CallObserver>>,
        run: Option<RunRef>,
        model: Option<&str>,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (Some(observer), Some(run)) = (observer, run) else { return Self(None) };
        let call = NEXT.fetch_add(1, Ordering::Relaxed);
        observer.began(run, call, model);
        let ended = CallEnded { status: CLIENT_DISCONNECTED, ..CallEnded::default() };
        let observer = Arc::clone(observer);
        Self(Some(Arc::new(ObservedCallState { observer, run, call, ended: Mutex::new(ended) })))
    }

    pub(super) fn traceparent(&self) -> Option<HeaderValue> {
        let inner = self.0.as_ref()?;
        let text = inner.observer.traceparent(inner.run, inner.call)?;
        HeaderValue::from_str(&text).ok()
    }

    pub(super) fn sent(&self, server: &str) {
        if let Some(inner) = &self.0 {
            inner.observer.sent(inner.run, inner.call, server);
        }
    }

    pub(super) fn on_response(&self, response: &ModelResponse, version: Option<u64>) {
        self.note(|ended| {
            let count = |tokens: usize| u64::try_from(tokens).unwrap_or(u64::MAX);
            ended.prompt_tokens = response.prompt.as_ref().map(|prompt| count(prompt.len()));
            let tokens = response.choices.iter().filter_map(|choice| choice.tokens.as_ref());
            ended.answer_tokens = tokens.map(|tokens| count(tokens.len())).reduce(|a, b| a + b);
            ended.version = version;
        });
    }

    pub(super) fn status(&self, status: u16) {
        self.note(|ended| ended.status = status);
    }

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
        self.observer.ended(self.run, self.call, ended);
    }
}
