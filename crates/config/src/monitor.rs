//! `monitor` and `log`: where numbers and words about a job go.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Args;

/// Where the numbers about a job go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MonitorConfig {
    /// Kinds of monitor: `tensorboard` (event files in the job's folder), `wandb`, `mlflow` and
    /// `swanlab` (through their Python packages), or `none`. One needs no list.
    #[schemars(extend("x-one-or-many" = true))]
    pub monitor_type: Vec<MonitorType>,
    /// Arguments of the monitor; of several, by their names: `{wandb: {…}, mlflow: {…}}`.
    pub monitor_args: Args,
    /// Whether evaluation metrics come with all their statistics.
    pub detailed_stats: bool,
    /// Where Prometheus finds the metrics of the job, as `host:port`; port 0 means any that is
    /// free. Whoever reaches it may read them. Absent: only where the dashboard is.
    pub prometheus: Option<String>,
}

impl Default for MonitorConfig {
    fn default() -> Self {
        Self {
            monitor_type: vec![MonitorType::Tensorboard],
            monitor_args: Args::default(),
            detailed_stats: false,
            prometheus: None,
        }
    }
}

impl MonitorConfig {
    /// Returns the arguments of one of the monitors.
    pub fn args(&self, monitor: MonitorType) -> Args {
        match self.monitor_args.get(monitor.name()) {
            Some(Value::Object(args)) => args.clone(),
            _ if self.monitor_type.len() > 1 || self.is_by_name() => Args::default(),
            _ => self.monitor_args.clone(),
        }
    }

    /// Tells whether arguments are given by the names of monitors.
    pub(super) fn is_by_name(&self) -> bool {
        let is_name = |(key, value): (&String, &Value)| {
            value.is_object() && MonitorType::ALL.iter().any(|monitor| monitor.name() == key)
        };
        !self.monitor_args.is_empty() && self.monitor_args.iter().all(is_name)
    }
}

/// Kind of monitor.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum MonitorType {
    /// Event files for TensorBoard in the job's folder.
    #[default]
    Tensorboard,
    /// Weights & Biases, through the Python package `wandb`.
    Wandb,
    /// MLflow, through the Python package `mlflow` or `mlflow-skinny`.
    Mlflow,
    /// SwanLab, through the Python package `swanlab`.
    Swanlab,
    /// Nothing; the numbers are in the log and the dashboard.
    None,
}

impl MonitorType {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Tensorboard, Self::Wandb, Self::Mlflow, Self::Swanlab, Self::None];

    /// Returns the name that it has in a configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tensorboard => "tensorboard",
            Self::Wandb => "wandb",
            Self::Mlflow => "mlflow",
            Self::Swanlab => "swanlab",
            Self::None => "none",
        }
    }

    /// Tells whether a Python package does the work.
    pub const fn is_outside(self) -> bool {
        matches!(self, Self::Wandb | Self::Mlflow | Self::Swanlab)
    }
}
/// Where the words about a job go.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// The least important lines that are written.
    pub level: LogLevel,
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
