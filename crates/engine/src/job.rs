//! One job of modes `both`, `explore`, `bench` or `train`, from its configuration to its summary.
//!
//! ```text
//! preflight ─► lock ─► parts in order ─► the loop ─► an orderly end ─► summary.json
//! ```
//!
//! `preflight.rs` says what is wrong before anything long is started, `lock.rs` keeps two processes
//! apart, `parts.rs` starts, watches and ends explorer and trainer, `summary.rs` writes down what
//! came of it. `docs/run.md` says it for people.

mod debug;
mod lock;
mod parts;
mod preflight;
mod summary;
mod trouble;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

pub use self::debug::{Calls, Debugged, Phase, debug};
use self::lock::Lock;
use self::parts::{Ended, Seen};
pub use self::preflight::cheap as check;
use self::summary::Recorder;
pub use self::summary::{Eval, Goal, State, Summary};
pub use self::trouble::Trouble;
use crate::config::{Config, Mode};
use crate::dashboard::Shown;
use crate::explorer::{ExplorerError, Watchers};
use crate::history::{self, History};
use crate::monitor::Monitor;
use crate::observe::Observers;
use crate::scene::JobState;
use crate::trainer::TrainerError;

/// Why a job did not do what it should.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// It was not started.
    #[error("{}", in_words(.0))]
    NotStarted(Vec<Trouble>),
    /// The explorer failed.
    #[error(transparent)]
    Explorer(#[from] ExplorerError),
    /// The trainer failed.
    #[error(transparent)]
    Trainer(#[from] TrainerError),
    /// Somebody did not end when told to.
    #[error(
        "{who} did not end within {seconds} s\nhint: everything that was acknowledged is kept; \
         the same command goes on"
    )]
    Late {
        /// Who.
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

impl From<Trouble> for JobError {
    fn from(trouble: Trouble) -> Self {
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
        let known = summary::earlier(&config.named())?;
        let is_over =
            |known: &Summary| known.state == State::Finished && known.goal == Goal::of(config);
        Ok(known.filter(is_over))
    }

    /// Runs the job of a resolved configuration to its end, or until it is told to stop: then it
    /// ends within a deadline, and the same command goes on.
    ///
    /// # Errors
    /// The first thing that went wrong. What was done is kept, and is in the summary as well.
    pub async fn run(
        config: Config,
        watchers: Watchers,
        stop: CancellationToken,
    ) -> Result<Summary, JobError> {
        let config = config.named();
        if let Some(summary) = Self::finished(&config)? {
            return Ok(summary);
        }
        let troubles = preflight::thorough(&config).await;
        if !troubles.is_empty() {
            return Err(JobError::NotStarted(troubles));
        }
        let _locks = locks(&config)?;
        let recorder = Recorder::open(&config)?;
        let monitor = Monitor::open(&config).map_err(|error| {
            let what = format!("the monitor's files cannot be written: {error}");
            let hint = "see that the job's folder can be written to, or set `monitor: \
                        {monitor_type: none}`";
            Trouble::new(what, hint)
        })?;
        // Where the dashboard is, with its token, is for people: it is not written down.
        let people = watchers.clone();
        let watchers = watchers.and(Arc::clone(&recorder) as _);
        let watchers = monitor.into_iter().fold(watchers, |all, monitor| all.and(monitor));
        let history = history(&config);
        let watchers = history.iter().fold(watchers, |all, it| all.and(Arc::clone(it) as _));
        let observers = history.iter().map(|it| Arc::clone(it) as _).collect();
        let shown = match &history {
            Some(history) => Shown::open(&config, history, None, &people).await,
            None => None,
        };
        let seen = Seen { watchers, observers: Observers::new(observers) };
        let ended = parts::run(&config, seen, &stop).await;
        let concluded = conclude(&recorder, ended);
        if let Some(history) = history {
            close(history, &concluded).await;
        }
        // Pages are told how it ended before they are left alone.
        drop(shown);
        concluded
    }
}

/// Opens the history of runs. A job goes on without one: it only tells what was.
fn history(config: &Config) -> Option<Arc<History>> {
    let options = history::Options::of(config)?;
    let opened = History::open(&options);
    opened
        .map_err(|error| {
            let folder = options.dir.display();
            tracing::warn!(%error, %folder, "no history of runs is kept");
        })
        .ok()
}

/// Has the history written to its end.
async fn close(history: Arc<History>, concluded: &Result<Summary, JobError>) {
    let (outcome, error) = match concluded {
        Ok(summary) if summary.state == State::Stopped => (JobState::Stopped, None),
        Ok(_) => (JobState::Finished, None),
        Err(error) => (JobState::Failed, Some(error.to_string())),
    };
    // It ends whatever becomes of the writing.
    let _ = tokio::task::spawn_blocking(move || history.close(outcome, error)).await;
}

/// Takes the lock of everybody who works in this process.
fn locks(config: &Config) -> Result<Vec<Lock>, Trouble> {
    let (explorer, trainer) = (&*config.explorer.name, &*config.trainer.name);
    let names = match config.mode {
        Mode::Both => vec![explorer, trainer],
        Mode::Train => vec![trainer],
        Mode::Bench => vec!["bench"],
        Mode::Explore | Mode::Serve | Mode::Simulate => vec![explorer],
    };
    let job = config.job_dir();
    names.into_iter().map(|name| Lock::take(&job, name)).collect()
}

/// Writes the end down, whatever it was.
fn conclude(recorder: &Recorder, ended: Result<Ended, JobError>) -> Result<Summary, JobError> {
    let (state, error) = match &ended {
        Ok(ended) if ended.stopped => (State::Stopped, None),
        Ok(_) => (State::Finished, None),
        Err(error) => (State::Failed, Some(error.to_string())),
    };
    if let Ok(ended) = &ended {
        recorder.ended(ended);
    }
    let written = recorder.close(state, error);
    ended?;
    written.map_err(|error| unwritten(recorder.path(), &error))
}

fn unwritten(path: &Path, error: &std::io::Error) -> JobError {
    JobError::Summary { path: path.to_owned(), message: error.to_string() }
}

fn in_words(troubles: &[Trouble]) -> String {
    let words: Vec<String> = troubles.iter().map(Trouble::to_string).collect();
    words.join("\n\n")
}
