//! An explorer that is prepared, with all who look at it, and how its job ends.

use std::sync::Arc;

use rollway::config::Config;
use rollway::explorer::{Explorer, ExplorerOptions, JobEvent, JobObserver, JobObservers};
use rollway::job::{FailureTally, JobTelemetry};
use rollway::view::JobState;
use rollway::workflow_runtime::WorkflowRuntime;
use rollway_data::pipeline::OperatorRegistry;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::PyExplorerError;

/// One that is prepared, with all who look at it.
pub(super) struct PreparedExplorer {
    pub(super) explorer: Explorer,
    pub(super) telemetry: JobTelemetry,
    /// Stops it when an alarm wants that.
    _alarmed: AbortOnDropHandle<()>,
    pub(super) ended: (JobState, Option<String>),
}

impl PreparedExplorer {
    /// Opens the job's telemetry, then the explorer.
    pub(super) async fn open(
        config: &Config,
        workflow_runtime: WorkflowRuntime,
        observers: JobObservers,
        operators: Arc<OperatorRegistry>,
        stop: &CancellationToken,
    ) -> Result<Self, PyExplorerError> {
        let progress_observers = JobObservers::new(vec![Arc::new(Logged)]);
        let failures = Arc::new(FailureTally::new(config.log.failure_groups, Vec::new()));
        let telemetry =
            JobTelemetry::open(config, observers, &progress_observers, failures, stop).await?;
        let options = ExplorerOptions {
            runtime: Some(workflow_runtime),
            watchers: telemetry.watchers(),
            observers: telemetry.observers(),
            operators: Some(operators),
            ..ExplorerOptions::default()
        };
        let explorer = match Box::pin(Explorer::prepare(config, options)).await {
            Ok(explorer) => explorer,
            Err(error) => {
                telemetry.close(JobState::Failed, Some(error.to_string())).await;
                return Err(error.into());
            }
        };
        let (alarmed, stopper) = (telemetry.stop(), explorer.stopper());
        let alarmed = tokio::spawn(async move {
            alarmed.cancelled().await;
            stopper.stop();
        });
        let _alarmed = AbortOnDropHandle::new(alarmed);
        Ok(Self { explorer, telemetry, _alarmed, ended: (JobState::Stopped, None) })
    }

    /// Notes how work ended on which the job depends.
    pub(super) fn record_outcome<T, E: Into<PyExplorerError>>(
        &mut self,
        done: Result<T, E>,
    ) -> Result<T, PyExplorerError> {
        let done = match (self.telemetry.alarm(), done) {
            (Some(message), _) => Err(PyExplorerError::Alarm(message.to_owned())),
            (None, done) => done.map_err(Into::into),
        };
        self.ended = match &done {
            Ok(_) => (JobState::Finished, None),
            Err(PyExplorerError::Alarm(message)) => (JobState::Failed, Some(message.clone())),
            Err(PyExplorerError::Explorer(error)) => (JobState::Failed, Some(error.to_string())),
            Err(PyExplorerError::Job(error)) => (JobState::Failed, Some(error.to_string())),
            Err(_) => (JobState::Failed, None),
        };
        done
    }

    pub(super) async fn close(self) -> Result<(), PyExplorerError> {
        let Self { mut explorer, telemetry, ended: (state, error), .. } = self;
        let closed = explorer.shutdown().await;
        drop(explorer);
        telemetry.close(state, error).await;
        Ok(closed?)
    }
}

/// Puts what people have to know into the log.
#[derive(Debug)]
struct Logged;

impl JobObserver for Logged {
    fn on_event(&self, event: &JobEvent) {
        if let JobEvent::Info(message) = event {
            tracing::info!(target: "rollway::explorer", "{message}");
        }
    }
}
