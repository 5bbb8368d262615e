//! Handle of a driver: sends requests and inspects the core.

use std::result::Result as StdResult;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant as Moment};

use rollway_core::{
    BatchId, Core, CoreConfig, Input, Request, RequestId, Response, RunId, StopReport, TaskId, Time,
};
use rollway_ledger::RecoveredLedger;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::driver::{Driver, DriverMessage, DriverResponse, ReturnQueue};
use crate::error::{Error, Result};
use crate::events::RunObservers;
use crate::ledger_bridge::{LedgerBridge, RestoreReport, RestoredCoreBatch};
use crate::loop_lag::{LoopLag, LoopLagMeter};
use crate::runner_status::{self, RunnerStatus, RunnerStatusTable};
use crate::sink::Sink;
use crate::task::Task;
use crate::workers::RunnerBackend;

/// Length of the driver's inbox; senders wait while it is full.
const INBOX: usize = 16 * 1024;

/// Handle of a running driver. Cheap to clone; the driver ends with the last clone.
#[derive(Clone, Debug)]
pub(crate) struct DriverHandle {
    pub(crate) inbox: mpsc::Sender<DriverMessage>,
    returns: Arc<ReturnQueue>,
    requests: Arc<AtomicU64>,
    pub(crate) states: RunnerStatusTable,
    /// Instant of the core's time zero.
    pub(crate) origin: Instant,
    lag: LoopLagMeter,
}

impl DriverHandle {
    /// Starts a driver in the current runtime.
    pub(crate) fn spawn<W: RunnerBackend>(
        config: CoreConfig,
        workers: W,
        sink: Option<Arc<dyn Sink>>,
    ) -> Self {
        let (handle, driver) = Self::new(config, workers, sink, None);
        tokio::spawn(driver.run());
        handle
    }

    /// Starts a driver with the state of a ledger.
    pub(crate) fn restore<W: RunnerBackend>(
        config: CoreConfig,
        workers: W,
        sink: Option<Arc<dyn Sink>>,
        ledger: LedgerBridge,
        recovered: RecoveredLedger,
    ) -> Result<(Self, RestoreReport)> {
        let RecoveredLedger { batches, results, version, epoch, torn } = recovered;
        if let Some(torn) = &torn {
            tracing::warn!(
                file = %torn.path.display(), bytes = torn.bytes, at = torn.at,
                "the end of the ledger was incomplete and was truncated: a crash leaves at most \
                 one record that was never acknowledged; if the file was truncated otherwise, \
                 its last results are explored again"
            );
        }
        let config = CoreConfig { ledger: true, epoch: epoch as u16, ..config };
        let (handle, mut driver) = Self::new(config, workers, sink, Some(ledger));
        let restored =
            batches.into_iter().map(RestoredCoreBatch::new).collect::<StdResult<Vec<_>, _>>();
        let restored = restored.map_err(Error::Ledger)?;
        let results: Vec<_> = results.into_iter().map(|(_, result)| result).collect();
        let batches = restored.iter().map(RestoredCoreBatch::summary).collect();
        driver.restore(restored, results.clone()).map_err(Error::Ledger)?;
        tokio::spawn(driver.run());
        Ok((handle, RestoreReport { batches, results, version, torn }))
    }

    fn new<W: RunnerBackend>(
        config: CoreConfig,
        workers: W,
        sink: Option<Arc<dyn Sink>>,
        ledger: Option<LedgerBridge>,
    ) -> (Self, Driver<W>) {
        let (inbox, receiver) = mpsc::channel(INBOX);
        let returns = Arc::<ReturnQueue>::default();
        let channel = (inbox.downgrade(), receiver);
        let core = Core::new(config);
        let states = workers.states();
        let driver = Driver::new(core, workers, sink, ledger, channel, Arc::clone(&returns));
        let (origin, lag) = (driver.origin(), driver.lag());
        (Self { inbox, returns, requests: Arc::default(), states, origin, lag }, driver)
    }

    /// Returns the loop lag, even of a driver that is stuck.
    pub(crate) fn lag(&self) -> LoopLag {
        self.lag.read()
    }

    /// Sends a request and waits for its response. Dropping the future withdraws the request.
    pub(crate) async fn request(&self, request: Request) -> Result<DriverResponse> {
        self.request_with(request, Vec::new()).await
    }

