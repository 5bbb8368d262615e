//! `explorer.batch`: what becomes of a batch that is short when time is up.

use rollway_core::BatchPolicy;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What becomes of a batch that is short when time is up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Batch {
    /// Batches to train on.
    pub train: TrainBatch,
    /// Batches to evaluate.
    pub eval: EvalBatch,
}

/// What becomes of a train batch that is short when time is up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrainBatch {
    /// Percentage of tasks that must have finished for the batch to be taken as it is. Absent: the
    /// batch is not taken, nothing is lost, and it can be waited for again.
    #[schemars(range(max = 100))]
    pub quorum_percent: Option<u8>,
    /// Percentage of tasks with at least one good run below which the batch is refused.
    #[schemars(range(max = 100))]
    pub success_min_percent: u8,
}

impl TrainBatch {
    pub(super) fn to_core(&self) -> BatchPolicy {
        let Self { quorum_percent, success_min_percent } = *self;
        BatchPolicy { quorum_percent, success_min_percent }
    }
}

/// What becomes of an eval batch that is short when time is up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EvalBatch {
    /// Percentage of tasks that must have finished for the batch to be taken as it is. `null`: the
    /// batch is not taken, nothing is lost, and it can be waited for again.
    #[schemars(range(max = 100))]
    pub quorum_percent: Option<u8>,
    /// Percentage of tasks with at least one good run below which the batch is refused.
    #[schemars(range(max = 100))]
    pub success_min_percent: u8,
}

impl EvalBatch {
    pub(super) fn to_core(&self) -> BatchPolicy {
        let Self { quorum_percent, success_min_percent } = *self;
        BatchPolicy { quorum_percent, success_min_percent }
    }
}

impl Default for EvalBatch {
    fn default() -> Self {
        Self { quorum_percent: Some(0), success_min_percent: 0 }
    }
}
