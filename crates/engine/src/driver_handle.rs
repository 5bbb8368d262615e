//! What everybody but the driver holds: a cheap way to ask.

use std::result::Result as StdResult;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant as Moment;

use rollway_core::{
    BatchId, Core, CoreConfig, Input, Request, RequestId, Response, RunId, TaskId, Time,
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

/// How many messages may wait for the driver before senders wait too.
const INBOX: usize = 16 * 1024;

/// A handle on a running driver.
#[derive(Clone, Debug)]
pub(crate) struct DriverHandle {
    inbox: mpsc::Sender<DriverMessage>,
    returns: Arc<ReturnQueue>,
    requests: Arc<AtomicU64>,
    /// What runners say about themselves.
    states: RunnerStatusTable,
    /// The instant that the core calls zero.
    origin: Instant,
    lag: LoopLagMeter,
}

impl DriverHandle {
    /// Starts a driver in the current runtime. It ends when the last handle is dropped.
    pub(crate) fn spawn<W: RunnerBackend>(
        config: CoreConfig,
        workers: W,
        sink: Option<Arc<dyn Sink>>,
    ) -> Self {
        let (handle, driver) = Self::new(config, workers, sink, None);
        tokio::spawn(driver.run());
        handle
    }

    /// Starts a driver that goes on where a ledger says that another ended.
    pub(crate) fn restore<W: RunnerBackend>(
        config: CoreConfig,
        workers: W,
        sink: Option<Arc<dyn Sink>>,
        durable: LedgerBridge,
        recovered: RecoveredLedger,
    ) -> Result<(Self, RestoreReport)> {
        let RecoveredLedger { batches, results, version, epoch, torn } = recovered;
        let config = CoreConfig { ledger: true, epoch: epoch as u16, ..config };
        let (handle, mut driver) = Self::new(config, workers, sink, Some(durable));
        let survivors =
            batches.into_iter().map(RestoredCoreBatch::new).collect::<StdResult<Vec<_>, _>>();
        let survivors = survivors.map_err(Error::Ledger)?;
        let results: Vec<_> = results.into_iter().map(|(_, result)| result).collect();
        let batches = survivors.iter().map(RestoredCoreBatch::summary).collect();
        driver.restore(survivors, results.clone()).map_err(Error::Ledger)?;
        tokio::spawn(driver.run());
        Ok((handle, RestoreReport { batches, results, version, torn }))
    }

    fn new<W: RunnerBackend>(
        config: CoreConfig,
        workers: W,
        sink: Option<Arc<dyn Sink>>,
        durable: Option<LedgerBridge>,
    ) -> (Self, Driver<W>) {
        let (inbox, receiver) = mpsc::channel(INBOX);
        let returns = Arc::<ReturnQueue>::default();
        let channel = (inbox.downgrade(), receiver);
        let core = Core::new(config);
        let states = workers.states();
        let driver = Driver::new(core, workers, sink, durable, channel, Arc::clone(&returns));
        let (origin, lag) = (driver.origin(), driver.lag());
        (Self { inbox, returns, requests: Arc::default(), states, origin, lag }, driver)
    }

    /// Returns how late the driver is. Asks nobody.
    pub(crate) fn lag(&self) -> LoopLag {
        self.lag.read()
    }

    /// Asks and waits for the answer. Dropping the future withdraws the request.
    pub(crate) async fn ask(&self, what: Request, tasks: Vec<Arc<Task>>) -> Result<DriverResponse> {
        let request = RequestId(self.requests.fetch_add(1, Ordering::Relaxed));
        let (reply, answer) = oneshot::channel();
        let message = DriverMessage::Request { at: Moment::now(), request, what, tasks, reply };
        self.inbox.send(message).await.map_err(|_| Error::Closed)?;
        let mut guard = Withdraw { request: Some(request), returns: &self.returns };
        let reply = answer.await.map_err(|_| Error::Closed)?;
        guard.request = None;
        let reply = reply?;
        match reply.answer {
            Response::Refused(refusal) => Err(refusal.into()),
            _ => Ok(reply),
        }
    }

    /// Cancels one run, and says in the log who wanted that and why.
    pub(crate) async fn cancel_run(
        &self,
        batch: BatchId,
        task: TaskId,
        run: RunId,
        reason: &str,
    ) -> Result<bool> {
        let what = Request::CancelRun { batch: batch.clone(), task, run };
        match self.ask(what, Vec::new()).await?.answer {
            Response::RunCancelled(cancelled) => {
                tracing::info!(%batch, %task, %run, cancelled, reason, "run to be cancelled");
                Ok(cancelled)
            }
            other => unreachable!("a cancel is answered by a cancel: {other:?}"),
        }
    }

    /// Returns every runner with what it does now, those that are stuck first.
    pub(crate) async fn runners(&self) -> Result<Vec<RunnerStatus>> {
        let (states, origin) = (self.states.clone(), self.origin);
        self.look(move |core| runner_status::all(core, &states, Time::ZERO.after(origin.elapsed())))
            .await
    }

    /// Looks at the core, between two batches of inputs.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Core) -> T + Send + 'static,
    ) -> Result<T> {
        let (send, seen) = oneshot::channel();
        let look = Box::new(move |core: &Core| {
            let _ = send.send(look(core));
        });
        self.inbox.send(DriverMessage::Inspect(look)).await.map_err(|_| Error::Closed)?;
        seen.await.map_err(|_| Error::Closed)
    }

    pub(crate) async fn note_version(&self, version: u64) -> Result<()> {
        let (reply, noted) = oneshot::channel();
        let message = DriverMessage::SetModelVersion { version, reply };
        self.inbox.send(message).await.map_err(|_| Error::Closed)?;
        noted.await.map_err(|_| Error::Closed)?
    }

    /// Has everything that happens from now on told, beginning with what there is.
    pub(crate) fn observe(&self, observers: RunObservers) {
        if !observers.is_empty() {
            // Said before anything else, so that there is room.
            self.states.observed(&observers);
            let _ = self.inbox.try_send(DriverMessage::AddObservers(observers));
        }
    }
}

/// Withdraws a request whose asker goes away before it is answered.
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
