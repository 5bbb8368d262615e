//! `algorithm`: settings of the algorithm that rollouts depend on.

use super::Args;

/// Algorithms that trainers of this field have. Only `grpo` has an advantage operator by default.
pub(crate) const ALGORITHMS: [&str; 16] = [
    "asymre", "cispo", "dapo", "dpo", "drgrpo", "grpo", "gspo", "mix", "opmd", "ppo", "raft",
    "rec", "rloo", "sft", "sppo", "topr",
];

/// Those that learn from given or preferred answers.
const WITHOUT_REWARDS: [&str; 2] = ["dpo", "sft"];

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

impl AlgorithmConfig {
    /// Tells whether the algorithm is known to learn nothing from experiences without rewards.
    pub fn needs_rewards(&self) -> bool {
        let name = self.algorithm_type.as_str();
        ALGORITHMS.contains(&name) && !WITHOUT_REWARDS.contains(&name)
    }
}
