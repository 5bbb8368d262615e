//! One job of modes `both`, `explore`, `bench` or `train`, from its configuration to its summary.
//!
//! ```text
//! preflight ─► lock ─► telemetry ─► explorer, trainer ─► shutdown ─► summary.json
//! ```
//!
//! `preflight.rs` checks before anything expensive starts, `lock.rs` excludes a second process,
//! `run.rs` starts, watches and ends explorer and trainer, `telemetry.rs` opens the observers.

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
pub use rollway_data::pipeline::OperatorRegistry;
use rollway_engine::job_event::JobObservers;
pub use rollway_telemetry::failures::{FailureGroup, FailureTally};
use rollway_telemetry::summary;
pub use rollway_telemetry::summary::{EvalSummary, JobGoal, Summary, SummaryState};
use tokio_util::sync::CancellationToken;

pub use self::debug::{DebugCalls, DebugPhase, DebugReport, debug};

pub use self::preflight::check_local as check;
pub use self::preflight_error::PreflightError;
pub use self::run::JobOutcome;
pub use self::telemetry::JobTelemetry;
use crate::explorer::{Explorer, ExplorerError};
use crate::trainer::TrainerError;

/// Failure of a job.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    #[error("{}", render(.0))]
    NotStarted(Vec<PreflightError>),
    #[error(transparent)]
    Explorer(#[from] ExplorerError),
    #[error(transparent)]
    Trainer(#[from] TrainerError),
    #[error("{0}")]
    Alarm(String),
    #[error(
        "{component} did not end within {seconds} s\nhint: everything that was acknowledged is \
         kept; the same command resumes the job"
    )]
    StopTimedOut { component: &'static str, seconds: f64 },
    #[error(
        "the job has no result: {reason}\nhint: the log has the first failure of each kind; \
         `rollway debug` runs one task and shows its error\nhint: {hint}"
    )]
    NoResult { reason: String, hint: String },
    #[error("{}: {message}", path.display())]
    Summary { path: PathBuf, message: String },
}

impl JobError {
    /// Tells whether the input is invalid, so that nothing was started.
    pub const fn is_input(&self) -> bool {
        let found_later = matches!(
            self,
            Self::Explorer(
                ExplorerError::Config(_) | ExplorerError::Sink(_) | ExplorerError::Workflow(_)
            )
        );
        found_later || matches!(self, Self::NotStarted(_))
    }
}

impl From<PreflightError> for JobError {
    fn from(error: PreflightError) -> Self {
        Self::NotStarted(vec![error])
    }
}

#[derive(Debug)]
pub struct Job;

impl Job {
    /// Returns the summary of a job that has reached its goal. `None`: there is work left.
    pub fn finished(config: &Config) -> Result<Option<Summary>, JobError> {
        if config.mode == Mode::Bench {
            return Ok(None);
        }
        let earlier = summary::earlier(&config.named()).map_err(PreflightError::from)?;
        let is_over = |earlier: &Summary| {
            earlier.state == SummaryState::Finished && earlier.goal == JobGoal::of(config)
        };
        Ok(earlier.filter(is_over))
    }

    /// Returns the summary that the last process of a job wrote. `None`: there is none.
    pub fn summary(config: &Config) -> Option<Summary> {
        summary::earlier(config).ok().flatten()
    }

    /// Explores with a prepared explorer and, in mode `both`, with the trainer that its
    /// configuration names; a failure of one ends the other. Without a trainer in the
    /// configuration, one that is started from outside is expected.
    ///
    /// # Errors
    /// The first failure. Finished work is kept.
    pub async fn explore(
        explorer: &mut Explorer,
        stop: &CancellationToken,
    ) -> Result<JobOutcome, JobError> {
        run::explore_and_train(explorer, stop).await
    }

    /// Runs the job of a resolved configuration to its end, or until `stop`: then it ends within a
    /// deadline, and the same command resumes it. `operators` are those that the pipeline can name.
    ///
    /// # Errors
    /// The first failure. Finished work is kept; the summary is written in any case.
    pub async fn run(
        config: Config,
        watchers: JobObservers,
        operators: Arc<OperatorRegistry>,
        stop: CancellationToken,
    ) -> Result<Summary, JobError> {
        let config = config.named();
        if let Some(summary) = Self::finished(&config)? {
            return Ok(summary);
        }
        let errors = preflight::check_all(&config, &operators).await;
        if !errors.is_empty() {
            return Err(JobError::NotStarted(errors));
        }
        let _locks = locks(&config)?;
        preflight::check_resume(&config).await?;
        let progress_observers = watchers.clone();
        let telemetry = JobTelemetry::open(&config, watchers, &progress_observers, &stop).await?;
        let ended =
            run::run(&config, telemetry.observers.clone(), operators, &telemetry.stop).await;
        telemetry.conclude(ended).await
    }
}

/// Locks the names of all members in this process.
fn locks(config: &Config) -> Result<Vec<FileLock>, PreflightError> {
    let (explorer, trainer) = (&*config.explorer.name, &*config.trainer.name);
    let names = match config.mode {
        Mode::Both => vec![explorer, trainer],
        Mode::Train => vec![trainer],
        Mode::Bench => vec!["bench"],
        Mode::Explore | Mode::Serve | Mode::Simulate => vec![explorer],
    };
    let job = preflight::create_folder(config)?;
    names.into_iter().map(|name| lock::acquire(&job, name)).collect()
}

fn render(errors: &[PreflightError]) -> String {
    let messages: Vec<String> = errors.iter().map(PreflightError::to_string).collect();
    messages.join("\n\n")
}
