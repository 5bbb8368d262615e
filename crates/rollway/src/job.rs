//! One job of modes `both`, `explore`, `bench` or `train`, from its configuration to its summary.
//!
//! ```text
//! preflight ─► lock ─► parts in order ─► the loop ─► an orderly end ─► summary.json
//! ```
//!
//! `preflight.rs` says what is wrong before anything long is started, `lock.rs` keeps two processes
//! apart, `run.rs` starts, watches and ends explorer and trainer, `telemetry.rs` opens the
//! observers. `docs/run.md` describes a job.

mod debug;
mod lock;
mod preflight;
mod preflight_error;
mod run;
mod telemetry;

use std::path::PathBuf;
use std::sync::Arc;

use rollway_base::FileLock;
use rollway_config::{Config, Mode};
use rollway_engine::job_event::JobObservers;
use rollway_telemetry::summary;
use rollway_telemetry::summary::SummaryWriter;
pub use rollway_telemetry::summary::{EvalSummary, JobGoal, Summary, SummaryState};
use tokio_util::sync::CancellationToken;

pub use self::debug::{DebugCalls, DebugPhase, DebugReport, debug};

pub use self::preflight::check_local as check;
pub use self::preflight_error::PreflightError;
pub use self::telemetry::JobTelemetry;
use crate::explorer::ExplorerError;
use crate::trainer::TrainerError;

/// Why a job did not do what it should.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    #[error("{}", in_words(.0))]
    NotStarted(Vec<PreflightError>),
    /// The explorer failed.
    #[error(transparent)]
    Explorer(#[from] ExplorerError),
    /// The trainer failed.
    #[error(transparent)]
    Trainer(#[from] TrainerError),
    /// An alarm ended it.
    #[error("{0}")]
    Alarm(String),
    /// Somebody did not end when told to.
    #[error(
        "{who} did not end within {seconds} s\nhint: everything that was acknowledged is kept; \
         the same command goes on"
    )]
    Late {
        who: &'static str,
        /// How long it was waited for.
        seconds: f64,
    },
    /// The end could not be written down.
    #[error("{}: {message}", path.display())]
    Summary {
        /// The file.
        path: PathBuf,
        /// What is the matter.
        message: String,
    },
}

impl JobError {
    /// Tells whether the input is at fault, and nothing was started.
    pub const fn is_input(&self) -> bool {
        let found_later = matches!(
            self,
            Self::Explorer(
                ExplorerError::Config(_) | ExplorerError::Sink(_) | ExplorerError::Fleet(_)
            )
        );
        found_later || matches!(self, Self::NotStarted(_))
    }
}

impl From<PreflightError> for JobError {
    fn from(trouble: PreflightError) -> Self {
        Self::NotStarted(vec![trouble])
    }
}

/// A job.
#[derive(Debug)]
pub struct Job;

impl Job {
    /// Returns the summary of a job that has done already what its configuration asks for; none if
    /// there is anything left to do.
    pub fn finished(config: &Config) -> Result<Option<Summary>, JobError> {
        if config.mode == Mode::Bench {
            return Ok(None);
        }
        let known = summary::earlier(&config.named()).map_err(PreflightError::from)?;
        let is_over = |known: &Summary| {
            known.state == SummaryState::Finished && known.goal == JobGoal::of(config)
        };
        Ok(known.filter(is_over))
    }

    /// Runs the job of a resolved configuration to its end, or until it is told to stop: then it
    /// ends within a deadline, and the same command goes on.
    ///
    /// # Errors
    /// The first thing that went wrong. What was done is kept, and is in the summary as well.
    pub async fn run(
        config: Config,
        watchers: JobObservers,
        stop: CancellationToken,
    ) -> Result<Summary, JobError> {
        let config = config.named();
        if let Some(summary) = Self::finished(&config)? {
            return Ok(summary);
        }
        let troubles = preflight::check_all(&config).await;
        if !troubles.is_empty() {
            return Err(JobError::NotStarted(troubles));
        }
        let _locks = locks(&config)?;
        let people = watchers.clone();
        let recorder = SummaryWriter::open(&config).map_err(PreflightError::from)?;
        let watchers = watchers.with(Arc::clone(&recorder) as _);
        let lookout = JobTelemetry::open(&config, watchers, &people, &stop).await?;
        let ended = run::run(&config, lookout.eyes.clone(), &lookout.stop).await;
        lookout.conclude(&recorder, ended).await
    }
}

/// Takes the lock of everybody who works in this process.
fn locks(config: &Config) -> Result<Vec<FileLock>, PreflightError> {
    let (explorer, trainer) = (&*config.explorer.name, &*config.trainer.name);
    let names = match config.mode {
        Mode::Both => vec![explorer, trainer],
        Mode::Train => vec![trainer],
        Mode::Bench => vec!["bench"],
        Mode::Explore | Mode::Serve | Mode::Simulate => vec![explorer],
    };
    let job = config.job_dir();
    names.into_iter().map(|name| lock::acquire(&job, name)).collect()
}

fn in_words(troubles: &[PreflightError]) -> String {
    let words: Vec<String> = troubles.iter().map(PreflightError::to_string).collect();
    words.join("\n\n")
}
