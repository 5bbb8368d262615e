//! `explorer.serve_retention`: how much of what it records mode `serve` keeps.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::seconds::ConfigSeconds;

/// How much of what it records mode `serve` keeps. What has feedback and waits for a commit is
/// never removed; of the rest the oldest goes first, and is counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HistoryConfig {
    /// Recorded choices, those included that were committed: of these only the names are kept, so
    /// that feedback for them is known to come again.
    #[schemars(range(min = 1))]
    pub max_rows: u64,
    /// Bytes of recorded choices that have no feedback yet.
    #[schemars(range(min = 1))]
    pub max_bytes: u64,
    /// How long a recorded choice is kept.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub max_age: ConfigSeconds,
    /// Bytes of recorded choices that wait for a commit before more feedback is refused.
    #[schemars(range(min = 1))]
    pub max_queued_bytes: u64,
}

impl Default for HistoryConfig {
    fn default() -> Self {
        Self {
            max_rows: 1_000_000,
            max_bytes: 16 << 30,
            max_age: ConfigSeconds::new(14 * 24 * 3600),
            max_queued_bytes: 2 << 30,
        }
    }
}
