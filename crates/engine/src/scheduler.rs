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
use crate::error::{Error, Result};
use crate::events::RunObservers;
use crate::loop_lag::LoopLag;
use crate::runner_status::RunnerStatus;
use crate::task::Task;
use crate::workers::RunnerBackend;

/// How long to wait for results, and what to do with what is missing then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectOptions {
    /// How many tasks are enough; none: all.
    pub min_num: Option<u32>,
    /// How long to wait; none: as long as anything moves.
    pub timeout: Option<Duration>,
    /// Whether what is unfinished in the end is cancelled.
    pub clear_timeout_tasks: bool,
    /// Whether tasks that are cancelled so yield the runs they finished.
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
    /// Why now.
    pub outcome: CollectOutcome,
    /// How many tasks were expected.
    pub expected: u64,
    /// How the tasks ended, by task id.
    pub statuses: Vec<(TaskId, Arc<Status>)>,
    /// The experiences of the good runs, by task and run.
    pub payloads: Vec<Bytes>,
}

/// Runs tasks on a pool of runners. Clones share one pool, which ends with the last of them.
#[derive(Clone, Debug)]
pub struct Scheduler {
    handle: DriverHandle,
}

impl Scheduler {
    /// Returns a scheduler that does nothing until it is started. Must be called in a tokio
    /// runtime, which it lives in.
    pub fn new(config: CoreConfig, workers: impl RunnerBackend) -> Self {
        Self { handle: DriverHandle::spawn(config, workers, None) }
    }

    /// Has these see everything that happens, beginning with what there is. To be said before
    /// anything is asked.
    #[must_use]
    pub fn observed(self, observers: RunObservers) -> Self {
        self.handle.observe(observers);
        self
    }

    /// Starts the runners and waits until each is ready or has failed to start; returns how many
    /// are ready and how many there should be.
    pub async fn start(&self) -> Result<(u32, u32)> {
        match self.ask(Request::Start).await?.answer {
            Response::Started { ready, wanted } => Ok((ready, wanted)),
            other => unreachable!("a start is answered by a start: {other:?}"),
        }
    }

    /// Stops: nothing new is begun, whoever waits is told, and attempts under way get `timeout` to
    /// end. Says what was left behind. Results can still be collected.
    pub async fn stop(&self, timeout: Duration) -> Result<StopReport> {
        match self.ask(Request::Stop { timeout }).await?.answer {
            Response::Stopped(report) => Ok(report),
            other => unreachable!("a stop is answered by a stop: {other:?}"),
        }
    }

    /// Adds tasks to a batch. It is an eval batch if its first task is for eval.
    pub async fn schedule(&self, tasks: Vec<Task>, batch: impl Into<BatchId>) -> Result<()> {
        let eval = tasks.first().is_some_and(|task| task.is_eval);
        let kind = if eval { BatchType::Eval } else { BatchType::Train };
        let what = Request::Schedule { batch: batch.into(), kind, tasks: Vec::new() };
        let tasks = tasks.into_iter().map(Arc::new).collect();
        self.handle.ask(what, tasks).await.map(|_| ())
    }

    /// Waits for a batch and takes its results. If the future is dropped, nothing is taken.
    pub async fn get_payload_results(
        &self,
        batch: impl Into<BatchId>,
        how: CollectOptions,
    ) -> Result<BatchResults> {
        let CollectOptions { min_num, timeout, clear_timeout_tasks, return_partial_tasks } = how;
        let batch = batch.into();
        let what =
            Request::Collect { batch, min_num, timeout, clear_timeout_tasks, return_partial_tasks };
        Ok(receive(self.ask(what).await?))
    }

    /// Waits for a batch, takes its results and returns only how the tasks ended.
    pub async fn get_statuses(
        &self,
        batch: impl Into<BatchId>,
        how: CollectOptions,
    ) -> Result<Vec<(TaskId, Arc<Status>)>> {
        Ok(self.get_payload_results(batch, how).await?.statuses)
    }

    /// Takes the results that a batch has now.
    pub async fn drain_batch_payload_results(
        &self,
        batch: impl Into<BatchId>,
    ) -> Result<BatchResults> {
        Ok(receive(self.ask(Request::Drain { batch: batch.into() }).await?))
    }

    /// Drops the results that a batch has now.
    pub async fn discard_completed_results(&self, batch: impl Into<BatchId>) -> Result<()> {
        self.ask(Request::Discard { batch: batch.into() }).await.map(|_| ())
    }

    /// Gives a batch up. Whoever waits for it is told at once; results that it has stay until they
    /// are taken.
    pub async fn abort_batch(
        &self,
        batch: impl Into<BatchId>,
        return_partial_tasks: bool,
        unresponsive: UnresponsivePolicy,
    ) -> Result<()> {
        let what = Request::Abort {
            batch: batch.into(),
            reason: "aborted".into(),
            keep_partial_results: return_partial_tasks,
            unresponsive,
        };
        self.ask(what).await.map(|_| ())
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

    /// Tells whether a batch has unfinished tasks or results that were not taken.
    pub async fn has_step(&self, batch: impl Into<BatchId>) -> Result<bool> {
        let batch = batch.into();
        self.handle.look(move |core| core.has_step(&batch)).await
    }

    /// Waits until no task is unfinished, for as long as tasks keep ending. Results stay.
    pub async fn wait_all(&self, timeout: Option<Duration>, clear: bool) -> Result<()> {
        self.ask(Request::WaitAll { timeout, clear_timeout_tasks: clear }).await.map(|_| ())
    }

    /// Returns how long a train attempt may last at the moment.
    pub async fn dynamic_timeout(&self, timeout: Option<Duration>) -> Result<Duration> {
        self.handle.look(move |core| core.dynamic_timeout(timeout)).await
    }

    /// Returns every runner as it is now.
    pub async fn runners(&self) -> Result<Vec<RunnerView>> {
        self.handle.look(|core| core.runners().collect()).await
    }

    /// Returns a batch; none: it has nothing left, or never was.
    pub async fn batch(&self, batch: impl Into<BatchId>) -> Result<Option<BatchView>> {
        let batch = batch.into();
        self.handle.look(move |core| core.batch(&batch)).await
    }

    /// Returns every batch that is active or remembered.
    pub async fn batches(&self) -> Result<Vec<BatchView>> {
        self.handle.look(|core| core.batches().collect()).await
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

    /// Returns how late the driver is: how long messages wait until they are applied. Asks nobody,
    /// so that it tells the truth of a driver that is stuck too.
    pub fn lag(&self) -> LoopLag {
        self.handle.lag()
    }

    async fn ask(&self, what: Request) -> Result<DriverResponse> {
        self.handle.ask(what, Vec::new()).await
    }
}

/// Takes results over: from here on they are the caller's.
fn receive(reply: DriverResponse) -> BatchResults {
    let DriverResponse { answer, payloads, lease } = reply;
    let Response::Collected(collected) = answer else {
        unreachable!("collecting is answered by results: {answer:?}")
    };
    if let Some(lease) = lease {
        lease.take();
    }
    BatchResults {
        outcome: collected.outcome,
        expected: collected.expected,
        statuses: collected
            .results
            .into_iter()
            .map(|result| (result.task, result.status))
            .collect(),
        payloads: payloads.into_iter().flatten().collect(),
    }
}

impl Error {
    /// Tells whether time was up.
    pub const fn timed_out(&self) -> bool {
        use rollway_core::Refusal;
        matches!(self, Self::Refused(Refusal::TimedOut { .. } | Refusal::WaitAllTimedOut { .. }))
    }
}
