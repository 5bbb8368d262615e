//! An independent model of the state, updated from inputs and actions alone. Checkers compare the
//! core with it.
//!
//! The model does not predict choices of the core (which run on which runner, which batch is
//! truncated). It derives the facts that follow: current attempts, stopped runners, and the origin
//! and location of payloads.

mod actions;
mod inputs;
mod records;

use std::collections::BTreeMap;
use std::time::Duration;

use rollway_core::{
    AttemptCancelReason, AttemptId, BatchId, BatchKey, BatchType, ByDropReason, ByFailureKind,
    CoreConfig, DropReason, FailureKind, Incarnation, LeaseId, Payload, PayloadId, Request,
    RequestId, RunnerId, Supervision, TaskId, TaskSpec, Time, WorkflowId,
};

#[derive(Debug, Default)]
pub struct ReferenceModel {
    pub config: CoreConfig,
    pub requests: BTreeMap<RequestId, ModelRequest>,
    /// Requests without a response or withdrawal.
    pub open: BTreeMap<RequestId, Time>,
    pub batches: BTreeMap<BatchKey, ModelBatch>,
    /// The batches that are not closed.
    pub active: BTreeMap<BatchId, BatchKey>,
    pub latest: BTreeMap<BatchId, BatchKey>,
    pub attempts: BTreeMap<AttemptId, ModelAttempt>,
    /// Latest incarnation of every slot.
    pub slots: BTreeMap<RunnerId, ModelSlot>,
    pub payloads: BTreeMap<PayloadId, ModelPayload>,
    pub leases: BTreeMap<LeaseId, ModelLease>,
    /// Bytes of accepted payloads that are neither delivered nor dropped.
    pub held_bytes: u64,
    pub held: u64,
    pub submitted: u64,
    pub succeeded: u64,
    /// Runs that were cancelled on request.
    pub requested: u64,
    /// Time of the last report of a run or beginning of an attempt.
    pub last_progress: Time,
    /// Closed train batches with tasks.
    pub train_batches: u32,
    /// Durations of train attempts whose runs all succeeded, by workflow and number of runs.
    pub durations: BTreeMap<(WorkflowId, u32), Vec<Duration>>,
    pub pool: Pool,
    /// True if slots may have been reused, because the pool was scaled or stopped.
    pub refitted: bool,
}

/// Last request to the pool of runners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pool {
    #[default]
    New,
    Running,
    Stopped,
}

#[derive(Clone, Debug)]
pub struct ModelRequest {
    pub what: Request,
    pub at: Time,
    pub state: RequestState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestState {
    Open,
    Answered,
    Withdrawn,
}

impl ModelRequest {
    /// Returns the latest time of its response, if it names one.
    pub fn deadline(&self) -> Option<Time> {
        match &self.what {
            Request::Collect { timeout, .. } | Request::Finalize { timeout, .. } => {
                timeout.map(|timeout| self.at.after(timeout))
            }
            Request::Stop { timeout } => Some(self.at.after(*timeout)),
            Request::Schedule { .. }
            | Request::Drain { .. }
            | Request::Discard { .. }
            | Request::Submit { .. }
            | Request::CancelRun { .. } => Some(self.at),
            Request::Abort { .. } | Request::WaitAll { .. } | Request::Start => None,
        }
    }

    /// Returns the timeout of a wait; without one it lasts while anything makes progress.
    pub fn time_up(&self, model: &ReferenceModel) -> Time {
        let (timeout, moves) = match &self.what {
            Request::Finalize { timeout, .. } | Request::Collect { timeout, .. } => {
                (*timeout, timeout.is_none())
            }
            Request::WaitAll { timeout, .. } => (*timeout, false),
            _ => return Time::MAX,
        };
        let since = if moves { self.at.max(model.last_progress) } else { self.at };
        since.after(timeout.unwrap_or(model.config.default_timeout))
    }

