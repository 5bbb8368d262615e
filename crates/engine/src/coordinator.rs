//! The coordinator: batches with a life cycle, finalized into a sink.

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

use crate::driver::DriverResponse;
use crate::driver_handle::DriverHandle;
use crate::error::{Error, Result};
use crate::events::RunObservers;
use crate::ledger_bridge::{LedgerBridge, RestoreReport};
use crate::loop_lag::LoopLag;
use crate::runner_status::RunnerStatus;
use crate::sink::Sink;
use crate::task::Task;
use crate::workers::RunnerBackend;

/// Owns batches from submit to finalize. Clones share one pool and one sink.
#[derive(Clone)]
pub struct RolloutCoordinator {
    handle: DriverHandle,
    sink: Option<Arc<dyn Sink>>,
}

impl std::fmt::Debug for RolloutCoordinator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RolloutCoordinator").field("handle", &self.handle).finish_non_exhaustive()
    }
}

/// The core at one moment.
#[derive(Clone, Debug, Default)]
pub struct CoreSnapshot {
    pub counters: Counters,
    pub runners: Vec<RunnerState>,
    /// Those that are not closed.
    pub batches: Vec<BatchView>,
}

fn is_open(batch: &BatchView) -> bool {
    !matches!(batch.state, Some(BatchState::Finalized | BatchState::Aborted))
}

impl RolloutCoordinator {
    /// Returns a coordinator that does nothing until it is prepared. Without a sink it can only
    /// evaluate. Must be called in a tokio runtime, which it lives in.
    pub fn new(
        config: CoreConfig,
        workers: impl RunnerBackend,
        sink: Option<Arc<dyn Sink>>,
    ) -> Self {
        Self { handle: DriverHandle::spawn(config, workers, sink.clone()), sink }
    }

    /// Returns a coordinator with a ledger in a folder: whatever it acknowledges survives the death
    /// of the process at any moment. If there is a ledger already, its batches go on where they
    /// were once the coordinator is prepared, and only runs that had not ended are run again.
    ///
    /// # Errors
    /// If the ledger cannot be opened: it is in use, of another job, damaged or newer than this
    /// program.
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
        let (durable, recovered) = opened.map_err(|error| Error::Ledger(error.to_string()))?;
        let (handle, restored) =
            DriverHandle::restore(config, workers, sink.clone(), durable, recovered)?;
        Ok((Self { handle, sink }, restored))
    }

    /// Has these see everything that happens, beginning with what there is. To be said before
    /// anything is asked.
    #[must_use]
    pub fn with_observers(self, observers: RunObservers) -> Self {
        self.handle.observe(observers);
        self
    }

    /// Notes the version of the model in the ledger, if there is one: it never goes backwards.
    pub async fn note_version(&self, version: u64) -> Result<()> {
        self.handle.note_version(version).await
    }

    /// Starts the runners and waits until each is ready or has failed to start; returns how many
    /// are ready and how many there should be.
    pub async fn prepare(&self) -> Result<(u32, u32)> {
        match self.ask(Request::Start).await?.answer {
            Response::Started { ready, wanted } => Ok((ready, wanted)),
            other => unreachable!("a start is answered by a start: {other:?}"),
        }
    }

    /// Stops; attempts and deliveries under way get `timeout` to end. Batches that are not
    /// finalized by then are aborted, and the report says what that leaves behind. In a ledger they
    /// stay as they are, and go on when it is opened again; it is closed with the answer.
    pub async fn shutdown(&self, timeout: Duration) -> Result<StopReport> {
        match self.ask(Request::Stop { timeout }).await?.answer {
            Response::Stopped(report) => Ok(report),
            other => unreachable!("a stop is answered by a stop: {other:?}"),
        }
    }

    /// Registers a batch and runs its tasks. A refused batch leaves nothing behind.
    pub async fn submit_batch(
        &self,
        batch: impl Into<BatchId>,
        tasks: Vec<Task>,
        kind: BatchType,
        min_wait_num: Option<u32>,
    ) -> Result<()> {
        let what = Request::Submit { batch: batch.into(), kind, tasks: Vec::new(), min_wait_num };
        let tasks = tasks.into_iter().map(Arc::new).collect();
        self.handle.ask(what, tasks).await.map(|_| ())
    }

    /// Waits for a train batch, stores its experiences and closes it. After a failure nothing is
    /// lost and it may be called again; after a success it returns the same result again.
    pub async fn finalize_train_batch(
        &self,
        batch: impl Into<BatchId>,
        timeout: Option<Duration>,
    ) -> Result<Arc<BatchResult>> {
        self.finalize(batch.into(), BatchType::Train, timeout).await
    }

    /// Waits for an eval batch and closes it. A batch that is short when time is up is closed as it
    /// is, and its result says what is missing.
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
        match self.ask(Request::Finalize { batch, kind, timeout }).await?.answer {
            Response::Finalized(result) => Ok(result),
            other => unreachable!("finalizing is answered by a result: {other:?}"),
        }
    }

    /// Gives a batch up, storing what it has finished if asked to. None: there was nothing to
    /// abort.
    pub async fn abort_batch(
        &self,
        batch: impl Into<BatchId>,
        reason: &str,
        keep_partial_results: bool,
    ) -> Result<Option<Arc<BatchResult>>> {
        let what = Request::Abort {
            batch: batch.into(),
            reason: reason.into(),
            keep_partial_results,
            unresponsive: UnresponsivePolicy::Replace,
        };
        match self.ask(what).await?.answer {
            Response::Aborted(result) => Ok(result),
            other => unreachable!("an abort is answered by an abort: {other:?}"),
        }
    }

    /// Cancels one run; tells whether there was one to cancel. Its task goes on without it, what
    /// others have finished stays, and runs that its runner was given with it are run again.
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

    /// Returns where a batch stands; none: it is not registered, or forgotten.
    pub async fn batch_state(&self, batch: impl Into<BatchId>) -> Result<Option<BatchState>> {
        let batch = batch.into();
        self.handle.look(move |core| core.batch(&batch).and_then(|view| view.state)).await
    }

    /// Returns every runner with what it does now: those that are stuck first, then those that are
    /// longest at it.
    pub async fn runner_states(&self) -> Result<Vec<RunnerStatus>> {
        self.handle.runners().await
    }

    /// Returns the conservation counters.
    pub async fn counters(&self) -> Result<Counters> {
        self.handle.look(|core| *core.counters()).await
    }

    /// Returns everything that metrics show, as it is at one moment.
    pub async fn snapshot(&self) -> Result<CoreSnapshot> {
        let look = |core: &Core| CoreSnapshot {
            counters: *core.counters(),
            runners: core.runners().map(|runner| runner.state).collect(),
            batches: core.batches().filter(is_open).collect(),
        };
        self.handle.look(look).await
    }

    /// Returns the conservation counters, and what every runner is at.
    pub async fn counters_and_states(&self) -> Result<(Counters, Vec<RunnerState>)> {
        let look =
            |core: &Core| (*core.counters(), core.runners().map(|runner| runner.state).collect());
        self.handle.look(look).await
    }

    /// Returns how late the driver is: how long messages wait until they are applied. Asks nobody,
    /// so that it tells the truth of a driver that is stuck too.
    pub fn lag(&self) -> LoopLag {
        self.handle.lag()
    }

    async fn ask(&self, what: Request) -> Result<DriverResponse> {
        self.handle.ask(what, Vec::new()).await
    }
}
