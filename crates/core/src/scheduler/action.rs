//! Actions of the core, performed by the caller in order.

use std::sync::Arc;
use std::time::Duration;

use crate::{
    AttemptId, BatchId, BatchKey, BatchResult, BatchState, BatchType, CancelReason, DropReason,
    FailureKind, Incarnation, LeaseId, LedgerRecord, Payload, PayloadId, RequestId, RunId,
    RunnerId, TaskId, TaskResult,
};

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Start a runner. It reports that it is ready, or that the start failed.
    StartRunner { runner: RunnerId, incarnation: Incarnation, isolated: bool },
    /// End an incarnation of a runner, by force if necessary.
    StopRunner { runner: RunnerId, incarnation: Incarnation },
    /// Execute runs of a task on a runner.
    StartAttempt {
        runner: RunnerId,
        incarnation: Incarnation,
        attempt: AttemptId,
        batch: BatchKey,
        task: TaskId,
        runs: RunRange,
        /// Maximum duration from its beginning. The core supervises it; runners may use it too.
        timeout: Duration,
        /// Number of runners that were lost under suspicion of this task.
        suspected_losses: u32,
    },
    /// Cancel an attempt; the runner confirms its end.
    CancelAttempt {
        runner: RunnerId,
        incarnation: Incarnation,
        attempt: AttemptId,
        reason: AttemptCancelReason,
    },
    /// Release a payload.
    DropPayload { payload: Payload, reason: DropReason },
    /// Release payloads whose delivery was acknowledged.
    ReleasePayloads(Vec<PayloadId>),
    /// Deliver results, by task id, to the sink and report the outcome. The sink must be
    /// idempotent per batch: a delivery whose outcome is unknown is repeated.
    Deliver { lease: LeaseId, batch: BatchKey, results: Vec<TaskResult> },
    /// Answer a request.
    Respond { request: RequestId, answer: Response },
    /// Append a record to the ledger, if one is configured. Later deliveries and responses wait
    /// until it is durable.
    AppendRecord(LedgerRecord),
    /// Release the tasks of a batch that ended.
    DropTasks { batch: BatchKey },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptCancelReason {
    Runs(CancelReason),
    Timeout,
    /// The runner did not begin it in time.
    BeginTimeout,
}

/// Runs of an attempt: `count` runs from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunRange {
    pub first: u32,
    pub count: u32,
}

impl RunRange {
    pub fn iter(&self) -> impl Iterator<Item = RunId> + use<> {
        (self.first..self.first + self.count).map(RunId)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Response {
    /// The tasks were added; their ids count up from `first`. Without tasks there is no batch.
    Scheduled { batch: Option<BatchKey>, first: TaskId },
    /// The batch was accepted.
    Submitted { batch: BatchKey },
    /// Results of a scheduled batch.
    Collected(CollectedResults),
    /// The results were dropped, if there were any.
    Discarded,
    /// The batch is finalized.
    Finalized(Arc<BatchResult>),
    /// `None`: there was nothing to abort.
    Aborted(Option<Arc<BatchResult>>),
    /// True if there was a run to cancel.
    RunCancelled(bool),
    /// No task is unfinished.
    AllEnded,
    /// Every runner is ready, has failed to start, or waits for an external condition.
    Started { ready: u32, wanted: u32 },
    /// The core is stopped.
    Stopped(StopReport),
    /// The request was not executed.
    Refused(Refusal),
}

/// Results of a scheduled batch.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectedResults {
    /// Reason for the response.
    pub outcome: CollectOutcome,
    /// Lease to acknowledge when the results have arrived; unacknowledged results can be collected
    /// again. `None`: no results.
    pub lease: Option<LeaseId>,
    pub expected: u64,
    /// Results by task id.
    pub results: Vec<TaskResult>,
}

/// Reason why a collecting request got its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectOutcome {
    /// Every task has ended.
    Complete,
    /// The minimum has finished and the grace period is over.
    Minimum,
    TimedOut,
    Aborted,
    BatchFailed(FailureKind),
    /// The request does not wait.
    Polled,
}

/// Work that a stop left unfinished.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopReport {
    /// Runs that had not begun.
    pub pending_runs: u64,
    /// Runs that were cancelled in execution.
    pub running_runs: u64,
    /// Payloads of submitted batches that were not delivered.
    pub undelivered: u64,
    /// The affected batches, in the order of service, at most [`StopReport::BATCHES_SHOWN`].
    pub batches: Vec<BatchId>,
}

impl StopReport {
    pub const BATCHES_SHOWN: usize = 100;
}

/// Reason why a request was not executed. The state is unchanged.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// The batch id is in use.
    AlreadyActive { batch: BatchId },
    /// There is no submitted batch of that id.
    NotRegistered { batch: BatchId },
    /// The batch is not of the type that the request expected.
    WrongBatchType { batch: BatchId, kind: BatchType, expected: BatchType },
    /// The batch was submitted: it is finalized, not collected.
    NotCollectable { batch: BatchId },
    /// The task at this position of the request has no runs.
    NoRuns { task: u32 },
    /// A limit, named as in the configuration, is exceeded.
    Limit { limit: &'static str, value: u64, max: u64 },
    /// The scheduler has not been started.
    NotStarted,
    /// The scheduler is stopped or stopping.
    Stopped,
    /// Too few tasks finished in time. Results are kept.
    TimedOut {
        batch: BatchId,
        /// Running while tasks are missing, finalizing while the sink is busy.
        state: BatchState,
        /// Number of finished tasks.
        finished: u64,
        needed: u64,
        expected: u64,
        /// Number of runners that are up.
        serving: u32,
    },
    /// Every task has ended, but too many were cancelled: by a stop, by a `WaitAll` that cleared
    /// the rest, or for lack of payload budget. The batch can be aborted with its results kept.
    TasksCancelled { batch: BatchId, finished: u64, needed: u64, expected: u64 },
    /// A `WaitAll` timed out with open runs.
    WaitAllTimedOut { pending: u64, running: u64 },
    /// The batch was aborted.
    Aborted { batch: BatchId, reason: Arc<str> },
    /// A run failed in a way that fails the batch. It can be aborted with its results kept.
    BatchFailed { batch: BatchId, kind: FailureKind, message: Arc<str> },
    /// The sink did not store the results. They are kept; finalizing can be repeated.
    SinkFailed { batch: BatchId, message: Arc<str> },
    /// Too few tasks have a successful run. The batch can be aborted with its results kept.
    TooFewSucceeded { batch: BatchId, succeeded: u64, needed: u64 },
}
