//! Tasksets: files of tasks, their fields and their order.

use super::Args;

section! {
    /// One set of tasks.
    pub struct Taskset {
        /// Name in metrics and logs. Absent: `taskset_0`, `eval_taskset_0` and so on.
        pub name: Option<String>,
        pub storage_type: TasksetStorage,
        /// File or folder of the tasks. Required.
        pub path: Option<String>,
        /// Split of a dataset folder.
        pub split: String = "train".to_owned(),
        /// Subset of a dataset folder. Absent: the only one.
        pub subset_name: Option<String>,
        pub format: Format,
        /// Sampling options of model calls, such as `temperature` or `max_tokens`. They override
        /// those of the model. Your own workflow must pass them: `model.chat(…,
        /// **task.rollout_args)`; otherwise they have no effect.
        pub rollout_args: Args,
        /// Arguments of the workflow.
        pub workflow_args: Args,
        /// Arguments of the reward function.
        pub reward_fn_args: Args,
        /// Runs per task of an evaluation. Train tasks get `algorithm.repeat_times` runs.
        #[schemars(range(min = 1))]
        pub repeat_times: u32 = 1,
        /// Workflow of tasks that name none. Absent: that of `buffer.explorer_input`.
        pub default_workflow_type: Option<String>,
        /// Reward function of tasks that name none. Absent: that of `buffer.explorer_input`.
        pub default_reward_fn_type: Option<String>,
        pub data_selector: DataSelector,
        /// Bytes of a page of a Parquet file, or of a batch of an Arrow file, after decompression.
        /// Files with larger ones are refused: a small file could take all memory.
        #[schemars(range(min = 1))]
        pub max_unpacked_bytes: u64 = 1 << 30,
    }

    /// Names of the fields of a row.
    pub struct Format {
        /// Field with the prompt.
        pub prompt_key: String = "prompt".to_owned(),
        /// Field with the expected response.
        pub response_key: String = "response".to_owned(),
        /// Field with a list of chat messages. Absent: the prompt is the only message.
        pub messages_key: Option<String>,
        /// Field with the tools that the model may call.
        pub tools_key: Option<String>,
        /// Field with images.
        pub image_key: Option<String>,
        /// Field with videos.
        pub video_key: Option<String>,
        /// System prompt of every task.
        pub system_prompt: Option<String>,
        /// Field with the system prompt. Overrides `system_prompt`.
        pub system_prompt_key: Option<String>,
        /// Field with the name of the workflow.
        pub workflow_key: Option<String>,
        /// Field with the name of the reward function.
        pub reward_fn_key: Option<String>,
    }

    /// Order of the tasks.
    pub struct DataSelector {
        pub selector_type: SelectorType,
        /// Seed of all random choices of the selector.
        pub seed: u64 = 42,
        /// Fields with the difficulty of a task: one for `offline_easy2hard`, two for
        /// `difficulty_based`.
        pub feature_keys: Vec<String>,
        /// Further arguments of the selector.
        pub kwargs: Args,
    }
}

choices! {
    /// Kind of storage of a taskset.
    pub enum TasksetStorage {
        /// Files: JSON, JSON lines, CSV, Parquet, or the folder of a dataset.
        #[default]
        File,
    }

    /// Selector of the next tasks.
    pub enum SelectorType {
        /// In the order of the file.
        #[default]
        Sequential,
        /// Shuffled anew in every epoch.
        Shuffle,
        /// At random, without repetition inside a batch.
        Random,
        /// By a feature, from the largest to the smallest, always the same.
        #[serde(rename = "offline_easy2hard")]
        OfflineEasy2hard,
        /// Tasks whose estimated pass rate is nearest to a target.
        DifficultyBased,
    }
}
