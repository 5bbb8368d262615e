//! Everybody who looks at a job: monitors, metrics, alarms, history and dashboard. Opened before
//! anything is begun, closed after everything has ended.

use std::path::Path;
use std::sync::Arc;

use rollway_config::{Config, Mode};
use rollway_dashboard::JobDashboard;
use rollway_engine::events::{RunObserver, RunObservers};
use rollway_engine::job_event::{JobObserver, JobObservers};
use rollway_telemetry::DropCounters;
use rollway_telemetry::alarms::AlarmObserver;
use rollway_telemetry::history::RunHistory;
use rollway_telemetry::monitors;
use rollway_telemetry::prometheus::{MetricsServer, PrometheusExporter};
use rollway_telemetry::summary::{Summary, SummaryState, SummaryWriter};
use rollway_telemetry::view::JobState;
use rollway_trace::Tracer;
use tokio_util::sync::CancellationToken;

use super::run::{JobOutcome, ObserverSet};
use super::{JobError, PreflightError};

/// Everybody who looks at a job.
#[derive(Debug)]
pub struct JobTelemetry {
    pub(super) eyes: ObserverSet,
    /// Cancelled when the job is to end: somebody wants that, or an alarm.
    pub(super) stop: CancellationToken,
    alarms: Arc<AlarmObserver>,
    history: Option<Arc<RunHistory>>,
    shown: Option<JobDashboard>,
    tracer: Option<Arc<Tracer>>,
    monitors: Vec<Arc<dyn JobObserver>>,
    _listening: Option<MetricsServer>,
}

impl JobTelemetry {
    /// Opens everything that looks, beside those who do already. Where the dashboard is, with its
    /// token, is for `people`: it is not written down.
    ///
    /// # Errors
    /// If something that was asked for cannot be had. History and dashboard only tell: a job goes
    /// on without them.
    pub async fn open(
        config: &Config,
        watchers: JobObservers,
        people: &JobObservers,
        stop: &CancellationToken,
    ) -> Result<Self, JobError> {
        let drops = DropCounters::default();
        let monitors = monitors::open(config, &drops).map_err(|error| {
            let what = format!("the monitor's files cannot be written: {error}");
            let hint = "see that the job's folder can be written to, or set `monitor: \
                        {monitor_type: none}`";
            PreflightError::new(what, hint)
        })?;
        let meters = PrometheusExporter::new(config, drops.clone());
        let listening = serve(config, &meters).await?;
        let watchers = watchers.with(Arc::clone(&meters) as _);
        let watchers = monitors.iter().fold(watchers, |all, it| all.with(Arc::clone(it)));
        let history = RunHistory::of(config);
        let watchers = history.iter().fold(watchers, |all, it| all.with(Arc::clone(it) as _));
        let stop = stop.child_token();
        let alarms = AlarmObserver::start(&config.alarms, watchers.clone(), &drops, stop.clone());
        let watchers = watchers.with(Arc::clone(&alarms) as _);
        let shown = match &history {
            Some(history) => {
                JobDashboard::open(config, history, Some(Arc::clone(&meters)), people).await
            }
            None => None,
        };
        // Nobody is told what nobody could ask for.
        let mut observers: Vec<Arc<dyn RunObserver>> = Vec::new();
        if listening.is_some() || shown.is_some() {
            observers.push(meters);
        }
        if config.alarms.is_any() {
            observers.push(Arc::clone(&alarms) as _);
        }
        observers.extend(history.iter().map(|it| Arc::clone(it) as _));
        let tracer = tracer(config)?;
        let watchers = tracer.iter().fold(watchers, |all, it| all.with(Arc::clone(it) as _));
        observers.extend(tracer.iter().map(|it| Arc::clone(it) as _));
        let eyes = ObserverSet { watchers, observers: RunObservers::new(observers) };
        Ok(Self { eyes, stop, alarms, history, shown, tracer, monitors, _listening: listening })
    }

    /// Returns all who are to be told of steps and evaluations.
    pub fn watchers(&self) -> JobObservers {
        self.eyes.watchers.clone()
    }

