//! An independent record of what was said and ordered, kept from inputs and actions alone. Checkers
//! measure the core against it; it never asks the core for anything.
//!
//! What it leaves to the core are choices (which run goes where, which batch is cut); what it knows
//! by itself are the facts that follow: who is current, who was told to stop, which payload came
//! from where and where it is now.

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

/// The record.
#[derive(Debug)]
pub struct ReferenceModel {
    /// What the core was told.
    pub config: CoreConfig,
    /// Every request that was made.
    pub requests: BTreeMap<RequestId, ModelRequest>,
    /// Requests that are neither answered nor withdrawn.
    pub open: BTreeMap<RequestId, Time>,
    /// Every batch that was taken in.
    pub batches: BTreeMap<BatchKey, ModelBatch>,
    /// The batches that have not come to their end.
    pub active: BTreeMap<BatchId, BatchKey>,
    /// The latest batch of every name.
    pub latest: BTreeMap<BatchId, BatchKey>,
    /// Every attempt that was ordered.
    pub attempts: BTreeMap<AttemptId, ModelAttempt>,
    /// The latest life of every slot.
    pub slots: BTreeMap<RunnerId, ModelSlot>,
    /// Every payload that came in.
    pub payloads: BTreeMap<PayloadId, ModelPayload>,
    /// Every delivery that was ordered.
    pub leases: BTreeMap<LeaseId, ModelLease>,
    /// Bytes of payloads that were accepted and are neither delivered nor dropped.
    pub held_bytes: u64,
    pub held: u64,
    /// Runs that were taken in.
    pub submitted: u64,
    /// Runs that succeeded.
    pub succeeded: u64,
    /// Runs that somebody had cancelled, one by one.
    pub requested: u64,
    /// When a run was last reported, or an attempt last began.
    pub last_progress: Time,
    /// Train batches with tasks that have ended.
    pub train_batches: u32,
    /// How long attempts of train batches took all of whose runs succeeded, by the kind of work
    /// and the number of runs.
    pub durations: BTreeMap<(WorkflowId, u32), Vec<Duration>>,
    /// What the pool was last told.
    pub pool: Pool,
    /// Whether slots were let go and perhaps used again: the pool was scaled or stopped.
    pub refitted: bool,
}

/// What the pool of runners was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// Nothing.
    New,
    /// To start.
    Running,
    /// To stop.
    Stopped,
}

/// A request.
#[derive(Clone, Debug)]
pub struct ModelRequest {
    pub what: Request,
    pub at: Time,
    /// What became of it.
    pub state: AskedState,
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedState {
    /// Nobody has said anything.
    Open,
    Answered,
    /// Its asker went away.
    Withdrawn,
}

impl ModelRequest {
    /// Returns the latest instant at which it must be answered, if it names one.
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

    /// Returns when the time of a waiter is up; who named none has it as long as anything moves.
    pub fn time_up(&self, book: &ReferenceModel) -> Time {
        let (timeout, moves) = match &self.what {
            Request::Finalize { timeout, .. } | Request::Collect { timeout, .. } => {
                (*timeout, timeout.is_none())
            }
            Request::WaitAll { timeout, .. } => (*timeout, false),
            _ => return Time::MAX,
        };
        let since = if moves { self.at.max(book.last_progress) } else { self.at };
        since.after(timeout.unwrap_or(book.config.default_timeout))
    }

