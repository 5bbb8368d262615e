//! The coordinator: batches with a lifecycle, finalized into a sink.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rollway_core::metrics::Metrics;
use rollway_core::{
    BatchId, BatchResult, BatchState, BatchType, BatchView, Core, CoreConfig, Counters, Request,
    Response, RunId, RunnerState, StopReport, TaskId, UnresponsivePolicy,
};
use rollway_ledger as ledger;

use crate::batch_wait::BatchWait;
use crate::driver_handle::DriverHandle;
use crate::error::{Error, Result};
use crate::events::RunObservers;
use crate::ledger_bridge::{LedgerBridge, RestoreReport};
use crate::loop_lag::LoopLag;
use crate::runner_status::RunnerStatus;
use crate::sink::Sink;
use crate::task::Task;
use crate::workers::RunnerBackend;

/// Owns batches from submit to finalize. Cheap to clone; clones share one pool and one sink.
#[derive(Clone)]
pub struct RolloutCoordinator {
    pub(crate) handle: DriverHandle,
    sink: Option<Arc<dyn Sink>>,
}

impl std::fmt::Debug for RolloutCoordinator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RolloutCoordinator").field("handle", &self.handle).finish_non_exhaustive()
    }
}

/// State of the core at one moment.
#[derive(Clone, Debug, Default)]
pub struct CoreSnapshot {
    pub counters: Counters,
    pub runners: Vec<RunnerState>,
    /// Batches that are not closed.
    pub batches: Vec<BatchView>,
}

impl RolloutCoordinator {
    /// Returns a coordinator, idle until [`prepare`](Self::prepare). Without a sink it can only
    /// evaluate. Needs a tokio runtime.
    pub fn new(
        config: CoreConfig,
        workers: impl RunnerBackend,
        sink: Option<Arc<dyn Sink>>,
    ) -> Self {
        Self { handle: DriverHandle::spawn(config, workers, sink.clone()), sink }
    }

    /// Returns a coordinator with a ledger in a folder: everything that it acknowledges survives a
    /// crash. Batches of an existing ledger resume after [`prepare`](Self::prepare); only runs that
    /// had not ended are repeated.
    ///
    /// # Errors
    /// If the ledger is in use, of another job, damaged or of a newer version.
    pub async fn with_ledger(
        config: CoreConfig,
        workers: impl RunnerBackend,
        sink: Option<Arc<dyn Sink>>,
        folder: &Path,
        options: ledger::LedgerOptions,
    ) -> Result<(Self, RestoreReport)> {
        let folder = folder.to_owned();
        let opening = tokio::task::spawn_blocking(move || LedgerBridge::open(&folder, options));
        let opened = opening.await.map_err(|_| Error::Closed)?;
        let (ledger, recovered) = opened.map_err(|error| Error::Ledger(error.to_string()))?;
        let (handle, restored) =
            DriverHandle::restore(config, workers, sink.clone(), ledger, recovered)?;
        Ok((Self { handle, sink }, restored))
    }

    /// Passes all events to the observers. Must be called before any request.
    #[must_use]
    pub fn with_observers(self, observers: RunObservers) -> Self {
        self.handle.observe(observers);
        self
    }

    /// Records the model version in the ledger, if there is one. It must not decrease.
    pub async fn note_version(&self, version: u64) -> Result<()> {
        self.handle.note_version(version).await
    }

    /// Starts the runners and waits until each is ready or has failed to start; returns the numbers
    /// of ready and of wanted runners.
    pub async fn prepare(&self) -> Result<(u32, u32)> {
        self.handle.start().await
    }

    /// Stops; current attempts and deliveries get `timeout` to end. Batches that are not finalized
    /// by then are aborted; in a ledger, which is closed, they stay and can be resumed.
    pub async fn shutdown(&self, timeout: Duration) -> Result<StopReport> {
        self.handle.stop(timeout).await
    }

    /// Registers a batch and runs its tasks. A refused batch changes nothing.
    pub async fn submit_batch(
        &self,
        batch: impl Into<BatchId>,
        tasks: Vec<Task>,
        kind: BatchType,
        min_wait_num: Option<u32>,
    ) -> Result<()> {
        let request =
            Request::Submit { batch: batch.into(), kind, tasks: Vec::new(), min_wait_num };
        self.handle.request_with(request, tasks).await.map(drop)
    }