    /// Returns all who are to be told of runs and calls.
    pub fn observers(&self) -> RunObservers {
        self.eyes.observers.clone()
    }

    /// Returns what is cancelled when the job is to end: somebody wants that, or an alarm.
    pub fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Returns where the dashboard is, with the token that opens it; none: there is no dashboard.
    pub fn dashboard(&self) -> Option<String> {
        self.shown.as_ref().map(JobDashboard::address)
    }

    /// Returns the words of the alarm that ended the job; none did.
    pub fn alarm(&self) -> Option<&str> {
        self.alarms.tripped()
    }

    /// Writes down how the job ended, and with which error.
    pub async fn close(self, ended: JobState, error: Option<String>) {
        if let Some(tracer) = self.tracer {
            // Waits, within a deadline, until the last spans are written and sent.
            let _ = tokio::task::spawn_blocking(move || tracer.close()).await;
        }
        if let Some(history) = self.history {
            // It ends whatever becomes of the writing.
            let _ = tokio::task::spawn_blocking(move || history.close(ended, error)).await;
        }
        // Pages are told how it ended before they are left alone.
        drop(self.shown);
        self.alarms.end().await;
        // Observers may outlive the job in other tasks: monitors are closed, not only dropped.
        let monitors = self.monitors;
        let close = move || monitors.iter().for_each(|monitor| monitor.close());
        let _ = tokio::task::spawn_blocking(close).await;
    }

    /// Writes the end down, in the summary as well.
    pub(super) async fn conclude(
        self,
        recorder: &SummaryWriter,
        ended: Result<JobOutcome, JobError>,
    ) -> Result<Summary, JobError> {
        let ended = match self.alarm() {
            Some(words) => Err(JobError::Alarm(words.to_owned())),
            None => ended,
        };
        let concluded = conclude(recorder, ended);
        let (ended, error) = match &concluded {
            Ok(summary) if summary.state == SummaryState::Stopped => (JobState::Stopped, None),
            Ok(_) => (JobState::Finished, None),
            Err(error) => (JobState::Failed, Some(error.to_string())),
        };
        self.close(ended, error).await;
        concluded
    }
}

/// Serves the metrics of a job where its configuration says.
async fn serve(
    config: &Config,
    meters: &Arc<PrometheusExporter>,
) -> Result<Option<MetricsServer>, PreflightError> {
    let Some(address) = &config.monitor.prometheus else { return Ok(None) };
    let started = MetricsServer::start(address, Arc::clone(meters)).await;
    let listen = started.map_err(|error| {
        let hint = "set `monitor.prometheus` to an address of this machine with a free port; port \
                    0 means any";
        PreflightError::new(error.to_string(), hint)
    })?;
    tracing::info!("metrics for Prometheus are at http://{}/metrics", listen.address());
    Ok(Some(listen))
}

/// Opens the traces that a configuration asks for. Mode `train` has none: it shares the folder, and
/// so the trace file, with an explorer.
fn tracer(config: &Config) -> Result<Option<Arc<Tracer>>, PreflightError> {
    if config.mode == Mode::Train {
        return Ok(None);
    }
    Tracer::open(config).map_err(|error| {
        let what = format!("the job cannot be traced: {error}");
        let hint = "see that the job's folder can be written to and what `trace` and the variables \
                    `OTEL_…` say";
        PreflightError::new(what, hint)
    })
}

fn conclude(
    recorder: &SummaryWriter,
    ended: Result<JobOutcome, JobError>,
) -> Result<Summary, JobError> {
    let (state, error) = match &ended {
        Ok(ended) if ended.stopped => (SummaryState::Stopped, None),
        Ok(_) => (SummaryState::Finished, None),
        Err(error) => (SummaryState::Failed, Some(error.to_string())),
    };
    if let Ok(ended) = &ended {
        recorder.update(|summary| ended.update(summary));
    }
    let written = recorder.close(state, error);
    ended?;
    written.map_err(|error| unwritten(recorder.path(), &error))
}

fn unwritten(path: &Path, error: &std::io::Error) -> JobError {
    JobError::Summary { path: path.to_owned(), message: error.to_string() }
}
