//! Inputs of the core: requests of users and events.

use std::sync::Arc;
use std::time::Duration;

use crate::metrics::Metrics;
use crate::{
    BatchId, BatchType, Incarnation, LeaseId, LedgerRecord, RequestId, RunId, RunnerId,
    RunnerReport, TaskId, WorkflowId,
};

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A request; exactly one [`Response`](crate::Response) follows.
    Requested { request: RequestId, what: Request },
    /// The requester is gone; the request gets no response.
    RequestAbandoned { request: RequestId },
    /// A report of a runner or its supervisor.
    Report { runner: RunnerId, incarnation: Incarnation, report: RunnerReport },
    /// Outcome of a delivery or a collection.
    DeliveryDone { lease: LeaseId, delivery: DeliveryOutcome },
    /// A [record](crate::Action::AppendRecord) from before a crash: replayed in the same order, to
    /// a core that has not been started. Records that contradict the rest are ignored and counted,
    /// and their payloads are not held. Of a closed batch only `Closed` is replayed.
    Restore(LedgerRecord),
    /// Time has passed. Due whenever [`next_deadline`](crate::Core::next_deadline) is reached;
    /// inputs that have arrived by then are applied first, so that a result wins over its deadline.
    TimePassed,
}

/// A user's request.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Add tasks to a scheduled batch, which exists from its first task until its last result is
    /// collected.
    Schedule {
        batch: BatchId,
        kind: BatchType,
        /// Empty: no effect.
        tasks: Vec<TaskSpec>,
    },
    /// Wait for a scheduled batch and collect its results.
    Collect {
        /// An unknown batch has no results, at once.
        batch: BatchId,
        /// Minimum number of tasks. `None`: all.
        min_num: Option<u32>,
        /// Maximum wait. `None`: while anything makes progress.
        timeout: Option<Duration>,
        /// Cancel the tasks that are open in the end.
        clear_timeout_tasks: bool,
        /// Return the finished runs of tasks that are cancelled so.
        return_partial_tasks: bool,
    },
    /// Collect the available results of a scheduled batch.
    Drain { batch: BatchId },
    /// Drop the available results of a scheduled batch.
    Discard { batch: BatchId },
    /// Register a batch and run its tasks.
    Submit {
        /// Must not be in use.
        batch: BatchId,
        kind: BatchType,
        /// May be empty.
        tasks: Vec<TaskSpec>,
        /// Minimum number of tasks, after a grace period. `None`: all.
        min_wait_num: Option<u32>,
    },
    /// Wait for a submitted batch, deliver its results to the sink and close it.
    Finalize {
        batch: BatchId,
        /// Type that the requester expects.
        kind: BatchType,
        /// Maximum wait for enough tasks. `None`: while anything makes progress. The delivery to
        /// the sink has its own deadline.
        timeout: Option<Duration>,
    },
    /// Abort a batch.
    Abort {
        /// An unknown or ended batch stays unchanged.
        batch: BatchId,
        reason: Arc<str>,
        /// Keep finished results. Of a submitted batch, ended tasks and the successful runs of
        /// others are delivered to the sink. Of a scheduled batch, ended tasks can be collected in
        /// any case, and with this also the successful runs of others.
        keep_partial_results: bool,
        unresponsive: UnresponsivePolicy,
    },
    /// Cancel one run. Its task continues without it; other runs of its attempt are retried,
    /// uncharged.
    CancelRun {
        /// An unknown or ended batch has nothing to cancel.
        batch: BatchId,
        task: TaskId,
        /// An ended run stays unchanged.
        run: RunId,
    },
    /// Wait until no task is open. Results stay.
    WaitAll {
        /// Maximum time without the end of a task. `None`: the default.
        timeout: Option<Duration>,
        /// Cancel the tasks that are open in the end.
        clear_timeout_tasks: bool,
    },
    /// Start the runners; answered when each is ready, has failed to start, or waits for an
    /// external condition while others are ready.
    Start,
    /// Stop: nothing new begins, waiters are refused, attempts and deliveries may end in time.
    Stop { timeout: Duration },
}

impl Request {
    /// Returns the batch that it names.
    pub const fn batch(&self) -> Option<&BatchId> {
        match self {
            Self::Schedule { batch, .. }
            | Self::Collect { batch, .. }
            | Self::Drain { batch }
            | Self::Discard { batch }
            | Self::Submit { batch, .. }
            | Self::Finalize { batch, .. }
            | Self::CancelRun { batch, .. }
            | Self::Abort { batch, .. } => Some(batch),
            Self::WaitAll { .. } | Self::Start | Self::Stop { .. } => None,
        }
    }
}

/// Treatment of a runner that does not acknowledge a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnresponsivePolicy {
    /// It is replaced after the grace period.
    Replace,
    /// It may take as long as its attempt could have taken.
    Wait,
}

/// The core's view of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskSpec {
    /// Number of runs; at least one.
    pub repeat_times: u32,
    pub workflow: WorkflowId,
}

#[derive(Clone, Debug, PartialEq)]
pub enum DeliveryOutcome {
    /// The results arrived and are durable; with metrics of the sink.
    Acknowledged { metrics: Metrics },
    /// The results did not arrive, or it is unknown.
    Failed { message: Arc<str> },
}
