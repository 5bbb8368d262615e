//! What the core is told: requests of users and facts about the world.

use std::sync::Arc;
use std::time::Duration;

use crate::batch_id::BatchId;
use crate::ids::{Incarnation, LeaseId, RequestId, RunId, RunnerId, TaskId, WorkflowId};
use crate::metrics::Metrics;
use crate::run::RunnerReport;
use crate::scheduler::ledger_record::LedgerRecord;
use crate::scheduler::status::BatchType;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// Somebody asked for something and waits for an [`Response`](crate::Response).
    Requested {
        /// Under which number it is to be answered.
        request: RequestId,
        what: Request,
    },
    /// Whoever asked went away; the request is not answered any more.
    RequestAbandoned { request: RequestId },
    /// A runner, or whoever watches it, reported something.
    Report { runner: RunnerId, life: Incarnation, report: RunnerReport },
    /// Results that were on their way out arrived, or did not.
    DeliveryDone {
        /// Which results.
        lease: LeaseId,
        /// Whether they arrived.
        delivery: DeliveryOutcome,
    },
    /// Something that was [recorded](crate::Action::AppendRecord) before a crash: told in the same
    /// order, to a core that has not been asked to start. What contradicts the rest is ignored, and
    /// counted; a payload that it names is not held. Of a batch that has ended nothing but that is
    /// told.
    Restore(LedgerRecord),
    /// Time went by. Due whenever [`next_deadline`](crate::Core::next_deadline) is reached; what
    /// has arrived by then is applied first, so that a result wins over its deadline.
    TimePassed,
}

/// What a user asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Add tasks to a batch of the scheduler, which comes into being with its first task and goes
    /// when its last result is taken.
    Schedule {
        batch: BatchId,
        /// What kind of batch, if it is new.
        kind: BatchType,
        /// The tasks. None: nothing happens.
        tasks: Vec<TaskSpec>,
    },
    /// Wait for a batch of the scheduler and take its results.
    Collect {
        /// The batch. An unknown one has no results, at once.
        batch: BatchId,
        /// How many tasks are enough; none: all.
        min_num: Option<u32>,
        /// How long to wait; none: as long as anything moves.
        timeout: Option<Duration>,
        /// Whether what is unfinished in the end is cancelled.
        clear_timeout_tasks: bool,
        /// Whether tasks that are cancelled so yield the runs they finished.
        return_partial_tasks: bool,
    },
    /// Take the results that a batch of the scheduler has now.
    Drain { batch: BatchId },
    /// Drop the results that a batch of the scheduler has now.
    Discard { batch: BatchId },
    /// Register a batch and run its tasks.
    Submit {
        /// The batch; its id must not be in use.
        batch: BatchId,
        kind: BatchType,
        /// Its tasks; may be none.
        tasks: Vec<TaskSpec>,
        /// How many tasks are enough, after a grace time; none: all.
        min_wait_num: Option<u32>,
    },
    /// Wait for a submitted batch, deliver its results to the sink and close it.
    Finalize {
        batch: BatchId,
        /// What kind of batch the asker takes it for.
        kind: BatchType,
        /// How long to wait for enough tasks; none: as long as anything moves. Once the results
        /// are on their way to the sink its answer is waited for, which has a deadline of its own.
        timeout: Option<Duration>,
    },
    /// Give a batch up, whoever it belongs to.
    Abort {
        /// The batch. An unknown or ended one is left alone.
        batch: BatchId,
        /// Why, for whoever waits.
        reason: Arc<str>,
        /// Whether what it finished is kept. Of a submitted batch, ended tasks and the good runs of
        /// others are delivered to the sink; of one that belongs to the scheduler, ended tasks can
        /// be collected in any case, and with this also the good runs of others.
        keep_partial_results: bool,
        /// What happens to runners that do not acknowledge the cancel.
        unresponsive: UnresponsivePolicy,
    },
    /// Cancel one run, whoever its batch belongs to. Its task goes on without it; other runs that
    /// its runner was given with it are tried again, and not charged.
    CancelRun {
        /// The batch. An unknown or ended one has nothing to cancel.
        batch: BatchId,
        task: TaskId,
        /// The run. One that has ended stays as it is.
        run: RunId,
    },
    /// Wait until no task is unfinished anywhere. Results stay.
    WaitAll {
        /// How long to wait without a task ending; none: the default.
        timeout: Option<Duration>,
        /// Whether what is unfinished in the end is cancelled.
        clear_timeout_tasks: bool,
    },
    /// Start the runners; answered when each is ready, has failed to start, or waits for something
    /// outside while others are ready.
    Start,
    /// Stop: nothing new is begun, whoever waits is told, attempts and deliveries under way may
    /// end in time.
    Stop {
        /// How much time they get.
        timeout: Duration,
    },
}

/// What happens to a runner that does not acknowledge a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnresponsivePolicy {
    /// It is replaced after the grace time.
    Replace,
    /// It may take as long as its attempt could have taken.
    Wait,
}

/// What the core needs to know about a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskSpec {
    /// How many runs are wanted; at least one.
    pub repeat_times: u32,
    /// What kind of work it is.
    pub workflow: WorkflowId,
}

/// What became of a delivery.
#[derive(Clone, Debug, PartialEq)]
pub enum DeliveryOutcome {
    /// It arrived and is safe.
    Acknowledged {
        /// What the sink had to say.
        metrics: Metrics,
    },
    /// It did not arrive, or nobody knows.
    Failed {
        /// In the words of whoever noticed.
        message: Arc<str>,
    },
}
