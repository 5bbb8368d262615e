//! The trainer of a job: the embedded one, or a program that is started with it.
//!
//! [`TrainerInput`] says where experiences come from, [`Trainer`] is whoever learns from them.
//! `docs/run.md` says it for people.

mod embedded;
mod input;
mod program;

use std::time::Duration;

use rollway_config::{Config, TrainerType};
use rollway_engine::job_event::JobObservers;
use rollway_sync::Synchronizer;
use rollway_tiny::trainer::TinyTrainerError as TinyError;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use self::input::TrainerInput;
use self::program::{TrainerCommand, TrainerProcess};

/// Why a trainer did not start, or ended before it was done.
#[derive(Debug, thiserror::Error)]
pub enum TrainerError {
    /// The embedded trainer failed.
    #[error(transparent)]
    Embedded(#[from] TinyError),
    /// There is nothing to read experiences from.
    #[error("the trainer cannot read experiences: {0}")]
    Input(String),
    /// No program is named.
    #[error("no trainer is named\nhint: set `trainer.command`")]
    NoCommand,
    /// The program cannot be started.
    #[error("the trainer `{program}` could not be started: {message}\nhint: see `trainer.command`")]
    NotStarted {
        program: String,
        /// What the system says.
        message: String,
    },
    /// The program ended with an error.
    #[error("the trainer `{program}` ended with an error: {status}{last}")]
    Ended {
        program: String,
        /// What it ended with.
        status: String,
        /// Its last lines, each behind a line break and a mark; empty if it said nothing.
        last: String,
    },
    /// It panicked.
    #[error("the trainer broke: {0}")]
    Broken(String),
}

/// What a trainer did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrainerSummary {
    /// The last step, where the trainer tells.
    pub steps: Option<u64>,
}

/// A trainer that runs. Dropped, it is told to stop, and a program is killed.
#[derive(Debug)]
pub struct Trainer {
    stop: CancellationToken,
    grace: Duration,
    /// None: somebody else's, which nobody here can wait for.
    running: Option<JoinHandle<Result<TrainerSummary, TrainerError>>>,
}

impl Trainer {
    /// Starts the trainer of a resolved configuration. If it names none, one that somebody else
    /// starts is expected.
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
                    "no trainer is named (trainer.command): one that you start is waited for, \
                     {wait} s at most"
                );
                None
            }
            TrainerType::Command => {
                let order = TrainerCommand {
                    command: config.trainer.command.clone(),
                    env: input.environment(config, synchronizer),
                    grace,
                };
                let program = TrainerProcess::start(order)?;
                let name = config.trainer.name.clone();
                Some(tokio::spawn(watch(program, name, stop.clone(), synchronizer.clone())))
            }
        };
        Ok(Self { stop, grace, running })
    }

    /// Tells whether it is somebody else's.
    pub const fn is_elsewhere(&self) -> bool {
        self.running.is_none()
    }

    /// Waits for its end. Never returns if it is somebody else's, or was waited for already. A call
    /// that is given up loses nothing.
    pub async fn ended(&mut self) -> Result<TrainerSummary, TrainerError> {
        let Some(running) = &mut self.running else { return std::future::pending().await };
        let ended = running.await;
        self.running = None;
        ended.unwrap_or_else(|error| Err(TrainerError::Broken(error.to_string())))
    }

    /// Tells it to end soon and cleanly. A program that does not is killed when its time is up.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// How long it may take to end when it is told to.
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

/// Leads a program to its end, and speaks for it then: those who wait for its weights get to know
/// at once.
async fn watch(
    program: TrainerProcess,
    name: String,
    stop: CancellationToken,
    synchronizer: Synchronizer,
) -> Result<TrainerSummary, TrainerError> {
    let ended = program.run(stop.clone()).await;
    if !stop.is_cancelled() {
        let told = match (synchronizer.enter_trainer(&name).await, &ended) {
            (Ok(seat), Ok(())) => seat.done().await,
            (Ok(seat), Err(error)) => seat.failed(&error.to_string()).await,
            (Err(error), _) => Err(error),
        };
        if let Err(error) = told {
            tracing::warn!(%error, "nobody could be told that the trainer has ended");
        }
    }
    ended.map(|()| TrainerSummary::default())
}
