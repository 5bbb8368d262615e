//! Completions of several prompts in one request: one call each, recorded separately.

use std::sync::Arc;

use axum::body::to_bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use futures_util::future::try_join_all;
use rollway_model_api::replay::SavedResponse;
use rollway_model_api::{CallError, ClientApi, ErrorKind, ModelCall};
use serde_json::{Value, json};

use super::calls::{acquire_permits, begin_recording};
use super::metrics::GatewayMetrics;
use super::observed_call::ObservedCall;
use super::response_body::complete_response;
use super::run_sessions::RunSession;
use super::state::GatewayState;
use super::upstream::UpstreamFailure;
use crate::keys::Caller;
use rollway_recording::RetryHeaders;

/// A request with several prompts.
pub(super) struct PromptList<'a> {
    pub(super) app: &'a Arc<GatewayState>,
    pub(super) caller: Caller,
    pub(super) session: Option<Arc<RunSession>>,
    pub(super) headers: &'a HeaderMap,
    pub(super) retry: &'a RetryHeaders,
}

impl PromptList<'_> {
    /// Sends a call for each prompt at the same time, and returns one response.
    pub(super) async fn send(
        &self,
        api: &'static dyn ClientApi,
        calls: Vec<ModelCall>,
    ) -> Result<Response, UpstreamFailure> {
        let Some(form) = calls.first().cloned() else {
            let message = "prompt is empty: it needs at least one prompt";
            return Err(CallError::new(ErrorKind::InvalidRequest, message).at("prompt").into());
        };
        let parts = calls.into_iter().enumerate().map(|(index, call)| self.part(api, index, call));
        let parts = Box::pin(try_join_all(parts)).await?;
        let whole = merged(parts, form.choices);
        let saved = SavedResponse { stream: false, parts: vec![whole.to_string().into()] };
        Ok(complete_response(api, &form, saved.into_parts(&form), None, None))
    }

    /// Sends the call of one prompt, and returns its response.
    async fn part(
        &self,
        api: &'static dyn ClientApi,
        index: usize,
        mut call: ModelCall,
    ) -> Result<Value, UpstreamFailure> {
        call.stream = false;
        call.body.insert("stream".to_owned(), false.into());
        call.body.remove("stream_options");
        let key = self.retry.idempotency_key.as_ref().map(|key| format!("{key}#{index}"));
        let retry = RetryHeaders { idempotency_key: key, is_retry: self.retry.is_retry };
        let permits = acquire_permits(self.app, self.session.as_ref())?;
        let mut timer = GatewayMetrics::call(self.app, api);
        let name = self.session.as_ref().and_then(|_| self.caller.run());
        let observed = ObservedCall::begin(self.app.options.watcher.as_ref(), name, call.model());
        timer.observed = observed.clone();
        let session = self.session.clone();
        let begun =
            begin_recording(self.app, session, (api, call), self.headers, &retry, (timer, permits));
        let response = begun.await.inspect_err(|failure| observed.failed(failure))?;
        let status = response.status();
        let body = to_bytes(response.into_body(), usize::MAX).await;
        let body = body.ok().and_then(|body| serde_json::from_slice(&body).ok());
        match body {
            Some(body) if status == StatusCode::OK => Ok(body),
            _ => {
                let message = format!("the completion of prompt {index} failed: {status}");
                Err(CallError::new(ErrorKind::Upstream, message).into())
            }
        }
    }
}

/// Merges the responses of several prompts: choices in the order of prompts, counts summed.
fn merged(parts: Vec<Value>, choices: u32) -> Value {
    let names = ["prompt_tokens", "completion_tokens", "total_tokens"];
    let mut usage = [0; 3];
    let mut all = Vec::new();
    let mut whole = parts.first().cloned().unwrap_or_default();
    for (prompt, mut part) in (0..).zip(parts) {
        for (sum, name) in usage.iter_mut().zip(names) {
            *sum += part["usage"][name].as_u64().unwrap_or(0);
        }
        let Some(list) = part["choices"].as_array_mut() else { continue };
        for mut choice in list.drain(..) {
            let index = choice["index"].as_u64().unwrap_or(0);
            choice["index"] = (prompt * u64::from(choices) + index).into();
            all.push(choice);
        }
    }
    whole["choices"] = all.into();
    whole["usage"] = names.into_iter().zip(usage).map(|(name, sum)| (name, json!(sum))).collect();
    whole
}
