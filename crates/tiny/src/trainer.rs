//! Trainer of the embedded model: GRPO on the experiences of a buffer.
//!
//! [`step()`] is one training step. [`TinyTrainer`] is the thread around it: it reads batches,
//! saves its state, resumes after a kill, and publishes weights through a [`WeightPublisher`].
//!
//! The order of writes keeps an experience from being trained twice or never: a step, then its
//! state with the reader's position, then, with the next read, the acknowledgement.

mod publisher;
mod run;
mod state;
mod step;

use std::path::PathBuf;
use std::time::Duration;

use rollway_data::buffer::BufferError;
use rollway_tiny_model::WeightsError;

pub use self::publisher::{FolderPublisher, PublishFlags, SyncPublisher, WeightPublisher};
pub use self::run::{TinyTrainer, TinyTrainerSummary};
pub use self::step::{TrainConfig, TrainStepMetrics, step};
use rollway_sync::SyncError;
use rollway_sync::weight_folder::WeightFolderError;
pub use rollway_sync::weight_folder::{FULL, LATEST, MODEL, directory, latest};

#[derive(Clone, Debug)]
pub struct TinyTrainerOptions {
    /// Folder of its state and checkpoints.
    pub folder: PathBuf,
    /// Prefix of its files.
    pub name: String,
    pub recipe: TrainConfig,
    /// Experiences per step.
    pub batch_size: usize,
    /// `None`: no limit.
    pub total_steps: Option<u64>,
    /// Steps between saved states. Later steps are repeated after a crash, with the same
    /// experiences.
    pub save_interval: u64,
    /// Steps between published weights. The last ones are always published.
    pub publish_interval: u64,
    /// Publish when an explorer demands weights instead of every `publish_interval` steps.
    pub on_demand: bool,
    /// Steps between weights that are kept permanently. `None`: never.
    pub full_interval: Option<u64>,
    /// Maximum number of other weights; at least two, since a server may still read the last but
    /// one.
    pub max_temporary: usize,
    /// Maximum wait for the experiences of a step.
    pub read_timeout: Duration,
}

impl TinyTrainerOptions {
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            name: "trainer".to_owned(),
            recipe: TrainConfig::default(),
            batch_size: 256,
            total_steps: None,
            save_interval: 1,
            publish_interval: 1,
            on_demand: false,
            full_interval: None,
            max_temporary: 2,
            read_timeout: Duration::from_secs(1800),
        }
    }

    fn problem(&self) -> Option<&'static str> {
        match self {
            Self { batch_size: 0, .. } => Some("batch_size must be at least 1"),
            Self { save_interval: 0, .. } => Some("save_interval must be at least 1"),
            Self { publish_interval: 0, .. } => Some("publish_interval must be at least 1"),
            Self { full_interval: Some(0), .. } => Some("full_interval must be at least 1"),
            Self { max_temporary: 0 | 1, .. } => Some("max_temporary must be at least 2"),
            _ => None,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum TinyTrainerError {
    #[error("the trainer cannot be started: {0}")]
    Options(&'static str),
    #[error("the thread of the trainer failed: {0}")]
    Thread(String),
    #[error("the trainer cannot read experiences: {0}")]
    Buffer(#[from] BufferError),
    /// The saved position is not in the buffer.
    #[error(
        "the trainer resumes at step {step}, but its buffer is not the one that it read before: \
         {source}; configure that buffer (a queue in memory ends with its process: set its path), \
         or another folder to start over"
    )]
    Position { step: u64, source: BufferError },
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error("the trainer cannot publish its weights: {0}")]
    Synchronizer(#[from] SyncError),
    #[error("{}: {problem}", path.display())]
    File { path: PathBuf, problem: String },
    #[error(
        "step {step} needs {wanted} experiences, but only {got} came within {} s (read_timeout): \
         check that the explorer is running and its batches are large enough",
        waited.as_secs_f64()
    )]
    NoExperiences { step: u64, wanted: usize, got: usize, waited: Duration },
}

impl From<WeightFolderError> for TinyTrainerError {
    fn from(error: WeightFolderError) -> Self {
        Self::File { path: error.path, problem: error.source.to_string() }
    }
}
