//! The trainer of a job: the embedded one, or a program that is started with the job.
//!
//! [`TrainerInput`] is the source of experiences, [`Trainer`] the running trainer.

mod embedded;
mod input;
mod program;

use std::time::Duration;

use rollway_config::{Config, TrainerType};
use rollway_engine::job_event::JobObservers;
use rollway_sync::{Synchronizer, weight_folder};
use rollway_tiny::trainer::TinyTrainerError as TinyError;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use self::input::TrainerInput;
use self::program::{TrainerCommand, TrainerProcess};

/// Failure of a trainer.
#[derive(Debug, thiserror::Error)]
pub enum TrainerError {
    #[error(transparent)]
    Embedded(#[from] TinyError),
    #[error("the trainer cannot read experiences: {0}")]
    Input(String),
    #[error("no trainer is configured\nhint: set `trainer.command`")]
    NoCommand,
    #[error(
        "the trainer `{program}` could not be started: {message}\nhint: check `trainer.command`"
    )]
    NotStarted { program: String, message: String },
    #[error("the trainer `{program}` ended with an error: {status}{last}")]
    Ended {
        program: String,
        status: String,
        /// The last lines of its output, each after a line break and a mark.
        last: String,
    },
    #[error(
        "the trainer `{program}` ended without an error, but has published no weights{last}\nhint: \
         it has to read the experiences of `ROLLWAY_BUFFER` until they end, and to publish weights \
         after its steps: `rw.publish_weights`"
    )]
    NothingPublished { program: String, last: String },
    #[error("the trainer panicked: {0}")]
    Broken(String),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrainerSummary {
    /// The last train step. `None`: unknown.
    pub steps: Option<u64>,
    /// Experiences consumed since the first start of the job. `None`: unknown.
    pub experiences: Option<u64>,
}

/// A running trainer. Dropping it stops the embedded trainer and kills a program.
#[derive(Debug)]
pub struct Trainer {
    stop: CancellationToken,
    grace: Duration,
    /// `None`: started from outside, or ended.
    running: Option<JoinHandle<Result<TrainerSummary, TrainerError>>>,
}

impl Trainer {
    /// Starts the trainer of a resolved configuration. Without a command, a trainer that is started
    /// from outside is expected.
    pub async fn start(
        config: &Config,
        input: TrainerInput,
        synchronizer: &Synchronizer,
        watchers: JobObservers,
    ) -> Result<Self, TrainerError> {
        let stop = CancellationToken::new();
        let grace = config.trainer.grace.into();
        let running = match config.trainer.trainer_type {
            TrainerType::Tiny => {
                let reader = input.reader(config).await?;
                let trainer = embedded::start(config, reader, synchronizer, watchers).await?;
                Some(tokio::spawn(embedded::run(trainer, stop.clone())))
            }
            TrainerType::Command if config.trainer.command.is_empty() => {
                let wait = config.synchronizer.sync_timeout;
                tracing::warn!(
                    "no trainer is configured (trainer.command): waiting up to {wait} s for one \
                     that you start"
                );
                None
            }
            TrainerType::Command => {
                let command = TrainerCommand {
                    command: config.trainer.command.clone(),
                    env: input.environment(config, synchronizer),
                    grace,
                    lock: config.job_dir().join(format!("{}.program.lock", config.trainer.name)),
                };
                let program = TrainerProcess::start(command).await?;
                let name = config.trainer.name.clone();
                Some(tokio::spawn(watch(program, name, stop.clone(), synchronizer.clone())))
            }
        };
        Ok(Self { stop, grace, running })
    }

    /// Tells whether the trainer is started from outside.
    pub const fn is_elsewhere(&self) -> bool {
        self.running.is_none()
    }

    /// Waits for the end. Never returns for a trainer from outside, or a second time. Cancel-safe.
    pub async fn ended(&mut self) -> Result<TrainerSummary, TrainerError> {
        let Some(running) = &mut self.running else { return std::future::pending().await };
        let ended = running.await;
        self.running = None;
        ended.unwrap_or_else(|error| Err(TrainerError::Broken(error.to_string())))
    }

    /// Ends the trainer cleanly. A program is killed after the grace period.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Returns the maximum time to end after a stop.
    pub const fn grace(&self) -> Duration {
        self.grace
    }
}

impl Drop for Trainer {
    fn drop(&mut self) {
        self.stop();
        // A program is killed with its task; the embedded trainer ends after its step.
        if let Some(running) = &self.running {
            running.abort();
        }
    }
}

/// Tells whether the job has any weights.
async fn has_published(synchronizer: &Synchronizer) -> bool {
    let job_dir = synchronizer.file().parent();
    let is_on_disk = |job_dir| weight_folder::latest(job_dir).is_ok_and(|latest| latest.is_some());
    synchronizer.newest().await.is_some() || job_dir.is_some_and(is_on_disk)
}

/// Waits for the end of a program and reports it to the synchronizer, so that waits for weights end
/// at once.
async fn watch(
    program: TrainerProcess,
    name: String,
    stop: CancellationToken,
    synchronizer: Synchronizer,
) -> Result<TrainerSummary, TrainerError> {
    let output = program.output();
    let ended = match program.run(stop.clone()).await {
        Ok(()) if !stop.is_cancelled() && !has_published(&synchronizer).await => {
            let (program, last) = output.last();
            Err(TrainerError::NothingPublished { program, last })
        }
        ended => ended,
    };
    if !stop.is_cancelled() {
        let reported = match (synchronizer.join_trainer(&name).await, &ended) {
            (Ok(membership), Ok(())) => membership.done().await,
            (Ok(membership), Err(error)) => membership.failed(&error.to_string()).await,
            (Err(error), _) => Err(error),
        };
        if let Err(error) = reported {
            tracing::warn!(%error, "synchronizer unreachable; the end of the trainer \
             was not reported");
        }
    }
    ended.map(|()| TrainerSummary::default())
}
