//! Where runners come from. The driver starts, commands and stops them through this door; whether
//! they live in this process, in a child or on another machine is not its business.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rollway_base::Secret;
use rollway_core::{
    AttemptCancelReason, AttemptId, BatchId, BatchType, Incarnation, RunRange, RunnerId, TaskId,
};

use crate::run::RunnerReport;
use crate::runner_status::RunnerStatusTable;
use crate::task::Task;

/// A source of runners.
pub trait RunnerBackend: Send + 'static {
    /// Begins a life of a runner. It says what it does through `reporter`; it must say that it is
    /// ready, or that it could not be started.
    fn start(&mut self, reporter: Reporter);

    /// Gives a runner a command, in the order of calls. Must not block. Tells whether the runner
    /// can have heard it; if not, it counts as lost.
    fn send(&mut self, runner: RunnerId, life: Incarnation, command: RunnerCommand) -> bool;

    /// Makes sure that a life of a runner is over, by force if need be. Must not block.
    fn stop(&mut self, runner: RunnerId, life: Incarnation);

    /// The engine has stopped: tells processes that nobody here started that they are not needed
    /// any more. What is returned ends when they are gone, or have had the time; none:
    /// there are none.
    fn shut_down_workers(&mut self) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        None
    }

    /// What a runner said has reached the driver. Words of an earlier life come too.
    fn on_report(&mut self, runner: RunnerId, life: Incarnation, said: &RunnerReport) {
        let _ = (runner, life, said);
    }

    /// Returns where runners say what they are at.
    fn states(&self) -> RunnerStatusTable {
        RunnerStatusTable::default()
    }
}

impl RunnerBackend for Box<dyn RunnerBackend> {
    fn start(&mut self, reporter: Reporter) {
        (**self).start(reporter);
    }

    fn send(&mut self, runner: RunnerId, life: Incarnation, command: RunnerCommand) -> bool {
        (**self).send(runner, life, command)
    }

    fn stop(&mut self, runner: RunnerId, life: Incarnation) {
        (**self).stop(runner, life);
    }

    fn shut_down_workers(&mut self) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        (**self).shut_down_workers()
    }

    fn on_report(&mut self, runner: RunnerId, life: Incarnation, said: &RunnerReport) {
        (**self).on_report(runner, life, said);
    }

    fn states(&self) -> RunnerStatusTable {
        (**self).states()
    }
}

/// What a runner is told.
#[derive(Clone, Debug)]
pub enum RunnerCommand {
    /// Execute an attempt.
    Start(Box<AttemptSpec>),
    /// Give the current attempt up and say so.
    Cancel { attempt: AttemptId, reason: AttemptCancelReason },
}

/// Runs of one task to be executed.
#[derive(Clone, Debug)]
pub struct AttemptSpec {
    /// Its number.
    pub id: AttemptId,
    /// The batch of the task.
    pub batch: BatchId,
    /// Whether it is trained on.
    pub kind: BatchType,
    /// The task's id in the batch.
    pub task_id: TaskId,
    pub task: Arc<Task>,
    pub runs: RunRange,
    /// How long it may last once it has begun.
    pub timeout: Duration,
    /// How many runners were lost under suspicion of this task.
    pub kills: u32,
    /// How its runs reach the models; none if there is no gateway.
    pub models: Option<ModelAccess>,
}

/// How the runs of an attempt reach the models.
#[derive(Clone, Debug)]
pub struct ModelAccess {
    /// Where the gateway is, with `/v1`.
    pub base_url: Arc<str>,
    /// What each run shows there, in order.
    pub keys: Vec<Secret>,
}

/// Reports of one incarnation of a runner, on their way to the driver.
#[derive(Debug)]
pub(crate) struct RunnerMessage {
    /// Time at which the reports arrived in this process.
    pub(crate) at: Instant,
    pub(crate) runner: RunnerId,
    pub(crate) life: Incarnation,
    /// In the order in which they were sent.
    pub(crate) reports: Vec<RunnerReport>,
}

/// The receiving end of runner messages. The driver implements it without a strong reference, so
/// that runners do not keep the engine alive; messages to a stopped engine are discarded.
pub(crate) trait RunnerInbox: Debug + Send + Sync + 'static {
    /// Queues a message, and waits while the queue is full.
    fn send(&self, message: RunnerMessage) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// Same as [`send`](Self::send), from a thread outside the runtime.
    fn blocking_send(&self, message: RunnerMessage);
}

/// Speaks for one life of a runner.
#[derive(Clone, Debug)]
pub struct Reporter {
    runner: RunnerId,
    life: Incarnation,
    inbox: Arc<dyn RunnerInbox>,
}

impl Reporter {
    pub(crate) const fn new(
        runner: RunnerId,
        life: Incarnation,
        inbox: Arc<dyn RunnerInbox>,
    ) -> Self {
        Self { runner, life, inbox }
    }

    /// Returns which runner this is.
    pub const fn runner(&self) -> RunnerId {
        self.runner
    }

    /// Returns which life of it.
    pub const fn incarnation(&self) -> Incarnation {
        self.life
    }

    /// Says several things at once, in order. Waits while the engine is busy; if the engine is
    /// gone nobody listens any more, which is no error of the runner.
    pub async fn send(&self, said: Vec<RunnerReport>) {
        self.send_since(Instant::now(), said).await;
    }

    /// As [`send`](Self::send), for what has been on its way in this process since `at`.
    pub(crate) async fn send_since(&self, at: Instant, said: Vec<RunnerReport>) {
        self.inbox.send(self.message(at, said)).await;
    }

    /// As [`send`](Self::send), from a thread outside the runtime.
    pub fn blocking_send(&self, said: Vec<RunnerReport>) {
        self.inbox.blocking_send(self.message(Instant::now(), said));
    }

    const fn message(&self, at: Instant, reports: Vec<RunnerReport>) -> RunnerMessage {
        RunnerMessage { at, runner: self.runner, life: self.life, reports }
    }
}
