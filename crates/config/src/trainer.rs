//! `trainer`: who learns from the experiences in modes `both` and `train`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::seconds::ConfigSeconds;

/// Who learns from the experiences in modes `both` and `train`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrainerConfig {
    /// Name of the trainer in logs and file names.
    pub name: String,
    /// Kind of trainer.
    pub trainer_type: TrainerType,
    /// The program of `trainer_type: command` and its arguments. It finds the job's buffer and
    /// synchronizer through its environment.
    pub command: Vec<String>,
    /// Steps after which the trainer ends. Absent: when there are no more experiences.
    #[schemars(range(min = 1))]
    pub total_steps: Option<u32>,
    /// Steps after which a checkpoint stays for good. 0: only the last ones stay.
    pub save_interval: u32,
    /// How far parameters of the embedded model move in a step. Absent: as its recipe has it.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub learning_rate: Option<f64>,
    /// How long a trainer that was told to end may take.
    pub grace: ConfigSeconds,
}

impl Default for TrainerConfig {
    fn default() -> Self {
        Self {
            name: "trainer".to_owned(),
            trainer_type: TrainerType::default(),
            command: Vec::new(),
            total_steps: None,
            save_interval: 100,
            learning_rate: None,
            grace: ConfigSeconds::new(30),
        }
    }
}

/// Kind of trainer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrainerType {
    /// The trainer of the embedded model.
    #[default]
    Tiny,
    /// A program that is started with the job.
    Command,
}
