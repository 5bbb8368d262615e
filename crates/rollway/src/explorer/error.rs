//! Errors of the explorer: what failed, and what to do.

use std::path::PathBuf;
use std::time::Duration;

use rollway_config::{ConfigError, ConfigProblem};
use rollway_engine::{JobReaderServerError, SinkError};
use rollway_gateway::gateway::StartError;
use rollway_sync::SyncError;
use rollway_tasksets::TasksetError;

use crate::workflow_runtime::WorkflowSetupError;

/// Reason why an explorer did not start, or ended before its job was done. Acknowledged results are
/// kept: the same command resumes the job once the reason is removed.
#[derive(Debug, thiserror::Error)]
pub enum ExplorerError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Tasks(#[from] TasksetError),
    #[error(transparent)]
    Sink(#[from] SinkError),
    #[error("the experience pipeline failed: {0}")]
    Pipeline(String),
    #[error(transparent)]
    Offer(#[from] JobReaderServerError),
    #[error(transparent)]
    Workflow(#[from] WorkflowSetupError),
    #[error(transparent)]
    Synchronizer(#[from] SyncError),
    #[error("the gateway does not start: {0}")]
    Gateway(#[from] StartError),
    #[error("the embedded model does not start: {0}")]
    Model(String),
    #[error(
        "no server of the model {model:?} was usable within {} s: {servers}\nhint: start the \
         server, or set `explorer.rollout_model.base_url` to its address",
        waited.as_secs_f64()
    )]
    NoServer { model: String, servers: String, waited: Duration },
    #[error(
        "none of {wanted} runners could be started\nhint: see the log for the reason; `rollway \
         check` finds common causes"
    )]
    NoRunner { wanted: u32 },
    #[error(transparent)]
    Engine(#[from] rollway_engine::Error),
    /// Too few tasks of a batch succeeded.
    #[error("step {step}: {message}\nhint: {hint}")]
    Short { step: u64, message: String, hint: &'static str },
    /// Successful runs without a reward.
    #[error(
        "step {step}: none of {experiences} experiences has a reward, so that the trainer learns \
         nothing from them\nhint: return a reward from the workflow (a number, or a dictionary \
         with `reward`), or add an operator that sets rewards; `algorithm.algorithm_type` `sft` \
         and `dpo` need none; then run the same command to continue"
    )]
    NoReward { step: u64, experiences: u64 },
    #[error(
        "the trainer failed: {0}\nhint: correct the cause, and start the job again; everything \
         that was explored is kept"
    )]
    TrainerFailed(String),
    /// No weights were published in time. `state`: the members of the job and their state.
    #[error(
        "after step {step}: {state}\nhint: check whether the trainer is running and reads this \
         job's buffer, then start the job again; everything that was explored is kept"
    )]
    NoWeights { step: u64, at_least: u64, waited: Duration, state: String },
    #[error(
        "not all servers have the weights of version {version}: {servers}\nhint: repair these \
         servers, and start the job again; they must be able to read {location}. \
         `synchronizer.load_timeout` is the time for retries"
    )]
    Stale { version: u64, servers: String, location: String },
    /// The weights of the resumed job are neither in its folder nor in the servers.
    #[error(
        "the job needs version {version} of the weights to resume, but {found}\nhint: restore \
         `global_step_{version}` in {}, or begin a new job with \
         `continue_from_checkpoint: false`",
        folder.display()
    )]
    LostWeights { version: u64, found: String, folder: PathBuf },
    #[error("{0}")]
    Weights(String),
    /// The checkpoint of the explorer cannot be read or written, or is invalid.
    #[error("{}: {message}\nhint: {hint}", path.display())]
    State { path: PathBuf, message: String, hint: String },
    /// The request does not fit the mode, the sync method or the state of the explorer.
    #[error("{0}")]
    NotNow(String),
}

impl From<ConfigProblem> for ExplorerError {
    fn from(problem: ConfigProblem) -> Self {
        Self::Config(problem.into())
    }
}