    /// Same as [`request`](Self::request), with the tasks that the request adds.
    pub(crate) async fn request_with(
        &self,
        request: Request,
        tasks: Vec<Task>,
    ) -> Result<DriverResponse> {
        let id = RequestId(self.requests.fetch_add(1, Ordering::Relaxed));
        let (reply, response) = oneshot::channel();
        let tasks = tasks.into_iter().map(Arc::new).collect();
        let message = DriverMessage::Request { at: Moment::now(), id, request, tasks, reply };
        self.inbox.send(message).await.map_err(|_| Error::Closed)?;
        let mut guard = Withdraw { request: Some(id), returns: &self.returns };
        let response = response.await.map_err(|_| Error::Closed)?;
        guard.request = None;
        let response = response?;
        match response.response {
            Response::Refused(refusal) => Err(refusal.into()),
            _ => Ok(response),
        }
    }

    /// Starts the runners and waits until each is ready or has failed to start; returns the numbers
    /// of ready and of wanted runners.
    pub(crate) async fn start(&self) -> Result<(u32, u32)> {
        match self.log_start(self.request(Request::Start)).await?.response {
            Response::Started { ready, wanted } => Ok((ready, wanted)),
            other => unreachable!("response to a start: {other:?}"),
        }
    }

    pub(crate) async fn stop(&self, timeout: Duration) -> Result<StopReport> {
        match self.request(Request::Stop { timeout }).await?.response {
            Response::Stopped(report) => Ok(report),
            other => unreachable!("response to a stop: {other:?}"),
        }
    }

    /// Cancels one run and logs the reason.
    pub(crate) async fn cancel_run(
        &self,
        batch: BatchId,
        task: TaskId,
        run: RunId,
        reason: &str,
    ) -> Result<bool> {
        let request = Request::CancelRun { batch: batch.clone(), task, run };
        match self.request(request).await?.response {
            Response::RunCancelled(cancelled) => {
                tracing::info!(%batch, %task, %run, cancelled, reason, "run cancelled on request");
                Ok(cancelled)
            }
            other => unreachable!("response to a cancel: {other:?}"),
        }
    }

    /// Returns the status of every runner, stuck ones first.
    pub(crate) async fn runners(&self) -> Result<Vec<RunnerStatus>> {
        let (states, origin) = (self.states.clone(), self.origin);
        let now = move || Time::ZERO.after(origin.elapsed());
        self.inspect(move |core| runner_status::all(core, &states, now())).await
    }

    /// Runs a read-only closure on the core between two turns.
    pub(crate) async fn inspect<T: Send + 'static>(
        &self,
        inspect: impl FnOnce(&Core) -> T + Send + 'static,
    ) -> Result<T> {
        let (send, result) = oneshot::channel();
        let inspect = Box::new(move |core: &Core| {
            let _ = send.send(inspect(core));
        });
        self.inbox.send(DriverMessage::Inspect(inspect)).await.map_err(|_| Error::Closed)?;
        result.await.map_err(|_| Error::Closed)
    }

    pub(crate) async fn note_version(&self, version: u64) -> Result<()> {
        let (reply, synced) = oneshot::channel();
        let message = DriverMessage::SetModelVersion { version, reply };
        self.inbox.send(message).await.map_err(|_| Error::Closed)?;
        synced.await.map_err(|_| Error::Closed)?
    }

    /// Passes all events to the observers, which replace earlier ones, beginning with the current
    /// batches.
    pub(crate) async fn replace_observers(&self, observers: RunObservers) -> Result<()> {
        self.states.observed(&observers);
        let message = DriverMessage::AddObservers(observers);
        self.inbox.send(message).await.map_err(|_| Error::Closed)
    }

    /// Passes all events to the observers, beginning with the current batches.
    pub(crate) fn observe(&self, observers: RunObservers) {
        if !observers.is_empty() {
            // Called before any request, so that the inbox has room.
            self.states.observed(&observers);
            let _ = self.inbox.try_send(DriverMessage::AddObservers(observers));
        }
    }
}

/// Withdraws a request that is dropped before its response.
struct Withdraw<'a> {
    request: Option<RequestId>,
    returns: &'a ReturnQueue,
}

impl Drop for Withdraw<'_> {
    fn drop(&mut self) {
        if let Some(request) = self.request {
            self.returns.push(Input::RequestAbandoned { request });
        }
    }
}
