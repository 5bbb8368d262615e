//! `trainer`: the trainer of modes `both` and `train`.

use super::seconds::ConfigSeconds;

section! {
    /// The trainer of modes `both` and `train`.
    pub struct TrainerConfig {
        /// Name of the trainer in logs and file names.
        pub name: String = "trainer".to_owned(),
        pub trainer_type: TrainerType,
        /// Program of `trainer_type: command` and its arguments. Environment variables tell it how
        /// to reach the buffer and the synchronizer of the job.
        pub command: Vec<String>,
        /// Train steps after which the trainer ends. Absent: it ends with the experiences.
        #[schemars(range(min = 1))]
        pub total_steps: Option<u32>,
        /// Train steps between checkpoints that are kept for good. 0: only the last ones are kept.
        pub save_interval: u32 = 100,
        /// Published weights that are kept besides the permanent ones; older ones are deleted. 0:
        /// all are kept. Servers may still load the last but one, so that at least 2 are kept.
        pub max_checkpoints_to_keep: u32 = 4,
        /// Learning rate of the embedded trainer. Absent: the default of the embedded model.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub learning_rate: Option<f64>,
        /// Maximum time for the trainer to end after a stop request.
        pub grace: ConfigSeconds = ConfigSeconds::new(30),
    }
}

choices! {
    /// Kind of trainer.
    pub enum TrainerType {
        /// The embedded trainer of the embedded model.
        #[default]
        Tiny,
        /// A program that is started with the job.
        Command,
    }
}
