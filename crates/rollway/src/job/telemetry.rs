//! Observers of a job: summary, monitors, metrics, alarms, history, traces and dashboard. Opened
//! before the explorer, closed after it.

use std::sync::Arc;

use rollway_base::listener::ListenerKind;
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

use super::preflight::create_folder;
use super::run::{JobOutcome, ObserverSet};
use super::{JobError, PreflightError};

/// Observers of a job.
#[derive(Debug)]
pub struct JobTelemetry {
    pub(super) observers: ObserverSet,
    /// Cancelled by the caller's stop or by an alarm.
    pub(super) stop: CancellationToken,
    /// Name of the job.
    name: String,
    recorder: Arc<SummaryWriter>,
    alarms: Arc<AlarmObserver>,
    history: Option<Arc<RunHistory>>,
    shown: Option<JobDashboard>,
    tracer: Option<Arc<Tracer>>,
    monitors: Vec<Arc<dyn JobObserver>>,
    _listening: Option<MetricsServer>,
}

impl JobTelemetry {
    /// Opens the summary and all configured observers in addition to `watchers`. Only
    /// `progress_observers` get the address of the dashboard with its token, so that the token is
    /// not recorded.
    ///
    /// # Errors
    /// If the summary, a monitor, the metrics endpoint or the tracer cannot be opened. A job runs
    /// without history and dashboard if these fail.
    pub async fn open(
        config: &Config,
        watchers: JobObservers,
        progress_observers: &JobObservers,
        stop: &CancellationToken,
    ) -> Result<Self, JobError> {
        create_folder(config)?;
        let recorder = SummaryWriter::open(config).map_err(PreflightError::from)?;
        let watchers = watchers.with(Arc::clone(&recorder) as _);
        let drops = DropCounters::default();
        let monitors = monitors::open(config, &drops).map_err(|error| {
            let message = format!("the files of the monitor cannot be written: {error}");
            let hint = "make the job's folder writable, or set `monitor: {monitor_type: none}`";
            PreflightError::new(message, hint)
        })?;
        let meters = PrometheusExporter::new(config, drops.clone());
        let listening = serve(config, &meters).await?;
        let watchers = watchers.with(Arc::clone(&meters) as _);
        let watchers = monitors.iter().fold(watchers, |all, it| all.with(Arc::clone(it)));
        let history = RunHistory::of(config, &drops);
        let watchers = history.iter().fold(watchers, |all, it| all.with(Arc::clone(it) as _));
        let stop = stop.child_token();
        let alarms = AlarmObserver::start(config, watchers.clone(), &drops, stop.clone());
        let watchers = watchers.with(Arc::clone(&alarms) as _);
        let shown = match &history {
            Some(history) => {
                JobDashboard::open(config, history, Some(Arc::clone(&meters)), progress_observers)
                    .await
            }
            None => None,
        };
        // The metrics observer is registered only if an endpoint serves it.
        let mut observers: Vec<Arc<dyn RunObserver>> = vec![recorder.failures()];
        if listening.is_some() || shown.is_some() {
            observers.push(meters);
        }
        if config.alarms.is_any() {
            observers.push(Arc::clone(&alarms) as _);
        }
        observers.extend(history.iter().map(|it| Arc::clone(it) as _));
        let tracer = tracer(config, &drops)?;
        let watchers = tracer.iter().fold(watchers, |all, it| all.with(Arc::clone(it) as _));
        observers.extend(tracer.iter().map(|it| Arc::clone(it) as _));
        let observers = ObserverSet { watchers, observers: RunObservers::new(observers) };
        Ok(Self {
            observers,
            stop,
            name: config.name.clone(),
            recorder,
            alarms,
            history,
            shown,
            tracer,
            monitors,
            _listening: listening,
        })
    }

    pub fn watchers(&self) -> JobObservers {
        self.observers.watchers.clone()
    }

    pub fn observers(&self) -> RunObservers {
        self.observers.observers.clone()
    }

    /// Returns the token that the caller's stop or an alarm cancels.
    pub fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Returns the address of the dashboard with its token. `None`: there is no dashboard.
    pub fn dashboard(&self) -> Option<String> {
        self.shown.as_ref().map(JobDashboard::address)
    }

