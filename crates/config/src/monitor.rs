//! `monitor` and `log`: metrics and log of a job.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Args;

section! {
    /// Metrics of a job.
    pub struct MonitorConfig {
        /// Kinds of monitor: `tensorboard` (event files in the job's folder), `wandb`, `mlflow` and
        /// `swanlab` (through their Python packages), or `none`. One needs no list.
        #[schemars(extend("x-one-or-many" = true))]
        pub monitor_type: Vec<MonitorType> = vec![MonitorType::Tensorboard],
        /// Arguments of the monitor; of several, by their names: `{wandb: {…}, mlflow: {…}}`.
        pub monitor_args: Args,
        /// Writes all statistics of evaluation metrics.
        pub detailed_stats: bool,
        /// Address of the Prometheus endpoint, as `host:port`; port 0: any free one. It needs no
        /// key. Absent: the metrics are served by the dashboard only.
        pub prometheus: Option<String>,
    }

    /// Log of a job.
    pub struct Log {
        pub level: LogLevel,
        /// Different failures of runs, by kind and message, that are logged in full when they
        /// first happen and counted in `summary.json`. Further ones are counted together.
        #[schemars(range(min = 1))]
        pub failure_groups: u32 = 20,
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
    /// No monitor; metrics are in the log and on the dashboard.
    None,
}

impl MonitorType {
    pub const ALL: [Self; 5] =
        [Self::Tensorboard, Self::Wandb, Self::Mlflow, Self::Swanlab, Self::None];

    /// Returns the name in a configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tensorboard => "tensorboard",
            Self::Wandb => "wandb",
            Self::Mlflow => "mlflow",
            Self::Swanlab => "swanlab",
            Self::None => "none",
        }
    }

    /// Tells whether the monitor needs a Python package.
    pub const fn is_outside(self) -> bool {
        matches!(self, Self::Wandb | Self::Mlflow | Self::Swanlab)
    }
}

/// Minimum level of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum LogLevel {
    /// Every input of the scheduler; for work on Rollway itself.
    Trace,
    /// Details for developers of workflows.
    Debug,
    /// Events for operators.
    #[default]
    Info,
    /// Events that an operator should look into.
    Warning,
    /// Failures.
    Error,
}
