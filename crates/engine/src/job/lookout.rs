//! Everybody who looks at a job: summary, monitors, metrics, alarms, history and dashboard. Opened
//! before anything is begun, closed after everything has ended.

use std::path::Path;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::parts::{Ended, Eyes};
use super::summary::{Recorder, State, Summary};
use super::{JobError, Trouble};
use crate::alarms::Alarms;
use crate::config::Config;
use crate::dashboard::Shown;
use crate::drops::Drops;
use crate::explorer::Watchers;
use crate::history::History;
use crate::meters::{Listen, Meters};
use crate::monitor;
use crate::observe::{Observer, Observers};
use crate::scene::JobState;

/// Everybody who looks at a job.
#[derive(Debug)]
pub(super) struct Lookout {
    pub(super) eyes: Eyes,
    /// Cancelled when the job is to end: somebody wants that, or an alarm.
    pub(super) stop: CancellationToken,
    recorder: Arc<Recorder>,
    alarms: Arc<Alarms>,
    history: Option<Arc<History>>,
    shown: Option<Shown>,
    _listening: Option<Listen>,
}

impl Lookout {
    /// Opens everything that looks, beside those who do already.
    ///
    /// # Errors
    /// If something that was asked for cannot be had. History and dashboard only tell: a job goes
    /// on without them.
    pub(super) async fn open(
        config: &Config,
        watchers: Watchers,
        stop: &CancellationToken,
    ) -> Result<Self, JobError> {
        // Where the dashboard is, with its token, is for people: it is not written down.
        let people = watchers.clone();
        let recorder = Recorder::open(config)?;
        let drops = Drops::default();
        let monitors = monitor::open(config, &drops).map_err(|error| {
            let what = format!("the monitor's files cannot be written: {error}");
            let hint = "see that the job's folder can be written to, or set `monitor: \
                        {monitor_type: none}`";
            Trouble::new(what, hint)
        })?;
        let meters = Meters::new(config, drops.clone());
        let listening = serve(config, &meters).await?;
        let watchers = watchers.and(Arc::clone(&recorder) as _).and(Arc::clone(&meters) as _);
        let watchers = monitors.into_iter().fold(watchers, |all, monitor| all.and(monitor));
        let history = History::of(config);
        let watchers = history.iter().fold(watchers, |all, it| all.and(Arc::clone(it) as _));
        let stop = stop.child_token();
        let alarms = Alarms::start(&config.alarms, watchers.clone(), &drops, stop.clone());
        let watchers = watchers.and(Arc::clone(&alarms) as _);
        let mut observers: Vec<Arc<dyn Observer>> = vec![Arc::clone(&meters) as _];
        observers.push(Arc::clone(&alarms) as _);
        observers.extend(history.iter().map(|it| Arc::clone(it) as _));
        let shown = match &history {
            Some(history) => Shown::open(config, history, Some(meters), &people).await,
            None => None,
        };
        let eyes = Eyes { watchers, observers: Observers::new(observers) };
        Ok(Self { eyes, stop, recorder, alarms, history, shown, _listening: listening })
    }

    /// Writes the end down, whatever it was.
    pub(super) async fn close(self, ended: Result<Ended, JobError>) -> Result<Summary, JobError> {
        let ended = match self.alarms.tripped() {
            Some(words) => Err(JobError::Alarm(words.to_owned())),
            None => ended,
        };
        let concluded = conclude(&self.recorder, ended);
        if let Some(history) = self.history {
            end_history(history, &concluded).await;
        }
        // Pages are told how it ended before they are left alone.
        drop(self.shown);
        concluded
    }
}

/// Serves the metrics of a job where its configuration says.
async fn serve(config: &Config, meters: &Arc<Meters>) -> Result<Option<Listen>, Trouble> {
    let Some(address) = &config.monitor.prometheus else { return Ok(None) };
    let started = Listen::start(address, Arc::clone(meters)).await;
    let listen = started.map_err(|error| {
        let hint = "set `monitor.prometheus` to an address of this machine with a free port; port \
                    0 means any";
        Trouble::new(error.to_string(), hint)
    })?;
    tracing::info!("metrics for Prometheus are at http://{}/metrics", listen.address());
    Ok(Some(listen))
}

async fn end_history(history: Arc<History>, concluded: &Result<Summary, JobError>) {
    let (outcome, error) = match concluded {
        Ok(summary) if summary.state == State::Stopped => (JobState::Stopped, None),
        Ok(_) => (JobState::Finished, None),
        Err(error) => (JobState::Failed, Some(error.to_string())),
    };
    // It ends whatever becomes of the writing.
    let _ = tokio::task::spawn_blocking(move || history.close(outcome, error)).await;
}

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
