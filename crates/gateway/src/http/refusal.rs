//! Reasons for which requests are refused, and their errors.

use rollway_base::suggest::{is_misspelled, nearest};
use rollway_model_api::{CallError, ErrorKind, ModelCall, request_policy};
use rollway_recording::RecordError;
use serde_json::{Map, Value};

use super::byte_budget::BudgetRefusal;
use super::state::GatewayState;

/// Label of the metric `refused`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefusalReason {
    Calls,
    BodyBytes,
    JsonNodes,
    JsonDepth,
    RequestBytes,
    ResponseBytes,
    RecordedBytes,
    Fields,
    RemoteMedia,
    ForcedTokens,
}

impl RefusalReason {
    pub(super) const ALL: [Self; 10] = [
        Self::Calls,
        Self::BodyBytes,
        Self::JsonNodes,
        Self::JsonDepth,
        Self::RequestBytes,
        Self::ResponseBytes,
        Self::RecordedBytes,
        Self::Fields,
        Self::RemoteMedia,
        Self::ForcedTokens,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::BodyBytes => "body_bytes",
            Self::JsonNodes => "json_nodes",
            Self::JsonDepth => "json_depth",
            Self::RequestBytes => "request_bytes",
            Self::ResponseBytes => "response_bytes",
            Self::RecordedBytes => "recorded_bytes",
            Self::Fields => "fields",
            Self::RemoteMedia => "remote_media",
            Self::ForcedTokens => "forced_tokens",
        }
    }
}

impl GatewayState {
    /// Counts a refusal, and returns its error.
    pub(super) fn refuse(&self, reason: RefusalReason, error: CallError) -> CallError {
        self.metrics.count_refusal(reason);
        error
    }

    pub(super) fn too_large(
        &self,
        reason: RefusalReason,
        found: impl Into<String>,
        limit: u64,
        key: &str,
    ) -> CallError {
        let found = found.into();
        let message = format!("{found}, more than the limit of {limit} (`explorer.gateway.{key}`)");
        self.refuse(reason, CallError::new(ErrorKind::TooLarge, message))
    }

    /// Checks that a run or an agent may send the fields of a call to a server.
    pub(super) fn check_fields(&self, call: &ModelCall) -> Result<(), CallError> {
        if let Some(name) = request_policy::unknown_field(&call.body, &self.options.pass_fields) {
            let near = nearest(name, request_policy::allowed_fields())
                .filter(|near| is_misspelled(name, near))
                .map(|near| format!("did you mean `{near}`? Otherwise "))
                .unwrap_or_default();
            return Err(self.unknown_field(name, &near));
        }
        if !self.options.remote_media
            && let Some((at, kind)) = request_policy::remote_media(&call.body)
        {
            let message = format!(
                "{at} is a part of type {kind} that is not in the request: send it as a `data:` \
                 address, or set `explorer.gateway.remote_media`"
            );
            let error = CallError::new(ErrorKind::InvalidRequest, message).at(at);
            return Err(self.refuse(RefusalReason::RemoteMedia, error));
        }
        Ok(())
    }

    /// Checks that a run or an agent may send the fields of a request for embeddings to a server.
    pub(super) fn check_embeddings(&self, body: &Map<String, Value>) -> Result<(), CallError> {
        let further = &self.options.pass_fields;
        match request_policy::unknown_embeddings_field(body, further) {
            Some(name) => Err(self.unknown_field(name, "")),
            None => Ok(()),
        }
    }

    fn unknown_field(&self, name: &str, near: &str) -> CallError {
        let message = format!(
            "{name} is not passed on to servers: {near}leave it out, or add it to \
             `explorer.gateway.pass_fields`"
        );
        let error = CallError::new(ErrorKind::InvalidRequest, message).at(name);
        self.refuse(RefusalReason::Fields, error)
    }

    /// Checks that the tokens of a recorded call are sampled.
    pub(super) fn check_sampled(&self, call: &ModelCall) -> Result<(), CallError> {
        let Some(name) = request_policy::forced_tokens(&call.body) else { return Ok(()) };
        let message = format!(
            "{name} leaves the model no choice: its tokens would be recorded as samples; use \
             another model, or let it choose"
        );
        let error = CallError::new(ErrorKind::InvalidRequest, message).at(name);
        Err(self.refuse(RefusalReason::ForcedTokens, error))
    }

    /// Counts the failure of a recording that has become too large.
    pub(super) fn count_unrecorded(&self, error: &RecordError) {
        if matches!(error, RecordError::TooMuch { .. }) {
            self.metrics.count_refusal(RefusalReason::RecordedBytes);
        }
    }

    /// Returns the error of a call for which there is no memory.
    pub(super) fn over_budget(&self, reason: RefusalReason, refusal: BudgetRefusal) -> CallError {
        let key = reason.name();
        let error = match refusal {
            BudgetRefusal::TooLarge(limit) => {
                let found = "the call needs more memory than a run may hold";
                let message = format!("{found}: {limit} bytes (`explorer.gateway.{key}_per_run`)");
                CallError::new(ErrorKind::TooLarge, message)
            }
            BudgetRefusal::TooLargeForAll(limit) => {
                let found = "the call needs more than half of the memory of all calls";
                let message = format!("{found}: {limit} bytes (`explorer.gateway.{key}`)");
                CallError::new(ErrorKind::TooLarge, message)
            }
            BudgetRefusal::Run(limit) => {
                let found = "the calls of the run hold all of their memory";
                let message = format!("{found}: {limit} bytes (`explorer.gateway.{key}_per_run`)");
                CallError::new(ErrorKind::TooMany, message).retry_after(1)
            }
            BudgetRefusal::Total(limit) => {
                let found =
                    "the calls of all clients hold the memory that the gateway has for them";
                let message = format!("{found}: {limit} bytes (`explorer.gateway.{key}`)");
                CallError::new(ErrorKind::TooMany, message).retry_after(1)
            }
        };
        self.refuse(reason, error)
    }
}
