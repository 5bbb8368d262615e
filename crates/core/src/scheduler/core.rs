//! The state machine: input dispatch, and the order in which consequences are applied.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Index, IndexMut};

use super::{
    AbortSpec, BatchTable, CorePhase, DurationStats, Lease, PendingRetry, RunnerSlot, StopProgress,
    Timers, WaitAllWaiter,
};
use crate::{
    Action, BatchId, BatchKey, BatchPriority, CoreConfig, CoreEvent, Counters, DeadlineReason,
    IgnoreReason, Input, LeaseId, Refusal, Request, RequestId, Response, RunnerId, Scaler, Time,
};

/// The scheduler and the batches as one deterministic state machine.
///
/// It has no clock, thread, socket, file or randomness:
/// 1. [`apply`](Self::apply) takes one input at the given time and appends the resulting actions.
///    It never fails and never blocks. A request that cannot be granted is answered with a
///    [`Refusal`]; a report that contradicts the state is counted and ignored.
/// 2. [`next_deadline`](Self::next_deadline) returns when [`Input::TimePassed`] is due. Inputs that
///    have arrived by then are applied first.
/// 3. Getters read the state, and [`check`](Self::check) searches all of it for contradictions.
///
/// The same configuration, inputs and times give the same actions, byte for byte.
///
/// # Guardrails
/// - A run leaves `Pending` and `InFlight` only through `close_run`, which keeps the tallies, or
///   `cancel_fresh`, which does so for whole tasks.
/// - A slot changes its phase only through `set_phase`, which keeps the idle set and the timers.
/// - Waiters are checked at the end of `apply`, for the set of batches that changed; no waiter is
///   answered while a batch is being changed.
/// - A payload leaves only through an acknowledged lease or `drop_payload`.
#[derive(Clone, Debug)]
pub struct Core {
    pub(crate) config: CoreConfig,
    pub(crate) now: Time,
    pub(crate) phase: CorePhase,
    pub(crate) stopping: Option<StopProgress>,
    pub(crate) counters: Counters,
    pub(crate) timers: Timers,

    pub(crate) batches: BatchTable,
    /// Latest use of every batch id.
    pub(crate) ids: BTreeMap<BatchId, BatchKey>,
    pub(crate) terminal: VecDeque<BatchKey>,
    /// Batches whose waiters are checked before `apply` returns.
    pub(crate) changed: BTreeSet<BatchKey>,
    pub(crate) leases: BTreeMap<LeaseId, Lease>,
    pub(crate) queues: Queues,
    pub(crate) pool: Pool,
    pub(crate) waiters: Waiters,
    pub(crate) durations: DurationStats,
    pub(crate) progress: Progress,
    pub(crate) serials: Serials,
    /// Events that were not drained. `None`: events are disabled.
    pub(crate) events: Option<Vec<CoreEvent>>,
    /// The caller's buffer during `apply`, empty otherwise.
    pub(crate) actions: Vec<Action>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Queues {
    /// Active batches, in the order of service.
    pub(crate) order: BTreeSet<(BatchPriority, BatchKey)>,
    /// Batches with runs that were never dispatched.
    pub(crate) fresh: BTreeSet<(BatchPriority, BatchKey)>,
    /// Batches with runs that may be retried now.
    pub(crate) retrying: BTreeSet<(BatchPriority, BatchKey)>,
    /// Batches with suspects that may be retried now.
    pub(crate) suspects: BTreeSet<(BatchPriority, BatchKey)>,
    /// Retries whose backoff is not over.
    pub(crate) paused: BTreeMap<u64, (BatchKey, PendingRetry)>,
    pub(crate) open_tasks: u64,
    /// Number of slices that were never dispatched, over all batches.
    pub(crate) slices: u64,
    /// Next time at which retries may return to the runner of their failure.
    pub(crate) other_runner_until: Option<Time>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Pool {
    pub(crate) runners: Vec<RunnerSlot>,
    /// Idle runners, the longest idle first.
    pub(crate) idle: BTreeSet<(u64, RunnerId)>,
    pub(crate) retired_slots: BTreeSet<RunnerId>,
    /// Live runners in a process of their own, for suspects.
    pub(crate) isolated: BTreeSet<RunnerId>,
    pub(crate) alive: u32,
    /// Number of runners with an attempt.
    pub(crate) working: u32,
    /// Number of leading slots that no start waits for.
    pub(crate) settled: usize,
    pub(crate) target_runners: u32,
    /// Computes `target_runners` if the pool follows the work.
    pub(crate) scaler: Option<Scaler>,
    pub(crate) scale_timer: Option<Time>,
    /// True if a part of the scaler's idle timeout has just ended.
    pub(crate) part_over: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Waiters {
    pub(crate) requests: BTreeMap<RequestId, WaiterLocation>,
    pub(crate) all: Vec<WaitAllWaiter>,
    pub(crate) start: Vec<RequestId>,
}

/// Times from which timeouts that restart on progress count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// Time of the last end of a run or beginning of an attempt.
    pub(crate) last: Time,
    pub(crate) last_task_end: Time,
}

/// Next numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Serials {
    pub(crate) batch: u64,
    pub(crate) attempt: u64,
    pub(crate) lease: u64,
    /// Positions in queues, and ids of timers.
    pub(crate) other: u64,
}

impl Index<RunnerId> for Pool {
    type Output = RunnerSlot;

