//! `simulation`: the made-up world of mode `simulate`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::seconds::ConfigSeconds;

/// The made-up world of mode `simulate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SimulationConfig {
    /// Decides everything that is random. The same seed gives the same run.
    pub seed: u64,
    /// What a run usually takes. A few take hundreds of times as long.
    pub run_seconds: ConfigSeconds,
    /// What goes wrong, and how often.
    pub faults: SimulationFaults,
}

impl Default for SimulationConfig {
    fn default() -> Self {
        Self { seed: 0, run_seconds: ConfigSeconds::new(1), faults: SimulationFaults::default() }
    }
}

/// What goes wrong, each as a share of all runs in percent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SimulationFaults {
    /// The workflow raises. Percent of runs.
    #[schemars(range(min = 0.0, max = 100.0))]
    pub raise: f64,
    /// The workflow never returns. Percent of runs.
    #[schemars(range(min = 0.0, max = 100.0))]
    pub hang: f64,
    /// The runner dies. Percent of runs.
    #[schemars(range(min = 0.0, max = 100.0))]
    pub crash: f64,
    /// No model answers. Percent of runs.
    #[schemars(range(min = 0.0, max = 100.0))]
    pub model_unavailable: f64,
}