    /// Returns the batch it is about.
    pub fn batch(&self) -> Option<&BatchId> {
        match &self.what {
            Request::Schedule { batch, .. }
            | Request::Collect { batch, .. }
            | Request::Drain { batch }
            | Request::Discard { batch }
            | Request::Submit { batch, .. }
            | Request::Finalize { batch, .. }
            | Request::CancelRun { batch, .. }
            | Request::Abort { batch, .. } => Some(batch),
            Request::WaitAll { .. } | Request::Start | Request::Stop { .. } => None,
        }
    }
}

/// A batch.
#[derive(Clone, Debug)]
pub struct ModelBatch {
    /// The user's name of it.
    pub id: BatchId,
    pub kind: BatchType,
    /// Whether it was submitted, rather than scheduled.
    pub submitted: bool,
    /// How many tasks are enough; none: all.
    pub min_wait_num: Option<u32>,
    /// Its tasks, by id.
    pub tasks: Vec<ModelTask>,
    /// Whether it was given up, by name or with everything else.
    pub given_up: bool,
    /// Whether somebody gave it up who did not want what it has.
    pub forgone: bool,
    /// Whether its end was announced.
    pub forgotten: bool,
    /// Bytes of its payloads that are held.
    pub held_bytes: u64,
    /// Payloads that arrived where they should, over all deliveries.
    pub delivered: u64,
    /// Payloads that were dropped after they had been accepted, by reason.
    pub dropped: ByDropReason,
}

/// A task.
#[derive(Clone, Debug)]
pub struct ModelTask {
    /// As it was asked for.
    pub spec: TaskSpec,
    /// Its runs, by id.
    pub runs: Vec<ModelRun>,
    /// Runners that were lost under suspicion of it.
    pub kills: u32,
    /// How often its result arrived somewhere.
    pub handed: u32,
}

/// A run.
#[derive(Clone, Debug)]
pub struct ModelRun {
    pub state: RunState,
    /// How many attempts it was part of.
    pub tries: u32,
    /// How often it failed, by kind.
    pub failures: ByFailureKind,
    /// The attempt it was last part of.
    pub last: Option<AttemptId>,
    /// In what way it last failed.
    pub last_failure: Option<FailureKind>,
    /// How many runners its task had killed when it was lost with one; zero if it last failed in
    /// another way.
    pub kills: u32,
    /// Whether it had ended before the core began anew.
    pub restored: bool,
    /// Whether somebody had just this run cancelled.
    pub requested: bool,
}

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RunState {
    /// It was never sent out.
    Fresh,
    /// It is part of an attempt.
    Given,
    /// It came back without success; whether it is tried again is the core's choice.
    Back,
    /// It ended well.
    Succeeded {
        /// What its metrics say about where it comes from.
        label: f64,
        /// What it yielded.
        payload: Option<PayloadId>,
    },
    /// It failed for good, before the core began anew.
    Failed(FailureKind),
    /// It was cancelled while it was under way, by itself, or before the core began anew.
    Cancelled,
}

impl ModelRun {
    /// Tells whether it ended well.
    pub const fn succeeded(&self) -> bool {
        matches!(self.state, RunState::Succeeded { .. })
    }

    /// Returns how often it failed in a way of the same sort: its own, or the machinery's.
    pub fn failures_like(&self, kind: FailureKind) -> u64 {
        let alike: &[FailureKind] = match kind {
            FailureKind::Workflow | FailureKind::Timeout | FailureKind::InvalidOutput => {
                &[FailureKind::Workflow, FailureKind::Timeout, FailureKind::InvalidOutput]
            }
            FailureKind::RunnerLost | FailureKind::ModelUnavailable => {
                &[FailureKind::RunnerLost, FailureKind::ModelUnavailable]
            }
        };
        alike.iter().map(|kind| self.failures[*kind]).sum()
    }

    fn fail(&mut self, kind: FailureKind, kills: u32) {
        self.failures[kind] += 1;
        self.last_failure = Some(kind);
        self.state = RunState::Back;
        self.kills = if kind == FailureKind::RunnerLost { kills } else { 0 };
    }
}

/// An attempt.
#[derive(Clone, Debug)]
pub struct ModelAttempt {
    pub runner: RunnerId,
    pub life: Incarnation,
    pub batch: BatchKey,
    pub task: TaskId,
    /// The runs nobody has reported about.
    pub outstanding: Vec<u32>,
    /// How many runs it was given.
    pub count: u32,
    /// Whether every run that was reported had succeeded.
    pub sound: bool,
    pub state: AttemptState,
    /// When it was ordered, or when the runner said that it had begun.
    pub since: Time,
    /// Whether the runner said that it had begun.
    pub begun: bool,
    /// How long it may last.
    pub timeout: Duration,
}

/// How far an attempt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptState {
    /// What is said about it counts.
    Current,
    /// It was told to end, and has not confirmed that.
    Cancelling(AttemptCancelReason),
    /// Nobody works on it any more, or must not.
    Over,
}

/// The latest life of a slot.
#[derive(Clone, Copy, Debug)]
pub struct ModelSlot {
    pub life: Incarnation,
    /// What it does.
    pub phase: Phase,
    /// How many lives in a row ended before they had begun.
    pub start_failures: u32,
    /// How many lives in a row ended without having finished an attempt.
    pub fruitless: u32,
    /// Whether this life has finished an attempt.
    pub fruitful: bool,
    pub ended: Time,
    /// Since when it lives.
    pub since: Time,
    /// When it was last heard.
    pub heard: Time,
}

