//! What the core orders: to be performed by the caller, in order.

use std::sync::Arc;
use std::time::Duration;

use crate::batch_id::BatchId;
use crate::failure::{CancelReason, FailureKind};
use crate::ids::{
    AttemptId, BatchKey, Incarnation, LeaseId, PayloadId, RequestId, RunId, RunnerId, TaskId,
};
use crate::run::Payload;
use crate::scheduler::ledger_record::LedgerRecord;
use crate::scheduler::status::{BatchResult, BatchState, BatchType, DropReason, TaskResult};

/// One order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Start a runner. It will report that it is ready, or that it could not be started.
    StartRunner {
        /// Which slot.
        runner: RunnerId,
        /// The life that begins.
        life: Incarnation,
    },
    /// Make sure that a life of a runner is over, by force if need be.
    StopRunner {
        /// Which slot.
        runner: RunnerId,
        /// The life that ends.
        life: Incarnation,
    },
    /// Have a runner execute runs of a task.
    StartAttempt {
        runner: RunnerId,
        /// In which life of the runner.
        life: Incarnation,
        /// Under which number.
        attempt: AttemptId,
        /// The batch of the task.
        batch: BatchKey,
        task: TaskId,
        runs: RunRange,
        /// How long it may last once it has begun. The core watches this itself; the runner is
        /// told so that it can do its own part.
        timeout: Duration,
        /// How many runners were lost under suspicion of this task.
        suspected_losses: u32,
    },
    /// Have a runner give up an attempt and say so.
    CancelAttempt {
        runner: RunnerId,
        /// In which life of the runner.
        life: Incarnation,
        attempt: AttemptId,
        reason: AttemptCancelReason,
    },
    /// Forget a payload: nobody will ask for it any more.
    DropPayload { payload: Payload, reason: DropReason },
    /// Free payloads whose delivery was acknowledged.
    ReleasePayloads(Vec<PayloadId>),
    /// Hand results to the sink and report what becomes of them. The sink must take the same
    /// results of the same batch twice as once: a delivery whose outcome is unknown is repeated.
    Deliver {
        /// Under which number.
        lease: LeaseId,
        batch: BatchKey,
        /// The results, by task id.
        results: Vec<TaskResult>,
    },
    /// Answer a request.
    Respond { request: RequestId, answer: Response },
    /// Append a fact to the ledger, if the configuration says that there is one. Deliveries and
    /// answers that are ordered after it wait until it is safe.
    AppendRecord(LedgerRecord),
    /// A batch has come to its end: its tasks are not needed any more.
    DropTasks { batch: BatchKey },
}

/// Why an attempt is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptCancelReason {
    /// Its runs were cancelled.
    Runs(CancelReason),
    /// It has lasted too long.
    Timeout,
    /// The runner never said that it had begun.
    BeginTimeout,
}

/// The runs of an attempt: `count` of them, from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunRange {
    pub first: u32,
    pub count: u32,
}

impl RunRange {
    /// Iterates over them.
    pub fn iter(&self) -> impl Iterator<Item = RunId> + use<> {
        (self.first..self.first + self.count).map(RunId)
    }
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Response {
    /// The tasks were taken in.
    Scheduled {
        /// Into which batch; none if there were no tasks.
        batch: Option<BatchKey>,
        /// The id of the first of them; the others follow.
        first: TaskId,
    },
    /// The batch was taken in.
    Submitted {
        /// Under which key.
        batch: BatchKey,
    },
    /// Here are results.
    Collected(CollectedResults),
    /// The results were dropped, if there were any.
    Discarded,
    Finalized(Arc<BatchResult>),
    /// The batch is aborted; none: there was nothing to abort.
    Aborted(Option<Arc<BatchResult>>),
    /// Whether there was a run to cancel.
    RunCancelled(bool),
    /// No task is unfinished.
    AllEnded,
    /// The runners are up, as far as they could be started.
    Started {
        ready: u32,
        /// How many there should be.
        wanted: u32,
    },
    /// Everything is stopped.
    Stopped(StopReport),
    /// No.
    Refused(Refusal),
}

/// Results of a batch of the scheduler, handed to whoever asked.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectedResults {
    /// Why now.
    pub outcome: CollectOutcome,
    /// What to report back when the results have arrived; none: there are none. Until then they
    /// belong to nobody else, and if they do not arrive they can be collected again.
    pub lease: Option<LeaseId>,
    /// How many tasks were expected.
    pub expected: u64,
    /// The results, by task id.
    pub results: Vec<TaskResult>,
}