    /// Waits for a train batch, stores its experiences and closes it. May be repeated after a
    /// failure; after a success it returns the same result again.
    pub async fn finalize_train_batch(
        &self,
        batch: impl Into<BatchId>,
        timeout: Option<Duration>,
    ) -> Result<Arc<BatchResult>> {
        self.finalize(batch.into(), BatchType::Train, timeout).await
    }

    /// Waits for an eval batch and closes it. At the timeout it is closed incomplete.
    pub async fn finalize_eval_batch(
        &self,
        batch: impl Into<BatchId>,
        timeout: Option<Duration>,
    ) -> Result<Arc<BatchResult>> {
        self.finalize(batch.into(), BatchType::Eval, timeout).await
    }

    async fn finalize(
        &self,
        batch: BatchId,
        kind: BatchType,
        timeout: Option<Duration>,
    ) -> Result<Arc<BatchResult>> {
        let waited = Some(batch.clone());
        let finalized = self.handle.request(Request::Finalize { batch, kind, timeout });
        match self.handle.log_wait(waited, self.sink.as_ref(), finalized).await?.response {
            Response::Finalized(result) => Ok(result),
            other => unreachable!("response to a finalize: {other:?}"),
        }
    }

    /// Returns the reason of a wait for a batch. `None`: the batch has ended.
    pub(crate) async fn batch_wait(&self, batch: BatchId) -> Option<BatchWait> {
        self.handle.batch_wait(Some(batch), self.sink.as_ref()).await
    }

    /// Aborts a batch; finished results are stored if `keep_partial_results`. `None`: there was
    /// nothing to abort.
    pub async fn abort_batch(
        &self,
        batch: impl Into<BatchId>,
        reason: &str,
        keep_partial_results: bool,
    ) -> Result<Option<Arc<BatchResult>>> {
        let request = Request::Abort {
            batch: batch.into(),
            reason: reason.into(),
            keep_partial_results,
            unresponsive: UnresponsivePolicy::Replace,
        };
        match self.handle.request(request).await?.response {
            Response::Aborted(result) => Ok(result),
            other => unreachable!("response to an abort: {other:?}"),
        }
    }

    /// Cancels one run; tells whether it was active. Other runs of its attempt are repeated.
    pub async fn cancel_run(
        &self,
        batch: impl Into<BatchId>,
        task: TaskId,
        run: RunId,
        reason: &str,
    ) -> Result<bool> {
        self.handle.cancel_run(batch.into(), task, run, reason).await
    }

    /// Stores experiences that belong to no batch.
    pub async fn process_experiences(&self, payloads: Vec<Bytes>) -> Result<Metrics> {
        let sink = self.sink.as_ref().ok_or(Error::NoPipeline)?;
        if payloads.is_empty() {
            return Ok(Metrics::new());
        }
        sink.process(payloads).await.map_err(Error::Pipeline)
    }

    /// Returns the state of a batch. `None`: it is not registered, or no longer remembered.
    pub async fn batch_state(&self, batch: impl Into<BatchId>) -> Result<Option<BatchState>> {
        let batch = batch.into();
        self.handle.inspect(move |core| core.batch(&batch).and_then(|view| view.state)).await
    }

    /// Returns the status of every runner: stuck ones first, then by time in the current stage.
    pub async fn runner_states(&self) -> Result<Vec<RunnerStatus>> {
        self.handle.runners().await
    }

    /// Returns the conservation counters.
    pub async fn counters(&self) -> Result<Counters> {
        self.handle.inspect(|core| *core.counters()).await
    }

    /// Returns a consistent snapshot for metrics.
    pub async fn snapshot(&self) -> Result<CoreSnapshot> {
        let is_open = |batch: &BatchView| {
            !matches!(batch.state, Some(BatchState::Finalized | BatchState::Aborted))
        };
        let inspect = move |core: &Core| CoreSnapshot {
            counters: *core.counters(),
            runners: core.runners().map(|runner| runner.state).collect(),
            batches: core.batches().filter(is_open).collect(),
        };
        self.handle.inspect(inspect).await
    }

    /// Returns the conservation counters and the state of every runner.
    pub async fn counters_and_states(&self) -> Result<(Counters, Vec<RunnerState>)> {
        let states = |core: &Core| core.runners().map(|runner| runner.state).collect();
        self.handle.inspect(move |core| (*core.counters(), states(core))).await
    }

    /// Returns the loop lag of the driver, even of one that is stuck.
    pub fn lag(&self) -> LoopLag {
        self.handle.lag()
    }
}
