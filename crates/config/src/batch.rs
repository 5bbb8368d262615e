//! `explorer.batch`: what becomes of a batch that is short when time is up.

use rollway_core::BatchPolicy;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What becomes of a batch that is short when time is up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BatchConfig {
    /// Batches to train on.
    pub train: TrainBatch,
    /// Batches to evaluate.
    pub eval: EvalBatch,
}

/// What becomes of a train batch that is short when time is up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrainBatch {
    /// Percentage of tasks that must have finished for the batch to be taken as it is. Absent: the
    /// batch is not taken, nothing is lost, and it can be waited for again.
    #[schemars(range(max = 100))]
    pub quorum_percent: Option<u8>,
    /// Percentage of tasks with at least one good run below which the batch is refused.
    #[schemars(range(max = 100))]
    pub min_success_percent: u8,
    /// What the explorer does with a batch of which tasks are missing or failed for good.
    pub on_missing_tasks: WhenShort,
    /// How often the missing tasks of a batch are run again with `on_missing_tasks: rerun`.
    pub max_reruns: u32,
}

impl Default for TrainBatch {
    fn default() -> Self {
        Self {
            quorum_percent: None,
            min_success_percent: 0,
            on_missing_tasks: WhenShort::default(),
            max_reruns: 2,
        }
    }
}

/// What the explorer does with a batch of which tasks are missing or failed for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhenShort {
    /// Goes on with what there is, as long as `quorum_percent` and `min_success_percent` allow it.
    #[default]
    Accept,
    /// Ends the job with an error. What was finished is kept.
    Fail,
    /// Runs the missing tasks again, then goes on with what there is.
    Rerun,
}

impl TrainBatch {
    pub(super) fn to_core(&self) -> BatchPolicy {
        let Self { quorum_percent, min_success_percent, .. } = *self;
        BatchPolicy { quorum_percent, success_min_percent: min_success_percent }
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
    pub min_success_percent: u8,
}

impl EvalBatch {
    pub(super) fn to_core(&self) -> BatchPolicy {
        let Self { quorum_percent, min_success_percent } = *self;
        BatchPolicy { quorum_percent, success_min_percent: min_success_percent }
    }
}

impl Default for EvalBatch {
    fn default() -> Self {
        Self { quorum_percent: Some(0), min_success_percent: 0 }
    }
}
