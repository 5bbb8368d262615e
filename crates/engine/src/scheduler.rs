//! The scheduler: tasks in, results out, batch by batch.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rollway_core::{
    BatchId, BatchType, BatchView, CollectOutcome, CoreConfig, Counters, Request, Response, RunId,
    RunnerView, Status, StopReport, TaskId, UnresponsivePolicy,
};

use crate::driver::DriverResponse;
use crate::driver_handle::DriverHandle;
use crate::error::Result;
use crate::events::RunObservers;
use crate::loop_lag::LoopLag;
use crate::runner_status::RunnerStatus;
use crate::task::Task;
use crate::workers::RunnerBackend;

/// Options of a wait for results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectOptions {
    /// Number of tasks that suffice. `None`: all.
    pub min_num: Option<u32>,
    /// Maximum wait. `None`: while the batch makes progress.
    pub timeout: Option<Duration>,
    /// Cancel unfinished tasks at the end of the wait.
    pub clear_timeout_tasks: bool,
    /// Return the finished runs of cancelled tasks.
    pub return_partial_tasks: bool,
}

impl Default for CollectOptions {
    fn default() -> Self {
        Self {
            min_num: None,
            timeout: None,
            clear_timeout_tasks: true,
            return_partial_tasks: false,
        }
    }
}

/// Results of a batch.
#[derive(Clone, Debug)]
pub struct BatchResults {
    pub outcome: CollectOutcome,
    /// Number of expected tasks.
    pub expected: u64,
    /// Sorted by task id.
    pub statuses: Vec<(TaskId, Arc<Status>)>,
    /// Payloads of successful runs, sorted by task and run.
    pub payloads: Vec<Bytes>,
}

/// Runs tasks on a pool of runners. Cheap to clone; the pool ends with the last clone.
#[derive(Clone, Debug)]
pub struct Scheduler {
    pub(crate) handle: DriverHandle,
}

impl Scheduler {
    /// Returns a scheduler, idle until [`start`](Self::start). Needs a tokio runtime.
    pub fn new(config: CoreConfig, workers: impl RunnerBackend) -> Self {
        Self { handle: DriverHandle::spawn(config, workers, None) }
    }

    /// Passes all events to the observers. Must be called before any request.
    #[must_use]
    pub fn observed(self, observers: RunObservers) -> Self {
        self.handle.observe(observers);
        self
    }

    /// Passes all later events to the observers, which replace earlier ones. Current batches are
    /// reported first; events of the past are not repeated.
    pub async fn replace_observers(&self, observers: RunObservers) -> Result<()> {
        self.handle.replace_observers(observers).await
    }

    /// Starts the runners and waits until each is ready or has failed to start; returns the numbers
    /// of ready and of wanted runners.
    pub async fn start(&self) -> Result<(u32, u32)> {
        self.handle.start().await
    }

    /// Stops: no attempt is started, waits end, current attempts get `timeout` to end. Results can
    /// still be collected.
    pub async fn stop(&self, timeout: Duration) -> Result<StopReport> {
        self.handle.stop(timeout).await
    }

    /// Adds tasks to a batch, whose type is that of its first task.
    pub async fn schedule(&self, tasks: Vec<Task>, batch: impl Into<BatchId>) -> Result<()> {
        let eval = tasks.first().is_some_and(|task| task.is_eval);
        let kind = if eval { BatchType::Eval } else { BatchType::Train };
        let request = Request::Schedule { batch: batch.into(), kind, tasks: Vec::new() };
        self.handle.request_with(request, tasks).await.map(drop)
    }

    /// Waits for a batch and takes its results. Cancel-safe.
    pub async fn get_payload_results(
        &self,
        batch: impl Into<BatchId>,
        options: CollectOptions,
    ) -> Result<BatchResults> {
        let batch = batch.into();
        let request = Request::Collect {
            batch: batch.clone(),
            min_num: options.min_num,
            timeout: options.timeout,
            clear_timeout_tasks: options.clear_timeout_tasks,
            return_partial_tasks: options.return_partial_tasks,
        };
        Ok(receive(self.handle.log_wait(Some(batch), None, self.handle.request(request)).await?))
    }