/// Why a collecting request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectOutcome {
    /// Every task has ended.
    Complete,
    /// The minimum has finished and the grace time is over.
    Minimum,
    /// Time is up.
    TimedOut,
    /// The batch was aborted.
    Aborted,
    /// A run failed in a way that fails the batch.
    BatchFailed(FailureKind),
    /// The asker did not want to wait.
    Polled,
}

/// What a stop left behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopReport {
    /// Runs that had not begun.
    pub pending_runs: u64,
    /// Runs that were cut off.
    pub running_runs: u64,
    /// Payloads of submitted batches that were not delivered.
    pub undelivered: u64,
    /// The batches this is about, in the order of service; not more than
    /// [`StopReport::BATCHES_SHOWN`] of them.
    pub batches: Vec<BatchId>,
}

impl StopReport {
    /// How many batches are named.
    pub const BATCHES_SHOWN: usize = 100;
}

/// Why a request was not granted. Nothing was changed by it, and nothing is lost.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// The id is in use.
    AlreadyActive { batch: BatchId },
    /// There is no submitted batch of that id.
    NotRegistered { batch: BatchId },
    /// The batch is of the other kind.
    WrongBatchType {
        batch: BatchId,
        kind: BatchType,
        /// The kind that was asked for.
        expected: BatchType,
    },
    /// The batch was submitted: it is finalized, not collected.
    NotCollectable { batch: BatchId },
    /// A task wants no runs.
    NoRuns {
        /// Its position in the request.
        task: u32,
    },
    /// Something is larger than it may be.
    Limit {
        /// The name of the limit in the configuration.
        limit: &'static str,
        /// What was asked for.
        value: u64,
        /// What there may be.
        max: u64,
    },
    /// The scheduler has not been started.
    NotStarted,
    /// The scheduler is stopped or being stopped.
    Stopped,
    /// Time is up and too little has finished. Everything that has is kept.
    TimedOut {
        batch: BatchId,
        /// Where it stands: running while tasks are missing, finalizing while the sink is busy.
        state: BatchState,
        /// How many tasks have finished.
        finished: u64,
        needed: u64,
        expected: u64,
        /// How many runners serve at the moment.
        serving: u32,
    },
    /// Every task has ended, but too many were cancelled on somebody else's account: by a stop, by
    /// a wait for everything that cleared what was left, or for lack of room. The batch can be
    /// aborted, keeping what it has.
    TasksCancelled {
        batch: BatchId,
        /// How many tasks have finished.
        finished: u64,
        needed: u64,
        expected: u64,
    },
    /// Time is up for whoever waited for everything.
    WaitAllTimedOut {
        /// How many runs wait.
        pending: u64,
        running: u64,
    },
    /// The batch was aborted.
    Aborted {
        batch: BatchId,
        /// In the words of whoever aborted it.
        reason: Arc<str>,
    },
    /// A run failed in a way that fails the batch. It can be aborted, keeping what it has.
    BatchFailed {
        batch: BatchId,
        /// In what way.
        kind: FailureKind,
        /// In the words of whoever noticed.
        message: Arc<str>,
    },
    /// The sink did not take the results. They are kept; finalizing can be repeated.
    SinkFailed {
        batch: BatchId,
        /// In the words of whoever noticed.
        message: Arc<str>,
    },
    /// Too few tasks have a good run. The batch can be aborted, keeping what it has.
    TooFewSucceeded {
        batch: BatchId,
        succeeded: u64,
        /// How many must.
        needed: u64,
    },
}