    /// Returns the outcome of work on which the job depends: it failed if an alarm ended it, or if
    /// it ran to its end without a result.
    ///
    /// # Errors
    /// The failure of the work, the alarm, or the reason why there is no result.
    pub fn judge(&self, ended: Result<JobOutcome, JobError>) -> Result<JobOutcome, JobError> {
        if let Some(message) = self.alarms.tripped() {
            if let Err(error) = ended {
                tracing::warn!(%error, "an alarm ends the job, which failed");
            }
            return Err(JobError::Alarm(message.to_owned()));
        }
        let ended = ended?;
        let summary = self.recorder.update(|summary| ended.update(summary));
        if let Some(warning) = ended.untrained() {
            tracing::warn!("{warning}");
        }
        match ended.missing_result(&summary) {
            Some(reason) => {
                Err(JobError::NoResult { reason, hint: next_attempt(summary.mode, &self.name) })
            }
            None => Ok(ended),
        }
    }

    /// Records the end of the job, closes all observers, and returns the summary.
    ///
    /// # Errors
    /// If the summary cannot be written.
    pub async fn close(
        self,
        ended: SummaryState,
        error: Option<String>,
    ) -> Result<Summary, JobError> {
        let recorder = self.recorder;
        let written = recorder.close(ended, error.clone());
        let ended = match ended {
            SummaryState::Finished => JobState::Finished,
            SummaryState::Failed => JobState::Failed,
            SummaryState::Running | SummaryState::Stopped => JobState::Stopped,
        };
        if let Some(tracer) = self.tracer {
            // Waits, within a deadline, until the last spans are written and sent.
            let _ = tokio::task::spawn_blocking(move || tracer.close()).await;
        }
        if let Some(history) = self.history {
            // The job ends even if this fails.
            let _ = tokio::task::spawn_blocking(move || history.close(ended, error)).await;
        }
        // Pages have received the end of the job by now.
        drop(self.shown);
        self.alarms.end().await;
        // Observers may outlive the job in other tasks: monitors are closed, not only dropped.
        let monitors = self.monitors;
        let close = move || monitors.iter().for_each(|monitor| monitor.close());
        let _ = tokio::task::spawn_blocking(close).await;
        written.map_err(|error| JobError::Summary {
            path: recorder.path().to_owned(),
            message: error.to_string(),
        })
    }

    /// Judges the outcome of a job and closes all observers.
    pub(super) async fn conclude(
        self,
        ended: Result<JobOutcome, JobError>,
    ) -> Result<Summary, JobError> {
        let ended = self.judge(ended);
        let (state, error) = JobOutcome::state(&ended);
        let closed = self.close(state, error).await;
        ended?;
        closed
    }
}

/// Returns how a job without a result is run again.
fn next_attempt(mode: Mode, name: &str) -> String {
    match mode {
        Mode::Bench => "after a fix, run the same command again".to_owned(),
        Mode::Train => "check that the explorer delivers experiences to this buffer, then run the \
                        same command again"
            .to_owned(),
        _ => format!(
            "the tasks are spent: the same command does not run them again. After a fix, run all \
             of them with another name: add `name={name}-2` to the command, or set `name` in the \
             configuration"
        ),
    }
}

/// Starts the Prometheus endpoint of the configuration.
async fn serve(
    config: &Config,
    meters: &Arc<PrometheusExporter>,
) -> Result<Option<MetricsServer>, PreflightError> {
    let Some(address) = &config.monitor.prometheus else { return Ok(None) };
    let limits = config.listeners.limits(ListenerKind::Metrics);
    let started =
        MetricsServer::start(address, limits, &config.tls_options(), Arc::clone(meters)).await;
    let listen = started.map_err(|error| {
        let hint = "set `monitor.prometheus` to an address of this machine with a free port, or to \
                    port 0";
        PreflightError::new(error.to_string(), hint)
    })?;
    tracing::info!("Prometheus metrics are at {}", listen.url());
    Ok(Some(listen))
}

/// Opens the tracer. Mode `train` has none, because it shares the trace file with an explorer.
fn tracer(config: &Config, drops: &DropCounters) -> Result<Option<Arc<Tracer>>, PreflightError> {
    if config.mode == Mode::Train {
        return Ok(None);
    }
    Tracer::open(config, drops).map_err(|error| {
        let message = format!("the tracer cannot be opened: {error}");
        let hint = "make the job's folder writable, and check `trace` and the variables `OTEL_…`";
        PreflightError::new(message, hint)
    })
}
