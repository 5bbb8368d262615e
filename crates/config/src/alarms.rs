//! `alarms`: when a person is told that something goes wrong.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::seconds::ConfigSeconds;

/// When a person is told that something goes wrong. Every alarm is a sentence in the log, on the
/// dashboard and a metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AlarmsConfig {
    /// How long no run may end, while some are under way or wait. `null`: for ever.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub no_progress: Option<ConfigSeconds>,
    /// How many runs may fail in a row. `null`: any number.
    #[schemars(range(min = 1))]
    pub consecutive_failures: Option<u32>,
    /// What happens when that many have failed.
    pub on_consecutive_failures: OnConsecutiveFailures,
    /// By how many steps experiences may lag behind the newest weights, on average over a step.
    /// `null`: any number.
    #[schemars(range(min = 0.0))]
    pub staleness: Option<f64>,
    /// How much longer than others runs of a workflow or taskset may wait to be begun, as a factor.
    /// `null`: any.
    #[schemars(range(min = 1.0))]
    pub starvation: Option<f64>,
}

impl Default for AlarmsConfig {
    fn default() -> Self {
        Self {
            no_progress: Some(ConfigSeconds::new(300)),
            consecutive_failures: Some(50),
            on_consecutive_failures: OnConsecutiveFailures::default(),
            staleness: None,
            starvation: Some(10.0),
        }
    }
}

impl AlarmsConfig {
    /// Tells whether there is anything that a person would be told.
    pub const fn is_any(&self) -> bool {
        self.no_progress.is_some()
            || self.consecutive_failures.is_some()
            || self.staleness.is_some()
            || self.starvation.is_some()
    }
}

/// What happens when too many runs have failed in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnConsecutiveFailures {
    /// It is said, and the job goes on.
    #[default]
    Warn,
    /// The job ends with an error; the same command goes on.
    Stop,
}
