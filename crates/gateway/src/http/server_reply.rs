//! Replies of servers, read and parsed within the memory of responses.

use axum::http::header::CONTENT_TYPE;
use bytes::{Bytes, BytesMut};
use reqwest::Response;
use rollway_model_api::json_shape::JsonShape;
use rollway_model_api::server_api::{LookupStep, PromptLookup};
use rollway_model_api::{CallError, ErrorKind, ResponseParseError, UpstreamBody};
use serde_json::Value;
use tokio::time::Instant;

use super::byte_budget::ByteLease;
use super::refusal::RefusalReason;
use super::state::GatewayState;
use super::upstream::UpstreamFailure;
use crate::keys::RunRef;
use crate::models::{RegisteredServer, failure_reason};

/// Failure of the body of a response.
pub(super) enum ReadFailure {
    Broken(reqwest::Error),
    Refused(CallError),
}

impl From<CallError> for ReadFailure {
    fn from(error: CallError) -> Self {
        Self::Refused(error)
    }
}

/// Failure of a request beside the one that generates.
#[derive(Debug)]
pub(super) enum LookupError {
    /// There is no memory for the reply.
    Refused(CallError),
    Failed(ResponseParseError),
}

impl From<LookupError> for UpstreamFailure {
    fn from(error: LookupError) -> Self {
        match error {
            LookupError::Refused(error) => Self::Ours(error),
            LookupError::Failed(error) => Self::Unrecordable(error),
        }
    }
}

impl From<LookupError> for CallError {
    fn from(error: LookupError) -> Self {
        match error {
            LookupError::Refused(error) => error,
            LookupError::Failed(error) => Self::new(ErrorKind::Upstream, error.0),
        }
    }
}

impl GatewayState {
    /// Reserves memory for a response. The server waits meanwhile.
    pub(super) async fn lease_response(
        &self,
        lease: &mut ByteLease,
        bytes: u64,
        by: Instant,
    ) -> Result<(), CallError> {
        let granted = lease.grow_to(bytes, by).await;
        granted.map_err(|refusal| self.over_budget(RefusalReason::ResponseBytes, refusal))
    }

    /// Reads a body within the limit of responses.
    pub(super) async fn read_response(
        &self,
        mut response: Response,
        lease: &mut ByteLease,
        by: Instant,
    ) -> Result<Bytes, ReadFailure> {
        let limit = self.options.limits.response_body_bytes;
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(ReadFailure::Broken)? {
            if body.len() + chunk.len() > limit {
                let message = format!("the response has more than the limit of {limit} bytes");
                let error = CallError::new(ErrorKind::Upstream, message);
                let error = self.refuse(RefusalReason::ResponseBytes, error);
                return Err(ReadFailure::Refused(error));
            }
            self.lease_response(lease, (body.len() + chunk.len()) as u64, by).await?;
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
    }

    /// Reserves memory for a body and for its parsed values.
    pub(super) async fn lease_values(
        &self,
        body: &[u8],
        lease: &mut ByteLease,
        by: Instant,
    ) -> Result<(), CallError> {
        self.lease_response(lease, body.len() as u64 + JsonShape::of(body).bytes, by).await
    }
}

/// A server and the memory of its replies to requests beside those that generate.
pub(super) struct ServerLookups<'a> {
    pub(super) app: &'a GatewayState,
    pub(super) server: &'a RegisteredServer,
    /// The run, whose responses share a limit of their memory.
    pub(super) run: Option<RunRef>,
    pub(super) by: Instant,
}

impl ServerLookups<'_> {
    /// Finds out the token ids of a prompt by the requests of a lookup.
    pub(super) async fn prompt_tokens(
        &self,
        mut lookup: Box<dyn PromptLookup>,
    ) -> Result<Vec<i32>, LookupError> {
        let mut step = lookup.start().map_err(LookupError::Failed)?;
        loop {
            step = match step {
                LookupStep::Request(request) => {
                    let (reply, _lease) = self.send(&request).await?;
                    lookup.reply(&reply).map_err(LookupError::Failed)?
                }
                LookupStep::Tokens(tokens) => return Ok(tokens),
            };
        }
    }

    /// Sends a request, and returns the reply with its memory.
    pub(super) async fn send(
        &self,
        request: &UpstreamBody,
    ) -> Result<(Value, ByteLease), LookupError> {
        let Self { app, server, run, by } = *self;
        let (root, path, id) = (&server.spec.url, request.path, server.id.0);
        let failed = |problem: String| {
            LookupError::Failed(ResponseParseError(format!("server {id}: {problem}")))
        };
        let broken = |error: reqwest::Error| {
            failed(format!("no response from {path}: {}", failure_reason(error)))
        };
        let post = server.client.post(format!("{root}{path}"));
        let post = post.header(CONTENT_TYPE, "application/json").body(request.body.to_string());
        let response = post.send().await.map_err(broken)?;
        let status = response.status();
        let mut lease = app.responses.lease(run);
        let body = app.read_response(response, &mut lease, by).await;
        let body = body.map_err(|failure| match failure {
            ReadFailure::Broken(error) => broken(error),
            ReadFailure::Refused(error) => LookupError::Refused(error),
        })?;
        if !status.is_success() {
            let text: String = String::from_utf8_lossy(&body).chars().take(200).collect();
            return Err(failed(format!("{path} responded with {status}: {text}")));
        }
        app.lease_values(&body, &mut lease, by).await.map_err(LookupError::Refused)?;
        let reply = serde_json::from_slice(&body);
        let reply = reply
            .map_err(|error| failed(format!("{path} responded with invalid JSON: {error}")))?;
        Ok((reply, lease))
    }
}
