//! One taskset: where its tasks are, how to read them and in which order.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Args;

/// One set of tasks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Taskset {
    /// Name in metrics and logs. Absent: `taskset_0`, `eval_taskset_0` and so on.
    pub name: Option<String>,
    /// Kind of storage.
    pub storage_type: TasksetStorage,
    /// File, folder or address of the tasks. Required.
    pub path: Option<String>,
    /// Which split of a dataset folder is read.
    pub split: String,
    /// Which subset of a dataset folder is read. Absent: the only one.
    pub subset_name: Option<String>,
    /// Which fields of a row mean what.
    pub format: Format,
    /// Sampling options for the model, such as `temperature` or `max_tokens`. They win over those
    /// of the model.
    pub rollout_args: Args,
    /// Handed to the workflow.
    pub workflow_args: Args,
    /// Handed to the reward function.
    pub reward_fn_args: Args,
    /// Runs per task of an evaluation. Tasks to train on get `algorithm.repeat_times` runs.
    #[schemars(range(min = 1))]
    pub repeat_times: u32,
    /// Workflow of tasks that name none. Absent: as `buffer.explorer_input` has it.
    pub default_workflow_type: Option<String>,
    /// Reward function of tasks that name none. Absent: as `buffer.explorer_input` has it.
    pub default_reward_fn_type: Option<String>,
    /// In which order tasks are taken.
    pub data_selector: DataSelector,
}

impl Default for Taskset {
    fn default() -> Self {
        Self {
            name: None,
            storage_type: TasksetStorage::default(),
            path: None,
            split: "train".to_owned(),
            subset_name: None,
            format: Format::default(),
            rollout_args: Args::new(),
            workflow_args: Args::new(),
            reward_fn_args: Args::new(),
            repeat_times: 1,
            default_workflow_type: None,
            default_reward_fn_type: None,
            data_selector: DataSelector::default(),
        }
    }
}

/// Kind of storage of a taskset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TasksetStorage {
    /// Files: JSON, JSON lines, CSV, Parquet, or the folder of a dataset.
    #[default]
    File,
}

/// Which fields of a row mean what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Format {
    /// Field with the question.
    pub prompt_key: String,
    /// Field with the expected answer.
    pub response_key: String,
    /// Field with a list of chat messages. Absent: the question is the only message.
    pub messages_key: Option<String>,
    /// Field with the tools that the model may call.
    pub tools_key: Option<String>,
    /// Field with images.
    pub image_key: Option<String>,
    /// Field with videos.
    pub video_key: Option<String>,
    /// System prompt of every task.
    pub system_prompt: Option<String>,
    /// Field with the system prompt. Wins over `system_prompt`.
    pub system_prompt_key: Option<String>,
    /// Field with the name of the workflow.
    pub workflow_key: Option<String>,
    /// Field with the name of the reward function.
    pub reward_fn_key: Option<String>,
}

impl Default for Format {
    fn default() -> Self {
        Self {
            prompt_key: "prompt".to_owned(),
            response_key: "response".to_owned(),
            messages_key: None,
            tools_key: None,
            image_key: None,
            video_key: None,
            system_prompt: None,
            system_prompt_key: None,
            workflow_key: None,
            reward_fn_key: None,
        }
    }
}

/// In which order tasks are taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DataSelector {
    /// The order.
    pub selector_type: SelectorType,
    /// Decides every random choice of the selector.
    pub seed: u64,
    /// Fields that tell how hard a task is: one for `offline_easy2hard`, two for
    /// `difficulty_based`.
    pub feature_keys: Vec<String>,
    /// Further arguments of the selector.
    pub kwargs: Args,
}

impl Default for DataSelector {
    fn default() -> Self {
        Self {
            selector_type: SelectorType::default(),
            seed: 42,
            feature_keys: Vec::new(),
            kwargs: Args::new(),
        }
    }
}

/// The order in which tasks are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SelectorType {
    /// As they stand in the file.
    #[default]
    Sequential,
    /// Shuffled anew in every epoch.
    Shuffle,
    /// At random, without repetition inside a batch.
    Random,
    /// By a feature, from the largest to the smallest, always the same.
    #[serde(rename = "offline_easy2hard")]
    OfflineEasy2hard,
    /// Those whose estimated pass rate is nearest to a target.
    DifficultyBased,
}