    fn index(&self, runner: RunnerId) -> &RunnerSlot {
        &self.runners[runner.0 as usize]
    }
}

impl IndexMut<RunnerId> for Pool {
    fn index_mut(&mut self, runner: RunnerId) -> &mut RunnerSlot {
        &mut self.runners[runner.0 as usize]
    }
}

impl Pool {
    fn new(config: &CoreConfig) -> Self {
        let wanted = config.scaling.map_or(config.runners, |bounds| bounds.fit(config.runners));
        Self {
            target_runners: wanted.min(config.limits.runners),
            scaler: config.scaling.map(Scaler::new),
            ..Self::default()
        }
    }
}

/// Bits for the attempts and deliveries of one epoch; the epoch stands above them.
const NUMBERS_PER_EPOCH: u32 = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaiterLocation {
    Batch(BatchKey),
    All,
    Start,
    Stop,
}

impl Core {
    /// Returns an empty core. It accepts tasks, and dispatches them after a
    /// [`Start`](Request::Start).
    pub fn new(config: CoreConfig) -> Self {
        let first = u64::from(config.epoch) << NUMBERS_PER_EPOCH;
        Self {
            pool: Pool::new(&config),
            config,
            now: Time::ZERO,
            phase: CorePhase::New,
            stopping: None,
            counters: Counters::default(),
            timers: Timers::default(),
            batches: BatchTable::default(),
            ids: BTreeMap::new(),
            terminal: VecDeque::new(),
            changed: BTreeSet::new(),
            leases: BTreeMap::new(),
            queues: Queues::default(),
            waiters: Waiters::default(),
            durations: DurationStats::default(),
            progress: Progress::default(),
            serials: Serials { attempt: first, lease: first, ..Serials::default() },
            events: None,
            actions: Vec::new(),
        }
    }

    /// Applies one input that happened at `now`, and appends the resulting actions.
    ///
    /// A time before the last one counts as the last one.
    pub fn apply(&mut self, now: Time, input: Input, actions: &mut Vec<Action>) {
        std::mem::swap(&mut self.actions, actions);
        self.now = self.now.max(now);
        self.counters.inputs += 1;
        let restores = matches!(input, Input::Restore(_));
        match input {
            Input::Restore(record) => self.restore(record),
            Input::Requested { request, what } => self.request(request, what),
            Input::RequestAbandoned { request } => self.withdraw(request),
            Input::Report { runner, incarnation, report } => {
                self.report(runner, incarnation, report);
            }
            Input::DeliveryDone { lease, delivery } => self.delivered(lease, delivery),
            Input::TimePassed => self.pass_time(),
        }
        if !restores {
            self.advance();
        }
        std::mem::swap(&mut self.actions, actions);
    }