    pub const fn batch(&self) -> Option<&BatchId> {
        self.what.batch()
    }
}

#[derive(Clone, Debug)]
pub struct ModelBatch {
    pub id: BatchId,
    pub kind: BatchType,
    /// Submitted, as opposed to scheduled.
    pub submitted: bool,
    /// Minimum number of tasks. `None`: all.
    pub min_wait_num: Option<u32>,
    pub tasks: Vec<ModelTask>,
    /// True if it was aborted, alone or by a stop.
    pub given_up: bool,
    /// True if an abort dropped its results.
    pub forgone: bool,
    /// True if it was closed.
    pub forgotten: bool,
    pub held_bytes: u64,
    /// Acknowledged payloads, over all deliveries.
    pub delivered: u64,
    /// Accepted payloads that were dropped, by reason.
    pub dropped: ByDropReason,
}

#[derive(Clone, Debug)]
pub struct ModelTask {
    pub spec: TaskSpec,
    pub runs: Vec<ModelRun>,
    /// Runners that were lost under suspicion of it.
    pub suspected_losses: u32,
    /// Number of acknowledged deliveries of its result.
    pub handed: u32,
}

#[derive(Clone, Debug, Default)]
pub struct ModelRun {
    pub state: RunState,
    pub tries: u32,
    pub failures: ByFailureKind,
    pub last: Option<AttemptId>,
    pub last_failure: Option<FailureKind>,
    /// Time of the last failure.
    pub failed_at: Time,
    /// Number of runners that its task had killed when it was lost with one; zero if it last failed
    /// otherwise.
    pub suspected_losses: u32,
    /// True if it may have ended the process of its last attempt.
    pub suspect: bool,
    /// True if it had ended before the last crash.
    pub restored: bool,
    pub requested: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum RunState {
    /// Never dispatched.
    #[default]
    Fresh,
    /// In an attempt.
    Given,
    /// Returned without success; the core decides about a retry.
    Back,
    Succeeded {
        /// Metric that identifies attempt and run.
        label: f64,
        payload: Option<PayloadId>,
    },
    /// Failed before the last crash.
    Failed(FailureKind),
    /// Cancelled in an attempt, on request, or before the last crash.
    Cancelled,
}

impl ModelRun {
    pub const fn succeeded(&self) -> bool {
        matches!(self.state, RunState::Succeeded { .. })
    }

    /// Returns the number of failures of the same class: its own, or the infrastructure's.
    pub fn failures_like(&self, kind: FailureKind) -> u64 {
        let counts = self.failures.nonzero().filter(|(other, _)| other.class() == kind.class());
        counts.map(|(_, count)| count).sum()
    }

