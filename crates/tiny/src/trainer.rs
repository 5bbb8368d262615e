//! The trainer of the embedded model: GRPO on the experiences of a buffer.
//!
//! [`step()`] is the whole of the learning, and does nothing else. [`TinyTrainer`] is what is
//! around it: a thread that reads batches, makes steps, keeps its state so that a killed trainer
//! goes on as if nothing had been, and puts weights into an [`SyncPublisher`].
//!
//! In what order things become durable is what keeps an experience from being trained twice or not
//! at all: a step, then its state with the reader's position, then the acknowledgement of what was
//! read, which comes with the next read.

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

/// How a trainer works.
#[derive(Clone, Debug)]
pub struct TinyTrainerOptions {
    /// Where its state and its checkpoints are.
    pub folder: PathBuf,
    /// What its files begin with.
    pub name: String,
    /// How it learns.
    pub recipe: TrainConfig,
    /// How many experiences are one step.
    pub batch_size: usize,
    /// After how many steps it is done; never, if none.
    pub total_steps: Option<u64>,
    /// After how many steps its state is kept. Fewer are made again after a crash, with the same
    /// experiences.
    pub save_interval: u64,
    /// After how many steps weights are published. The last ones always are.
    pub publish_interval: u64,
    /// Whether weights are published when somebody demands them, and not after so many steps.
    pub on_demand: bool,
    /// After how many steps weights stay for good; never, if none.
    pub full_interval: Option<u64>,
    /// How many published weights that do not stay for good there are; at least two, since a server
    /// may still read the last but one.
    pub max_passing: usize,
    /// How long to wait for the experiences of a step.
    pub read_timeout: Duration,
}

impl TinyTrainerOptions {
    /// Returns the usual options for a folder.
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
            max_passing: 2,
            read_timeout: Duration::from_secs(1800),
        }
    }

    fn problem(&self) -> Option<&'static str> {
        match self {
            Self { batch_size: 0, .. } => Some("batch_size is at least 1"),
            Self { save_interval: 0, .. } => Some("save_interval is at least 1"),
            Self { publish_interval: 0, .. } => Some("publish_interval is at least 1"),
            Self { full_interval: Some(0), .. } => Some("full_interval is at least 1"),
            Self { max_passing: 0 | 1, .. } => Some("max_passing is at least 2"),
            _ => None,
        }
    }
}

/// Why a trainer ended before it was done.
#[derive(Debug, thiserror::Error)]
pub enum TinyTrainerError {
    /// It was told something impossible.
    #[error("the trainer cannot be started: {0}")]
    Options(&'static str),
    /// The thread could not be started, or panicked.
    #[error("the thread of the trainer failed: {0}")]
    Thread(String),
    /// The buffer failed.
    #[error("the trainer cannot read experiences: {0}")]
    Buffer(#[from] BufferError),
    /// The buffer does not know where the trainer was.
    #[error(
        "the trainer goes on from step {step}, but its buffer is not the one that it read from: \
         {source}; give it that one (a queue in memory ends with its process: set its path), or \
         another folder to begin anew"
    )]
    Position {
        /// The last step.
        step: u64,
        /// What the buffer says.
        source: BufferError,
    },
    /// Weights or its state could not be read or written.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Weights could not be published.
    #[error("the trainer cannot publish its weights: {0}")]
    Synchronizer(#[from] SyncError),
    /// A file of its own could not be read or written.
    #[error("{}: {problem}", path.display())]
    File {
        path: PathBuf,
        /// What is the matter.
        problem: String,
    },
    /// Too few experiences came in time.
    #[error(
        "step {step} needs {wanted} experiences, but only {got} came within {} s (read_timeout): \
         see whether the explorer is running and its batches have so many",
        waited.as_secs_f64()
    )]
    NoExperiences {
        /// The step that could not be made.
        step: u64,
        wanted: usize,
        got: usize,
        waited: Duration,
    },
}

impl From<WeightFolderError> for TinyTrainerError {
    fn from(error: WeightFolderError) -> Self {
        Self::File { path: error.path, problem: error.source.to_string() }
    }
}
