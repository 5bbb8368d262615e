//! Failed runs grouped by message.

use serde::{Deserialize, Serialize};

use super::{RunKey, UnixSeconds};

/// Runs that failed with the same message. Numbers in messages are not compared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FailureRow {
    /// Failure kind.
    pub kind: String,
    /// First line of the newest message.
    pub message: String,
    pub count: u64,
    /// End of the newest run.
    pub at: UnixSeconds,
    /// Newest run. `None`: dropped from the history.
    pub run: Option<RunKey>,
}