impl ModelSlot {
    /// Returns how long it rests between its last life and the next.
    pub fn rest(&self, supervision: &Supervision) -> Duration {
        if self.start_failures >= supervision.start_failures_max {
            return supervision.broken_rest;
        }
        let Some(doublings) = self.fruitless.checked_sub(1) else { return Duration::ZERO };
        let rest = supervision.restart_backoff.saturating_mul(1 << doublings.min(16));
        rest.min(supervision.restart_backoff_max)
    }
}

/// What a life does, by its own words and the orders it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It has not said anything.
    Starting,
    /// It said that it is idle.
    Idle,
    Given(AttemptId),
    /// It is dead, or was told to be.
    Over,
}

/// A payload.
#[derive(Clone, Copy, Debug)]
pub struct ModelPayload {
    /// How large it is.
    pub bytes: u64,
    /// Which run of which task of which batch it is from; none: nobody knows.
    pub origin: Option<(BatchKey, TaskId, u32)>,
    /// Whether its run was counted as succeeded with it.
    pub accepted: bool,
    pub place: PayloadState,
}

/// Where a payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadState {
    /// With the caller of the core.
    Held,
    /// On its way out.
    Leased(LeaseId),
    /// Where it should be.
    Delivered,
    /// Thrown away.
    Dropped(DropReason),
}

/// A delivery.
#[derive(Clone, Debug)]
pub struct ModelLease {
    pub batch: BatchKey,
    pub tasks: Vec<TaskId>,
    pub payloads: Vec<Payload>,
    /// Whether the sink gets them, rather than whoever asked.
    pub to_sink: bool,
    /// When it was ordered.
    pub since: Time,
    /// Whether nobody has said what became of it.
    pub open: bool,
}

impl ReferenceModel {
    /// Returns an empty record.
    pub fn new(config: CoreConfig) -> Self {
        // The number of runners may follow the work at any moment.
        let refitted = config.scaling.is_some();
        Self {
            config,
            requests: BTreeMap::new(),
            open: BTreeMap::new(),
            batches: BTreeMap::new(),
            active: BTreeMap::new(),
            latest: BTreeMap::new(),
            attempts: BTreeMap::new(),
            slots: BTreeMap::new(),
            payloads: BTreeMap::new(),
            leases: BTreeMap::new(),
            held_bytes: 0,
            held: 0,
            submitted: 0,
            succeeded: 0,
            requested: 0,
            last_progress: Time::ZERO,
            train_batches: 0,
            durations: BTreeMap::new(),
            pool: Pool::New,
            refitted,
        }
    }

    /// Returns the life that a report can only come from if it is to count.
    pub fn alive(&self, runner: RunnerId, life: Incarnation) -> Option<&ModelSlot> {
        self.slots.get(&runner).filter(|slot| slot.life == life && slot.phase != Phase::Over)
    }

    /// Returns the number of runners to keep in a pool that is not scaled.
    pub fn wanted(&self) -> u32 {
        self.config.runners.min(self.config.limits.runners)
    }

    /// Tells whether a slot is certainly kept: it was not let go with others.
    pub fn fitted(&self) -> bool {
        !self.refitted && self.pool == Pool::Running
    }

    /// Returns a run.
    pub fn run(&self, batch: BatchKey, task: TaskId, run: u32) -> Option<&ModelRun> {
        self.task(batch, task)?.runs.get(run as usize)
    }

    /// Returns a task.
    pub fn task(&self, batch: BatchKey, task: TaskId) -> Option<&ModelTask> {
        self.batches.get(&batch)?.tasks.get(task.0 as usize)
    }

    /// Notes that a payload is held, or no longer.
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

    /// Iterates over the open requests.
    pub fn waiting(&self) -> impl Iterator<Item = (RequestId, &ModelRequest)> {
        self.open.keys().filter_map(|id| Some((*id, self.requests.get(id)?)))
    }

    /// Returns the label that a run of an attempt puts on its metrics.
    pub fn label(attempt: AttemptId, run: u32) -> f64 {
        (attempt.0 * 1024 + u64::from(run)) as f64
    }
}