    fn request(&mut self, request: RequestId, what: Request) {
        if self.waiters.requests.contains_key(&request) {
            self.ignore_report(IgnoreReason::RepeatedRequest);
            return;
        }
        self.counters.requests += 1;
        let most = u64::from(self.config.limits.waiters);
        // Requests that end waits are never refused for lack of room.
        let may_wait = matches!(
            what,
            Request::Collect { .. } | Request::Finalize { .. } | Request::WaitAll { .. }
        );
        if may_wait && self.waiters.requests.len() as u64 >= most {
            let value = self.waiters.requests.len() as u64 + 1;
            self.refuse(request, Refusal::Limit { limit: "waiters", value, max: most });
            return;
        }
        match what {
            Request::Schedule { batch, kind, tasks } => {
                self.schedule(request, batch, kind, &tasks);
            }
            Request::Collect { .. } => self.collect(request, what),
            Request::Drain { batch } => self.drain(request, &batch),
            Request::Discard { batch } => self.discard(request, &batch),
            Request::Submit { batch, kind, tasks, min_wait_num } => {
                self.submit(request, batch, kind, &tasks, min_wait_num);
            }
            Request::Finalize { batch, kind, timeout } => {
                self.finalize(request, batch, kind, timeout);
            }
            Request::Abort { batch, reason, keep_partial_results: keep, unresponsive } => {
                self.abort(request, &batch, AbortSpec { reason, keep, unresponsive });
            }
            Request::CancelRun { batch, task, run } => {
                self.cancel_run(request, &batch, (task, run));
            }
            Request::WaitAll { timeout, clear_timeout_tasks } => {
                self.wait_all(request, timeout, clear_timeout_tasks);
            }
            Request::Start => self.start(request),
            Request::Stop { timeout } => self.stop(request, timeout),
        }
    }

    fn withdraw(&mut self, request: RequestId) {
        let Some(waiting) = self.waiters.requests.remove(&request) else {
            // It was answered meanwhile.
            return;
        };
        self.counters.abandoned += 1;
        match waiting {
            // An abort that waits for a sink is carried out all the same.
            WaiterLocation::Batch(key) => self.remove_waiter(key, request),
            WaiterLocation::All => self.remove_all_waiter(request),
            WaiterLocation::Start => self.waiters.start.retain(|waiter| *waiter != request),
            WaiterLocation::Stop => {
                if let Some(stopping) = &mut self.stopping {
                    stopping.waiters.retain(|waiter| *waiter != request);
                }
            }
        }
    }

    fn pass_time(&mut self) {
        while let Some(reason) = self.timers.pop_due(self.now) {
            match reason {
                DeadlineReason::Runner(runner) => self.runner_due(runner),
                DeadlineReason::HeartbeatTimeout(runner) => self.heartbeat_due(runner),
                DeadlineReason::Waiter(request) => self.waiter_due(request),
                DeadlineReason::Retry(serial) => self.retry_due(serial),
                DeadlineReason::AnyRunner => self.queues.other_runner_until = None,
                DeadlineReason::Delivery(lease) => self.delivery_due(lease),
                DeadlineReason::Stop => self.stop_due(),
                DeadlineReason::Scaling => self.scaling_due(),
            }
        }
    }

    /// Applies the consequences of an input: answers waiters and dispatches runs.
    fn advance(&mut self) {
        loop {
            while let Some(key) = self.changed.pop_first() {
                self.check_batch_waiters(key);
            }
            self.dispatch();
            if self.changed.is_empty() {
                break;
            }
        }
        // A wait that has timed out may cancel the work that other runners would be started for.
        self.check_all_waiters();
        self.scale();
        self.check_start_waiters();
        self.check_stop_waiters();
    }

    pub(crate) fn answer(&mut self, request: RequestId, answer: Response) {
        self.waiters.requests.remove(&request);
        self.counters.answers += 1;
        self.actions.push(Action::Respond { request, answer });
    }

    pub(crate) fn refuse(&mut self, request: RequestId, refusal: Refusal) {
        self.answer(request, Response::Refused(refusal));
    }

    pub(crate) fn ignore_report(&mut self, reason: IgnoreReason) {
        self.counters.ignored_reports[reason] += 1;
    }

    pub(crate) fn serial(&mut self) -> u64 {
        self.serials.other += 1;
        self.serials.other
    }
}
