//! `explorer.batch`: acceptance of incomplete batches.

use rollway_core::BatchPolicy;

section! {
    /// Acceptance of batches that are incomplete at their timeout.
    pub struct BatchConfig {
        pub train: TrainBatch,
        pub eval: EvalBatch,
    }

    /// Acceptance of train batches that are incomplete at their timeout.
    pub struct TrainBatch {
        /// Percentage of tasks that must have finished for an incomplete batch to be accepted.
        /// Absent: it is not accepted; its results are kept, and the wait can be repeated.
        #[schemars(range(max = 100))]
        pub quorum_percent: Option<u8>,
        /// Percentage of tasks with at least one successful run below which a batch is refused.
        #[schemars(range(max = 100))]
        pub min_success_percent: u8,
        pub on_missing_tasks: WhenShort,
        /// Maximum reruns of the missing tasks of a batch with `on_missing_tasks: rerun`.
        pub max_reruns: u32 = 2,
    }

    /// Acceptance of eval batches that are incomplete at their timeout.
    pub struct EvalBatch {
        /// Percentage of tasks that must have finished for an incomplete batch to be accepted.
        /// `null`: it is not accepted; its results are kept, and the wait can be repeated.
        #[schemars(range(max = 100))]
        pub quorum_percent: Option<u8> = Some(0),
        /// Percentage of tasks with at least one successful run below which a batch is refused.
        #[schemars(range(max = 100))]
        pub min_success_percent: u8,
    }
}

choices! {
    /// Reaction of the explorer to tasks of a train batch that are missing or failed for good.
    pub enum WhenShort {
        /// Continues without them if `quorum_percent` and `min_success_percent` allow it.
        #[default]
        Accept,
        /// Ends the job with an error. Finished runs are kept.
        Fail,
        /// Runs the missing tasks again, then continues with the finished ones.
        Rerun,
    }
}

impl BatchConfig {
    pub(super) fn to_core(&self) -> (BatchPolicy, BatchPolicy) {
        let policy = |quorum_percent, success_min_percent| BatchPolicy {
            quorum_percent,
            success_min_percent,
        };
        let Self { train, eval } = self;
        (
            policy(train.quorum_percent, train.min_success_percent),
            policy(eval.quorum_percent, eval.min_success_percent),
        )
    }
}