    /// Same as [`get_payload_results`](Self::get_payload_results), without payloads.
    pub async fn get_statuses(
        &self,
        batch: impl Into<BatchId>,
        options: CollectOptions,
    ) -> Result<Vec<(TaskId, Arc<Status>)>> {
        Ok(self.get_payload_results(batch, options).await?.statuses)
    }

    /// Takes the current results of a batch.
    pub async fn drain_batch_payload_results(
        &self,
        batch: impl Into<BatchId>,
    ) -> Result<BatchResults> {
        Ok(receive(self.handle.request(Request::Drain { batch: batch.into() }).await?))
    }

    /// Drops the current results of a batch.
    pub async fn discard_completed_results(&self, batch: impl Into<BatchId>) -> Result<()> {
        self.handle.request(Request::Discard { batch: batch.into() }).await.map(drop)
    }

    /// Aborts a batch: waits for it end immediately, its results stay until they are taken.
    pub async fn abort_batch(
        &self,
        batch: impl Into<BatchId>,
        return_partial_tasks: bool,
        unresponsive: UnresponsivePolicy,
    ) -> Result<()> {
        let request = Request::Abort {
            batch: batch.into(),
            reason: "aborted".into(),
            keep_partial_results: return_partial_tasks,
            unresponsive,
        };
        self.handle.request(request).await.map(drop)
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

    /// Tells whether a batch has unfinished tasks or untaken results.
    pub async fn has_step(&self, batch: impl Into<BatchId>) -> Result<bool> {
        let batch = batch.into();
        self.handle.inspect(move |core| core.has_step(&batch)).await
    }

    /// Waits until all tasks have ended, while tasks keep ending. Results stay.
    pub async fn wait_all(&self, timeout: Option<Duration>, clear: bool) -> Result<()> {
        let request = Request::WaitAll { timeout, clear_timeout_tasks: clear };
        self.handle.log_wait(None, None, self.handle.request(request)).await.map(drop)
    }

    /// Returns the current timeout of a train attempt.
    pub async fn dynamic_timeout(&self, timeout: Option<Duration>) -> Result<Duration> {
        self.handle.inspect(move |core| core.dynamic_timeout(timeout)).await
    }

    pub async fn runners(&self) -> Result<Vec<RunnerView>> {
        self.handle.inspect(|core| core.runners().collect()).await
    }

    /// Returns a batch. `None`: it has nothing left, or never existed.
    pub async fn batch(&self, batch: impl Into<BatchId>) -> Result<Option<BatchView>> {
        let batch = batch.into();
        self.handle.inspect(move |core| core.batch(&batch)).await
    }

    /// Returns all active and remembered batches.
    pub async fn batches(&self) -> Result<Vec<BatchView>> {
        self.handle.inspect(|core| core.batches().collect()).await
    }

    /// Returns the status of every runner: stuck ones first, then by time in the current stage.
    pub async fn runner_states(&self) -> Result<Vec<RunnerStatus>> {
        self.handle.runners().await
    }

    /// Returns the conservation counters.
    pub async fn counters(&self) -> Result<Counters> {
        self.handle.inspect(|core| *core.counters()).await
    }

    /// Returns the loop lag of the driver, even of one that is stuck.
    pub fn lag(&self) -> LoopLag {
        self.handle.lag()
    }
}

/// Acknowledges collected results and returns them.
fn receive(response: DriverResponse) -> BatchResults {
    let DriverResponse { response, payloads, lease } = response;
    let Response::Collected(collected) = response else {
        unreachable!("response to a collect: {response:?}")
    };
    if let Some(lease) = lease {
        lease.take();
    }
    BatchResults {
        outcome: collected.outcome,
        expected: collected.expected,
        statuses: collected.results.into_iter().map(|it| (it.task, it.status)).collect(),
        payloads: payloads.into_iter().flatten().collect(),
    }
}
