//! `data_processor`: pipeline between workflows and buffer.

use super::Args;

section! {
    /// Processing of experiences between workflows and buffer.
    pub struct DataProcessorConfig {
        pub experience_pipeline: ExperiencePipeline,
    }

    /// Pipeline for the experiences of a batch.
    pub struct ExperiencePipeline {
        /// Operators in the order of execution; the advantages of `algorithm` follow.
        pub operators: Vec<OperatorConfig>,
        /// Also saves experiences as the workflows returned them.
        pub save_input: bool = true,
        /// Target of `save_input`: a `.json` or `.jsonl` file, a folder of Parquet files that ends
        /// with `.parquet` or `/`, or the address of a database. Absent: the database
        /// `explorer_output.db` in `buffer.cache_dir`.
        pub input_save_path: Option<String>,
    }

    /// One operator of the pipeline.
    pub struct OperatorConfig {
        /// Registered name, such as `reward_filter`, or `package.module:name`. Required.
        pub name: String,
        /// Arguments of the operator.
        pub args: Args,
    }
}
