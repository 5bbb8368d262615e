//! `algorithm`: settings of the algorithm that rollouts depend on.

use super::Args;

section! {
    /// Settings of the algorithm that rollouts depend on.
    pub struct AlgorithmConfig {
        /// Name of the algorithm. Selects the advantages that the pipeline computes (`grpo`: within
        /// the runs of a task; others: none) and the algorithm of the embedded trainer.
        pub algorithm_type: String = "grpo".to_owned(),
        /// Runs per task of a train batch: the size of a GRPO group.
        #[schemars(range(min = 1))]
        pub repeat_times: u32 = 1,
        /// Operator that computes advantages. It becomes the last one of the pipeline unless it is
        /// listed there. Absent: the operator of `algorithm_type`.
        pub advantage_fn: Option<String>,
        /// Arguments of `advantage_fn`.
        pub advantage_fn_args: Args,
    }
}
