//! Chats that continue a recorded turn, sent with the tokens of that turn.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use axum::http::header::CONTENT_TYPE;
use parking_lot::Mutex;
use reqwest::StatusCode;
use rollway_model_api::UpstreamBody;
use rollway_model_api::server_api::{ChatReason, ExactPrompt, ExactStep, server_api};
use serde_json::Value;

use super::byte_budget::ByteLease;
use super::server_reply::ReadFailure;
use super::upstream::{ServerFailure, UpstreamGuard, UpstreamReply, UpstreamRequest};
use crate::models::{RegisteredServer, ServerId, failure_reason};

/// Time after which a server without the endpoints is asked again: it may have been restarted.
const UNSUPPORTED_TIME: Duration = Duration::from_secs(60);

/// Servers that refuse the endpoints for token ids, since when.
#[derive(Debug, Default)]
pub(super) struct ExactSupport(Mutex<HashMap<ServerId, Instant>>);

impl ExactSupport {
    fn is_missing(&self, server: ServerId) -> bool {
        let mut missing = self.0.lock();
        missing.retain(|_, since| since.elapsed() < UNSUPPORTED_TIME);
        missing.contains_key(&server)
    }

    fn set_missing(&self, server: ServerId) {
        self.0.lock().insert(server, Instant::now());
    }
}

/// Treatment of a chat that continues a recorded turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExactOutcome {
    /// Sent as a chat: the template reproduces the tokens of the turn.
    Reproduced,
    /// Sent with the tokens of the turn.
    Spliced,
    /// Sent as a chat: the template rewrites earlier turns.
    Rewritten,
    /// Sent as a chat: the call has content besides text.
    NotText,
    /// Sent as a chat: the server takes no token ids for it.
    Unsupported,
    /// Sent as a chat: the server failed to render or to parse.
    Failed,
}

impl ExactOutcome {
    pub(super) const ALL: [Self; 6] = [
        Self::Reproduced,
        Self::Spliced,
        Self::Rewritten,
        Self::NotText,
        Self::Unsupported,
        Self::Failed,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::Spliced => "spliced",
            Self::Rewritten => "rewritten",
            Self::NotText => "not_text",
            Self::Unsupported => "unsupported",
            Self::Failed => "failed",
        }
    }
}

impl From<ChatReason> for ExactOutcome {
    fn from(reason: ChatReason) -> Self {
        match reason {
            ChatReason::Reproduced => Self::Reproduced,
            ChatReason::Rewritten => Self::Rewritten,
            ChatReason::NotText => Self::NotText,
        }
    }
}

/// Failure of a request beside the one that generates.
enum PostError {
    /// The server has no such endpoint.
    NoEndpoint,
    Failed(String),
}

impl UpstreamRequest {
    /// Sends the call with the tokens of the recorded turn that it continues. `None`: it must be
    /// sent as a chat.
    pub(super) async fn send_exact(
        &self,
        at: &UpstreamGuard,
        lease: &mut ByteLease,
    ) -> Option<Result<UpstreamReply, ServerFailure>> {
        let prefix = self.prefix.as_ref()?;
        let server = at.permit().server();
        let model = at.permit().server_model();
        let exact = (!self.app.exact_support.is_missing(server.id))
            .then(|| {
                let api = server_api(server.spec.engine);
                api.exact_prompt(&self.call, model, &at.id, prefix.clone())
            })
            .flatten();
        let reply = match exact {
            Some(exact) => self.run_steps(at, exact, lease).await,
            None => Err(ExactOutcome::Unsupported),
        };
        let outcome = reply.as_ref().map_or_else(|outcome| *outcome, |_| ExactOutcome::Spliced);
        self.app.metrics.count_exact_prompt(outcome);
        reply.ok()
    }

    /// Runs the steps of an exact prompt. An error is the reason to send a chat instead.
    async fn run_steps(
        &self,
        at: &UpstreamGuard,
        mut exact: Box<dyn ExactPrompt>,
        lease: &mut ByteLease,
    ) -> Result<Result<UpstreamReply, ServerFailure>, ExactOutcome> {
        let server = at.permit().server();
        let failed = |reason: String, is_generated: bool| {
            tracing::debug!(server = server.id.0, reason, "a chat is sent without exact prompt");
            if is_generated {
                // The tokens are lost: do not generate twice for every call.
                self.app.exact_support.set_missing(server.id);
            }
            ExactOutcome::Failed
        };
        let mut is_generated = false;
        let mut step = exact.start();
        loop {
            let reply = match step {
                ExactStep::Request(body) => {
                    match Box::pin(self.post_json(server, &body, lease)).await {
                        Ok(reply) => reply,
                        Err(PostError::NoEndpoint) => return Err(ExactOutcome::Unsupported),
                        Err(PostError::Failed(reason)) => return Err(failed(reason, is_generated)),
                    }
                }
                ExactStep::Generate(body) => match self.exchange(at, &body, lease).await {
                    Ok(UpstreamReply::Full(reply)) => {
                        is_generated = true;
                        let leased = self.app.lease_values(&reply, lease, self.deadline).await;
                        if let Err(error) = leased {
                            return Ok(Err(error.into()));
                        }
                        serde_json::from_slice(&reply)
                            .map_err(|error| failed(format!("invalid JSON: {error}"), true))?
                    }
                    Ok(reply @ UpstreamReply::Events(_)) => return Ok(Ok(reply)),
                    Err(failure) => return Ok(Err(failure)),
                },
                ExactStep::Response(body) => return Ok(Ok(UpstreamReply::Full(body))),
                ExactStep::Chat(reason) => return Err(reason.into()),
            };
            step = exact.reply(reply).map_err(|error| failed(error.0, is_generated))?;
        }
    }

    async fn post_json(
        &self,
        server: &RegisteredServer,
        body: &UpstreamBody,
        lease: &mut ByteLease,
    ) -> Result<Value, PostError> {
        let path = body.path;
        let failed = |reason: String| PostError::Failed(format!("{path}: {reason}"));
        let post = server.client.post(format!("{}{path}", server.spec.url));
        let post = post.header(CONTENT_TYPE, "application/json").body(body.body.to_string());
        let response = post.send().await.map_err(|error| failed(failure_reason(error)))?;
        let status = response.status();
        if matches!(
            status,
            StatusCode::FORBIDDEN | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED
        ) {
            let hint = "start vLLM with --enable-scale-out for exact histories";
            tracing::info!(server = server.id.0, path, %status, hint, "no endpoint for token ids");
            self.app.exact_support.set_missing(server.id);
            return Err(PostError::NoEndpoint);
        }
        let (app, by) = (&self.app, self.deadline);
        let reply = app.read_response(response, lease, by).await;
        let reply = reply.map_err(|failure| match failure {
            ReadFailure::Broken(error) => failed(failure_reason(error)),
            ReadFailure::Refused(error) => failed(error.to_string()),
        })?;
        if !status.is_success() {
            let shown: String = String::from_utf8_lossy(&reply).chars().take(200).collect();
            return Err(failed(format!("{status}: {shown}")));
        }
        let leased = app.lease_values(&reply, lease, by).await;
        leased.map_err(|error| failed(error.to_string()))?;
        serde_json::from_slice(&reply).map_err(|error| failed(format!("invalid JSON: {error}")))
    }
}
