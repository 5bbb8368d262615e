//! `dashboard`: the pages on which a job is looked at.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The pages on which a job is looked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DashboardConfig {
    /// Whether a job serves them itself while it runs. What it keeps in its folder can be looked at
    /// with `rollway view` in any case.
    pub enable: bool,
    /// Where, as `host:port`; port 0 means any that is free.
    pub listen: String,
    /// Name of the environment variable that holds the token which opens them. Absent: a new one
    /// that is printed with the address.
    pub token_env: Option<String>,
    /// Whether a history of runs is kept in the job's folder.
    pub history: bool,
    /// How many runs the history has; older ones are dropped and counted.
    #[schemars(range(min = 1))]
    pub max_runs: u64,
    /// Bytes of trajectories (messages, tokens) that the history has; older ones are dropped and
    /// counted.
    pub max_trajectory_bytes: u64,
}

impl Default for DashboardConfig {
    fn default() -> Self {
        Self {
            enable: true,
            listen: "127.0.0.1:0".to_owned(),
            token_env: None,
            history: true,
            max_runs: 1_000_000,
            max_trajectory_bytes: 256 << 20,
        }
    }
}