    fn fail(&mut self, now: Time, kind: FailureKind, suspected_losses: u32) {
        self.failed_at = now;
        self.failures[kind] += 1;
        self.last_failure = Some(kind);
        self.state = RunState::Back;
        self.suspect &= kind == FailureKind::RunnerLost;
        self.suspected_losses = if kind == FailureKind::RunnerLost { suspected_losses } else { 0 };
    }
}

#[derive(Clone, Debug)]
pub struct ModelAttempt {
    pub runner: RunnerId,
    pub incarnation: Incarnation,
    pub batch: BatchKey,
    pub task: TaskId,
    /// Runs without a report.
    pub outstanding: Vec<u32>,
    pub count: u32,
    /// True if all reported runs succeeded.
    pub sound: bool,
    pub state: AttemptState,
    /// Time of its dispatch or its beginning.
    pub since: Time,
    /// True if its beginning was reported.
    pub begun: bool,
    pub timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptState {
    /// Its reports count.
    Current,
    /// Cancelled, and not confirmed.
    Cancelling(AttemptCancelReason),
    /// Ended, or its runner was stopped.
    Over,
}

/// Latest incarnation of a slot.
#[derive(Clone, Copy, Debug)]
pub struct ModelSlot {
    pub incarnation: Incarnation,
    pub phase: Phase,
    /// True if it has a process of its own.
    pub isolated: bool,
    /// True if an attempt, or the core, has ended it: no sign of a broken machine.
    pub caused: bool,
    /// Consecutive incarnations that ended before they were ready.
    pub start_failures: u32,
    /// Consecutive incarnations without a finished attempt.
    pub fruitless: u32,
    /// True if this incarnation has finished an attempt.
    pub fruitful: bool,
    pub ended: Time,
    pub since: Time,
    pub last_report: Time,
}

impl ModelSlot {
    /// Returns the delay between its last incarnation and the next.
    pub fn rest(&self, supervision: &Supervision) -> Duration {
        if self.caused {
            return Duration::ZERO;
        }
        if self.start_failures >= supervision.max_start_failures {
            return supervision.broken_retry_delay;
        }
        let Some(doublings) = self.fruitless.checked_sub(1) else { return Duration::ZERO };
        let rest = supervision.restart_backoff.saturating_mul(1 << doublings.min(16));
        rest.min(supervision.max_restart_backoff)
    }
}

/// Phase of an incarnation, by its reports and commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Starting,
    Idle,
    Given(AttemptId),
    /// Dead, or stopped.
    Over,
}

impl Phase {
    pub const fn is_given(self) -> bool {
        matches!(self, Self::Given(_))
    }
}

#[derive(Clone, Copy, Debug)]
pub struct ModelPayload {
    pub bytes: u64,
    /// Batch, task and run that it is from. `None`: unknown.
    pub origin: Option<(BatchKey, TaskId, u32)>,
    /// True if its run succeeded with it.
    pub accepted: bool,
    pub state: PayloadState,
}

impl ModelPayload {
    pub(crate) fn of(&self, batch: BatchKey) -> bool {
        self.origin.is_some_and(|(from, ..)| from == batch)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadState {
    Held,
    Leased(LeaseId),
    Delivered,
    Dropped(DropReason),
}

#[derive(Clone, Debug)]
pub struct ModelLease {
    pub batch: BatchKey,
    pub tasks: Vec<TaskId>,
    pub payloads: Vec<Payload>,
    /// To the sink, as opposed to a collector.
    pub to_sink: bool,
    pub since: Time,
    /// True if its outcome is unknown.
    pub open: bool,
}

impl ReferenceModel {
    pub fn new(config: CoreConfig) -> Self {
        // A scaled pool may reuse slots at any time.
        let refitted = config.scaling.is_some();
        Self { config, refitted, ..Self::default() }
    }

    /// Returns the incarnation whose reports count.
    pub fn alive(&self, runner: RunnerId, incarnation: Incarnation) -> Option<&ModelSlot> {
        self.slots
            .get(&runner)
            .filter(|slot| slot.incarnation == incarnation && slot.phase != Phase::Over)
    }

    /// Returns the target number of runners of a pool that is not scaled.
    pub fn wanted(&self) -> u32 {
        self.config.runners.min(self.config.limits.runners)
    }

    /// Returns whether all slots are certainly kept.
    pub fn fitted(&self) -> bool {
        !self.refitted && self.pool == Pool::Running
    }

    pub fn run(&self, batch: BatchKey, task: TaskId, run: u32) -> Option<&ModelRun> {
        self.task(batch, task)?.runs.get(run as usize)
    }

    pub fn task(&self, batch: BatchKey, task: TaskId) -> Option<&ModelTask> {
        self.batches.get(&batch)?.tasks.get(task.0 as usize)
    }

    /// Adds or removes a held payload.
    fn hold(&mut self, kept: ModelPayload, held: bool) {
        let batch = kept.origin.and_then(|(batch, ..)| self.batches.get_mut(&batch));
        if held {
            self.held += 1;
            self.held_bytes += kept.bytes;
        } else {
            self.held -= 1;
            self.held_bytes -= kept.bytes;
        }
        if let Some(batch) = batch {
            batch.held_bytes =
                if held { batch.held_bytes + kept.bytes } else { batch.held_bytes - kept.bytes };
        }
    }

    fn run_mut(&mut self, batch: BatchKey, task: TaskId, run: u32) -> Option<&mut ModelRun> {
        let batch = self.batches.get_mut(&batch)?;
        batch.tasks.get_mut(task.0 as usize)?.runs.get_mut(run as usize)
    }

    pub fn waiting(&self) -> impl Iterator<Item = (RequestId, &ModelRequest)> {
        self.open.keys().filter_map(|id| Some((*id, self.requests.get(id)?)))
    }

    pub fn label(attempt: AttemptId, run: u32) -> f64 {
        (attempt.0 * 1024 + u64::from(run)) as f64
    }
}

impl ReferenceModel {
    pub fn latest_batch(&self, id: &BatchId) -> Option<&ModelBatch> {
        self.batches.get(self.latest.get(id)?)
    }

    pub fn latest_batch_of(&self, asked: &ModelRequest) -> Option<&ModelBatch> {
        self.latest_batch(asked.batch()?)
    }

    pub fn batch_of(&self, request: RequestId) -> Option<BatchKey> {
        self.latest.get(self.requests.get(&request)?.batch()?).copied()
    }
}
