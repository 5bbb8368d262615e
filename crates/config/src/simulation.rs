//! `simulation`: the made-up world of mode `simulate`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::seconds::Seconds;

/// The made-up world of mode `simulate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Simulation {
    /// Decides everything that is random. The same seed gives the same run.
    pub seed: u64,
    /// What a run usually takes. A few take hundreds of times as long.
    pub run_seconds: Seconds,
    /// What goes wrong, and how often.
    pub faults: Faults,
}

impl Default for Simulation {
    fn default() -> Self {
        Self { seed: 0, run_seconds: Seconds::new(1), faults: Faults::default() }
    }
}

/// What goes wrong, each as a share of all runs in percent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
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
