//! `data_processor`: what happens to experiences between the workflow and the buffer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Args;

/// What happens to experiences between the workflow and the buffer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DataProcessorConfig {
    /// The way of the experiences of a batch.
    pub experience_pipeline: ExperiencePipeline,
}

/// The way of the experiences of a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExperiencePipeline {
    /// What is done to them, in this order; then come the advantages of `algorithm`.
    pub operators: Vec<OperatorConfig>,
    /// Whether experiences are also kept as they came from the workflows.
    pub save_input: bool,
    /// Where they are kept: a `.json` or `.jsonl` file, a folder of Parquet files that ends with
    /// `.parquet` or `/`, or the address of a database. Absent: the database `explorer_output.db`
    /// in `buffer.cache_dir`.
    pub input_save_path: Option<String>,
}

impl Default for ExperiencePipeline {
    fn default() -> Self {
        Self { operators: Vec::new(), save_input: true, input_save_path: None }
    }
}

/// One operator of the pipeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OperatorConfig {
    /// Registered name, such as `reward_filter`, or `package.module:name`. Required.
    pub name: String,
    /// Arguments of the operator.
    pub args: Args,
}
