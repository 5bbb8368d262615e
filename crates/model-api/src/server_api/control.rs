//! Control endpoints of servers: pause, weight updates, aborts. Requests only, no I/O.

use std::fmt::Debug;

use rollway_core::sync::{TensorSpec, TransferGroup};
use serde_json::Value;

/// One `POST` of a control operation. The steps of an operation are sent in order until one fails.
#[derive(Clone, Debug, PartialEq)]
pub struct ControlStep {
    /// Path and query, below the server's root.
    pub path: &'static str,
    pub body: Value,
    /// True if the server has changed already if it refuses this step, so that its state is
    /// unknown.
    pub after_change: bool,
    /// Remedy that is appended to the message of a refusal.
    pub hint: Option<&'static str>,
    /// True if the operation also works without this step, at a server without the endpoint.
    pub is_optional: bool,
}

impl ControlStep {
    /// Returns a step whose refusal leaves the server unchanged.
    pub(super) fn new(path: &'static str, body: Value) -> Self {
        Self { path, body, after_change: false, hint: None, is_optional: false }
    }

    /// Returns the step as one that is left out if the server has no such endpoint.
    pub(super) fn optional(self) -> Self {
        Self { is_optional: true, ..self }
    }

    /// Path without the query.
    pub fn endpoint(&self) -> &'static str {
        self.path.split('?').next().unwrap_or(self.path)
    }

    /// Returns a step whose refusal leaves the server in an unknown state.
    pub(super) fn after_change(path: &'static str, body: Value) -> Self {
        Self { after_change: true, ..Self::new(path, body) }
    }
}

/// Treatment of in-flight requests by a pause for a weight update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseMode {
    /// The server has no in-flight requests of the gateway.
    Empty,
    /// In-flight requests are kept, and go on afterwards.
    Keep,
    /// In-flight requests are aborted.
    Abort,
}

/// Endpoint that some versions or configurations of a server kind do not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlEndpoint {
    pub path: &'static str,
    pub purpose: EndpointPurpose,
    /// Flag or version that provides the endpoint.
    pub provided_by: &'static str,
}

/// Use of a control endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointPurpose {
    /// Without it, running requests finish before an update, whatever the policy.
    Pause,
    /// Without it, a server that stays paused is not noticed.
    PauseState,
    /// Without one of these, weights cannot be loaded from a folder.
    LoadFolder,
    /// Without it, weights cannot be received from a trainer.
    Transfer,
    /// Without one of these, the version of the weights is unknown once they were changed.
    Version,
    /// Without it, requests are aborted by closing their connection.
    AbortRequest,
}

impl EndpointPurpose {
    /// Consequence of a missing endpoint.
    pub const fn consequence(self) -> &'static str {
        match self {
            Self::Pause => "running requests finish before each weight update",
            Self::PauseState => "a server that stays paused is not noticed",
            Self::LoadFolder => "weights cannot be loaded from a folder",
            Self::Transfer => "weights cannot be received with sync_method nccl",
            Self::Version => "the version of tokens is unknown once weights were loaded",
            Self::AbortRequest => "requests are aborted by closing their connection",
        }
    }
}

/// Returns one property of each tensor of a group.
pub(super) fn tensor_column(
    group: &TransferGroup,
    property: fn(&TensorSpec) -> Value,
) -> Vec<Value> {
    group.tensors.iter().map(property).collect()
}

/// Weight updates of a kind of server.
pub trait WeightControl: Debug + Send + Sync {
    /// Pauses generation. After the last step the server generates nothing.
    fn pause(&self, mode: PauseMode) -> Vec<ControlStep>;

    /// Resumes a paused server.
    fn resume(&self, mode: PauseMode) -> Vec<ControlStep>;

    /// Path that answers `GET` with the pause state. `None`: the server does not report it.
    fn pause_state_path(&self) -> Option<&'static str> {
        None
    }

    /// Returns whether a reply of the [path](Self::pause_state_path) reports a pause.
    fn is_paused(&self, reply: &Value) -> Option<bool> {
        reply.get("is_paused").and_then(Value::as_bool)
    }

    /// Path that answers `GET` with the sleep state, in which a server has released its memory.
    /// `None`: the server does not report it.
    fn sleep_state_path(&self) -> Option<&'static str> {
        None
    }

    /// Returns whether a reply of the [path](Self::sleep_state_path) reports sleep.
    fn is_sleeping(&self, reply: &Value) -> Option<bool> {
        reply.get("is_sleeping").and_then(Value::as_bool)
    }

    /// Loads weights from a directory into a paused server, and sets their version.
    fn load(&self, path: &str, version: u64) -> Vec<ControlStep>;

    /// Receives weights over a group, with the server's first member at `rank`, into a paused
    /// server, and sets their version.
    fn receive(&self, group: &TransferGroup, version: u64, rank: u32) -> Vec<ControlStep>;
}
