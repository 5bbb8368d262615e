//! Interface between the driver and its runners, wherever they run.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use rollway_base::Secret;
use rollway_core::{
    AttemptCancelReason, AttemptId, BatchId, BatchType, FailureKind, Incarnation, RunRange,
    RunnerId, TaskId,
};

use crate::run::{RunFailure, RunnerReport};
use crate::runner_status::RunnerStatusTable;
use crate::task::Task;

/// Starts, commands and stops runners.
pub trait RunnerBackend: Send + 'static {
    /// Starts an incarnation of a runner. It must report through `reporter` that it is ready or
    /// failed to start.
    fn start(&mut self, reporter: Reporter);

    /// Sends a command to a runner, in the order of calls. Must not block. `false`: it cannot be
    /// delivered, the runner counts as lost.
    fn send(&mut self, runner: RunnerId, incarnation: Incarnation, command: RunnerCommand) -> bool;

    /// Ends an incarnation of a runner, by force if needed. Must not block.
    fn stop(&mut self, runner: RunnerId, incarnation: Incarnation);

    /// Asks manual workers to leave after a stop; the future ends when they have left or timed out.
    /// `None`: there are no manual workers.
    fn shut_down_workers(&mut self) -> Option<BoxFuture<'static, ()>> {
        None
    }

    /// Observes a report that has reached the driver, also of earlier incarnations.
    fn on_report(&mut self, runner: RunnerId, incarnation: Incarnation, report: &RunnerReport) {
        let _ = (runner, incarnation, report);
    }

    /// Returns the table of runner states.
    fn states(&self) -> RunnerStatusTable {
        RunnerStatusTable::default()
    }
}

impl RunnerBackend for Box<dyn RunnerBackend> {
    fn start(&mut self, reporter: Reporter) {
        (**self).start(reporter);
    }

    fn send(&mut self, runner: RunnerId, incarnation: Incarnation, command: RunnerCommand) -> bool {
        (**self).send(runner, incarnation, command)
    }

    fn stop(&mut self, runner: RunnerId, incarnation: Incarnation) {
        (**self).stop(runner, incarnation);
    }

    fn shut_down_workers(&mut self) -> Option<BoxFuture<'static, ()>> {
        (**self).shut_down_workers()
    }

    fn on_report(&mut self, runner: RunnerId, incarnation: Incarnation, report: &RunnerReport) {
        (**self).on_report(runner, incarnation, report);
    }

    fn states(&self) -> RunnerStatusTable {
        (**self).states()
    }
}

#[derive(Clone, Debug)]
pub enum RunnerCommand {
    Start(Box<AttemptSpec>),
    /// Stop the current attempt and report its end.
    Cancel {
        attempt: AttemptId,
        reason: AttemptCancelReason,
    },
}

/// Order to execute runs of one task.
#[derive(Clone, Debug)]
pub struct AttemptSpec {
    pub id: AttemptId,
    pub batch: BatchId,
    pub kind: BatchType,
    pub task_id: TaskId,
    pub task: Arc<Task>,
    pub runs: RunRange,
    /// Limit from the beginning of the attempt.
    pub timeout: Duration,
    /// Number of runners lost under suspicion of this task.
    pub suspected_losses: u32,
    /// `None`: there is no gateway.
    pub models: Option<ModelAccess>,
}

impl AttemptSpec {
    /// Returns the reports of an attempt whose runs all fail for the same reason.
    pub(crate) fn failed(&self, kind: FailureKind, message: &str) -> Vec<RunnerReport> {
        let (attempt, message) = (self.id, Arc::<str>::from(message));
        let failed = self.runs.iter().map(|run| {
            let outcome = Err(RunFailure { kind, message: Arc::clone(&message) });
            RunnerReport::RunFinished { attempt, run, outcome }
        });
        let began = [RunnerReport::AttemptBegan { attempt }].into_iter();
        began.chain(failed).chain([RunnerReport::AttemptEnded { attempt }]).collect()
    }
}

/// Access of an attempt's runs to the models.
#[derive(Clone, Debug)]
pub struct ModelAccess {
    /// Base URL of the gateway, with `/v1`.
    pub base_url: Arc<str>,
    /// Key of each run, in order.
    pub keys: Vec<Secret>,
}

#[derive(Debug)]
pub(crate) struct RunnerMessage {
    /// Arrival in this process.
    pub(crate) at: Instant,
    pub(crate) runner: RunnerId,
    pub(crate) incarnation: Incarnation,
    pub(crate) reports: Vec<RunnerReport>,
}

/// The receiving end of runner messages. The driver implements it without a strong reference, so
/// that runners do not keep the engine alive; messages to a stopped engine are discarded.
pub(crate) trait RunnerInbox: Debug + Send + Sync + 'static {
    /// Queues a message, and waits while the queue is full.
    fn send(&self, message: RunnerMessage) -> BoxFuture<'_, ()>;

    /// Same as [`send`](Self::send), from a thread outside the runtime.
    fn blocking_send(&self, message: RunnerMessage);
}

/// Sends reports of one incarnation of a runner to the driver.
#[derive(Clone, Debug)]
pub struct Reporter {
    runner: RunnerId,
    incarnation: Incarnation,
    /// True if the runner is to have a process of its own.
    pub(crate) isolated: bool,
    inbox: Arc<dyn RunnerInbox>,
}

impl Reporter {
    pub(crate) const fn new(
        runner: RunnerId,
        incarnation: Incarnation,
        isolated: bool,
        inbox: Arc<dyn RunnerInbox>,
    ) -> Self {
        Self { runner, incarnation, isolated, inbox }
    }

    /// Replaces the inbox, such as by one that checks messages first.
    pub(crate) fn map_inbox<I: RunnerInbox>(
        self,
        wrap: impl FnOnce(Arc<dyn RunnerInbox>) -> Arc<I>,
    ) -> Self {
        Self { inbox: wrap(self.inbox), ..self }
    }

    pub const fn runner(&self) -> RunnerId {
        self.runner
    }

    pub const fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Sends reports in order; waits while the inbox is full. Reports to a dropped engine are
    /// discarded.
    pub async fn send(&self, reports: Vec<RunnerReport>) {
        self.send_since(Instant::now(), reports).await;
    }

    /// Same as [`send`](Self::send), for reports that arrived at `at`.
    pub(crate) async fn send_since(&self, at: Instant, reports: Vec<RunnerReport>) {
        self.inbox.send(self.message(at, reports)).await;
    }

    /// Same as [`send`](Self::send), from a thread outside the runtime.
    pub fn blocking_send(&self, reports: Vec<RunnerReport>) {
        self.inbox.blocking_send(self.message(Instant::now(), reports));
    }

    const fn message(&self, at: Instant, reports: Vec<RunnerReport>) -> RunnerMessage {
        RunnerMessage { at, runner: self.runner, incarnation: self.incarnation, reports }
    }
}
