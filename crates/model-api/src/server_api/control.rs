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
}

impl ControlStep {
    /// Returns a step whose refusal leaves the server unchanged.
    pub(super) fn new(path: &'static str, body: Value) -> Self {
        Self { path, body, after_change: false, hint: None }
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

    /// Loads weights from a directory into a paused server, and sets their version.
    fn load(&self, path: &str, version: u64) -> Vec<ControlStep>;

    /// Receives weights over a group, with the server's first member at `rank`, into a paused
    /// server, and sets their version.
    fn receive(&self, group: &TransferGroup, version: u64, rank: u32) -> Vec<ControlStep>;
}
