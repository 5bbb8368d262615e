//! Configuration of the job.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Configuration without secrets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConfigReport {
    /// Null: not recorded.
    pub config: Value,
    /// Keys with other values than their defaults: `buffer.batch_size`.
    pub changed: Vec<String>,
}
