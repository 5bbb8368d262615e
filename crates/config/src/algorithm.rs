//! `algorithm`: what the trainer does with experiences, as far as rollouts depend on it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Args;

/// What the trainer does with experiences, as far as rollouts depend on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AlgorithmConfig {
    /// Name of the algorithm. Decides which advantages the pipeline computes (`grpo`: those of runs
    /// against the other runs of their task; others: none) and what the embedded trainer does.
    pub algorithm_type: String,
    /// Runs per task of a training batch: the size of a GRPO group.
    #[schemars(range(min = 1))]
    pub repeat_times: u32,
    /// Which advantages are computed: an operator, which becomes the last of the pipeline unless it
    /// is listed there. Absent: as the algorithm has it.
    pub advantage_fn: Option<String>,
    /// Arguments of `advantage_fn`.
    pub advantage_fn_args: Args,
}

impl Default for AlgorithmConfig {
    fn default() -> Self {
        Self {
            algorithm_type: "grpo".to_owned(),
            repeat_times: 1,
            advantage_fn: None,
            advantage_fn_args: Args::new(),
        }
    }
}
