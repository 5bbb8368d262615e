//! `monitor` and `log`: where numbers and words about a job go.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Args;

/// Where the numbers about a job go.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Monitor {
    /// Kind of monitor.
    pub monitor_type: MonitorType,
    /// Arguments of the monitor.
    pub monitor_args: Args,
    /// Whether evaluation metrics come with all their statistics.
    pub detailed_stats: bool,
}

/// Kind of monitor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MonitorType {
    /// Event files for TensorBoard in the job's folder.
    #[default]
    Tensorboard,
    /// No files; the numbers are in the log and the dashboard.
    None,
}

/// Where the words about a job go.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// The least important lines that are written.
    pub level: LogLevel,
    /// Whether the log files of a cluster are in one folder per machine.
    pub group_by_node: bool,
}

/// How important a log line is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum LogLevel {
    /// Every single input; for work on Rollway itself.
    Trace,
    /// For developers of workflows.
    Debug,
    /// What an operator wants to know.
    #[default]
    Info,
    /// What an operator should look into.
    Warning,
    /// What went wrong.
    Error,
}
