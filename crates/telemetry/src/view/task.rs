//! Tasks: the group of runs of one task.

use serde::{Deserialize, Serialize};

use super::{BatchRuns, RunRow};

/// Order and page of the tasks of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskQuery {
    pub batch: String,
    pub sort: TaskSort,
    pub desc: bool,
    pub offset: usize,
    /// 0: default length of a page.
    pub limit: usize,
}

/// Order of tasks; ties and unknown values in the order of submission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskSort {
    /// Order of submission.
    #[default]
    Order,
    /// Mean reward.
    Reward,
    /// Difference of the largest and the smallest reward.
    Spread,
    /// Mean number of generated tokens.
    Tokens,
    Failed,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskPage {
    /// Number of tasks on all pages.
    pub total: u64,
    pub tasks: Vec<TaskSummary>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskSummary {
    pub batch: String,
    pub task: u32,
    /// `train` or `eval`.
    pub kind: String,
    pub workflow: String,
    pub runs: BatchRuns,
    /// Mean of its succeeded runs.
    pub reward: Option<f64>,
    pub min: Option<f64>,
    pub max: Option<f64>,
    /// Mean number of generated tokens.
    pub tokens: Option<f64>,
    /// Reason for dropping its experiences.
    pub dropped: Option<String>,
}

/// A task with its runs side by side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskDetail {
    #[serde(flatten)]
    pub row: TaskSummary,
    /// The first runs of the task.
    pub members: Vec<ComparedRun>,
    /// Number of further runs.
    pub more: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ComparedRun {
    #[serde(flatten)]
    pub row: RunRow,
    /// Conversation of the run; empty if its experiences are not available.
    pub messages: Vec<MessageText>,
    /// Parts of the conversation were omitted.
    pub truncated: bool,
}

/// A message as text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageText {
    pub role: String,
    pub text: String,
}
