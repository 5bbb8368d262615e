//! What ends an explorer, for people: what it was, and what to do about it.

use std::path::PathBuf;
use std::time::Duration;

use rollway_config::{ConfigError, ConfigProblem};
use rollway_engine::{JobReaderServerError, SinkError};
use rollway_gateway::gateway::StartError;
use rollway_sync::SyncError;
use rollway_tasksets::TasksetError;

use crate::workflow_runtime::WorkflowSetupError;

/// Why an explorer did not start, or ended before its job was done. Whatever it had acknowledged is
/// kept: the same command goes on from there once the reason is out of the way.
#[derive(Debug, thiserror::Error)]
pub enum ExplorerError {
    /// The configuration cannot be explored.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There are no tasks, or none that can be read.
    #[error(transparent)]
    Tasks(#[from] TasksetError),
    /// There is no pipeline or no buffer.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// The pipeline or the buffer does not open or close.
    #[error("the experience pipeline failed: {0}")]
    Pipeline(String),
    /// The buffer cannot be offered to trainers elsewhere.
    #[error(transparent)]
    Offer(#[from] JobReaderServerError),
    /// The runners cannot be had.
    #[error(transparent)]
    Fleet(#[from] WorkflowSetupError),
    /// Explorer and trainer cannot meet.
    #[error(transparent)]
    Synchronizer(#[from] SyncError),
    /// The gateway does not start.
    #[error("the gateway does not start: {0}")]
    Gateway(#[from] StartError),
    /// The embedded model does not start.
    #[error("the embedded model does not start: {0}")]
    Model(String),
    /// No server of the trained model can be used.
    #[error(
        "no server of the model {model:?} could be used within {} s: {servers}\nhint: start the \
         server, or set `explorer.rollout_model.base_url` to where it is",
        waited.as_secs_f64()
    )]
    NoServer {
        /// What the model is called.
        model: String,
        servers: String,
        waited: Duration,
    },
    /// No runner could be started.
    #[error(
        "none of {wanted} runners could be started\nhint: the log says why; `rollway check` \
         looks for the usual reasons"
    )]
    NoRunner {
        /// How many there should be.
        wanted: u32,
    },
    /// The engine refused something, or is gone.
    #[error(transparent)]
    Engine(#[from] rollway_engine::Error),
    /// A batch came up short, and may not.
    #[error("step {step}: {what}\nhint: {hint}")]
    Short {
        step: u64,
        /// How many tasks it has and needs.
        what: String,
        /// What to do.
        hint: &'static str,
    },
    /// The trainer ended with an error.
    #[error(
        "the trainer failed: {0}\nhint: see to it, and start the job again; everything that was \
         explored is kept"
    )]
    TrainerFailed(String),
    /// Nobody came with weights in time.
    #[error(
        "after step {step}: {who}\nhint: see whether the trainer is running and reads this job's \
         buffer, then start the job again; everything that was explored is kept"
    )]
    NoWeights {
        /// After which step.
        step: u64,
        /// The version that was waited for.
        at_least: u64,
        waited: Duration,
        /// Who was there, and what they did.
        who: String,
    },
    /// Servers do not have the weights that they should have.
    #[error(
        "not all servers have the weights of version {version}: {servers}\nhint: see to these \
         servers, and start the job again; they must be able to read {place}"
    )]
    Stale {
        version: u64,
        servers: String,
        /// Where the weights are.
        place: String,
    },
    /// The weights that the job was at are nowhere.
    #[error(
        "the job goes on with version {version} of the weights, but {found}\nhint: put \
         `global_step_{version}` back into {}, or begin a new job with \
         `continue_from_checkpoint: false`",
        folder.display()
    )]
    LostWeights {
        /// The version that the job was at.
        version: u64,
        found: String,
        /// Where checkpoints are.
        folder: PathBuf,
    },
    /// Weights cannot be read.
    #[error("{0}")]
    Weights(String),
    /// The explorer's own state cannot be read, written, or is not to be gone on from.
    #[error("{}: {what}\nhint: {hint}", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// What is the matter with it.
        what: String,
        /// What to do.
        hint: String,
    },
    /// What was asked for does not go with the mode or the method.
    #[error("{0}")]
    NotNow(String),
}

impl From<ConfigProblem> for ExplorerError {
    fn from(problem: ConfigProblem) -> Self {
        Self::Config(problem.into())
    }
}
