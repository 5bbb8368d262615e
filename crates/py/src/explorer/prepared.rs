//! An explorer that is prepared, with all who look at it, and how its job ends.

use std::sync::Arc;

use rollway::config::Config;
use rollway::explorer::{
    BenchResult, Explorer, ExplorerOptions, JobEvent, JobObserver, JobObservers,
};
use rollway::job::{Job, JobError, JobOutcome, JobTelemetry, SummaryState};
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
    /// State and error that the summary gets.
    ended: (SummaryState, Option<String>),
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
        // A job that has reached its goal stays finished if it only evaluates again.
        let state = match Job::finished(config)? {
            Some(_) => SummaryState::Finished,
            None => SummaryState::Stopped,
        };
        let telemetry = JobTelemetry::open(config, observers, &progress_observers, stop).await?;
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
                if let Err(second) =
                    telemetry.close(SummaryState::Failed, Some(error.to_string())).await
                {
                    tracing::warn!(error = %second, "the summary of the job is incomplete");
                }
                return Err(error.into());
            }
        };
        let (alarmed, stopper) = (telemetry.stop(), explorer.stopper());
        let alarmed = tokio::spawn(async move {
            alarmed.cancelled().await;
            stopper.stop();
        });
        let _alarmed = AbortOnDropHandle::new(alarmed);
        Ok(Self { explorer, telemetry, _alarmed, ended: (state, None) })
    }

    /// Explores, beside the trainer of mode `both`.
    pub(super) async fn explore(&mut self, stop: &CancellationToken) -> Result<(), JobError> {
        let ended = Box::pin(Job::explore(&mut self.explorer, stop)).await;
        self.record(ended)
    }

    /// Evaluates checkpoints.
    pub(super) async fn benchmark(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Vec<BenchResult>, JobError> {
        let (scores, ended) = match self.explorer.benchmark().await {
            Ok(scores) => (scores, Ok(JobOutcome::benchmark(stop.is_cancelled()))),
            Err(error) => (Vec::new(), Err(error.into())),
        };
        self.record(ended)?;
        Ok(scores)
    }

    /// Judges and records the end of work on which the job depends.
    fn record(&mut self, ended: Result<JobOutcome, JobError>) -> Result<(), JobError> {
        let ended = self.telemetry.judge(ended);
        self.ended = JobOutcome::state(&ended);
        ended.map(drop)
    }

    pub(super) async fn close(self) -> Result<(), PyExplorerError> {
        let Self { mut explorer, telemetry, ended: (state, error), .. } = self;
        let closed = explorer.shutdown().await;
        drop(explorer);
        telemetry.close(state, error).await?;
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
