//! The state machine: what goes in, what comes out, and the order in which consequences are drawn.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::batch_id::{BatchId, BatchPriority};
use crate::ids::{BatchKey, LeaseId, RequestId, RunnerId};
use crate::scheduler::action::{Action, Refusal, Response};
use crate::scheduler::batch::PendingRetry;
use crate::scheduler::batch_table::BatchTable;
use crate::scheduler::config::CoreConfig;
use crate::scheduler::counters::{Counters, IgnoreReason};
use crate::scheduler::durations::DurationStats;
use crate::scheduler::event::CoreEvent;
use crate::scheduler::input::{Input, Request};
use crate::scheduler::lease::Lease;
use crate::scheduler::lifecycle::{CorePhase, StopProgress};
use crate::scheduler::runner_slot::RunnerSlot;
use crate::scheduler::scaling::Scaler;
use crate::scheduler::timers::Timers;
use crate::scheduler::view::DeadlineReason;
use crate::scheduler::wait_all::WaitAllWaiter;
use crate::time::Time;

/// The scheduler and the batches as one deterministic state machine.
///
/// It has no clock, thread, socket, file or source of chance. Its methods are of three kinds:
/// 1. [`apply`](Self::apply) takes one thing that happened, at the instant the caller says, and
///    appends what is to be done about it to `actions`. It never fails and never blocks. A request
///    that cannot be granted is answered with a [`Refusal`]; a report that contradicts what is
///    known is counted and ignored. The caller performs the actions in order.
/// 2. [`next_deadline`](Self::next_deadline) says when [`Input::TimePassed`] is due if nothing else
///    happens. Facts that have arrived by then are to be applied first.
/// 3. Getters show what is, and [`check`](Self::check) looks at everything for contradictions.
///
/// The same configuration, inputs and instants give the same actions, byte for byte.
///
/// # Guardrails
/// - A run leaves `Pending` and `InFlight` only through `leave`, which keeps the tallies; but for
///   what was recorded, only through `end_run` and `cut`, which record it.
/// - A slot changes its phase only through `enter`, which keeps the idle set and the timers.
/// - Consequences for waiters are drawn once, at the end of `apply`, from the set of batches that
///   changed; nothing answers a waiter while a batch is being changed.
/// - A payload leaves through exactly one of: a lease that is acknowledged, `drop_payload`.
#[derive(Clone, Debug)]
pub struct Core {
    pub(crate) config: CoreConfig,
    pub(crate) now: Time,
    pub(crate) phase: CorePhase,
    pub(crate) stopping: Option<StopProgress>,
    pub(crate) counters: Counters,
    pub(crate) timers: Timers,

    /// Active and remembered batches.
    pub(crate) batches: BatchTable,
    /// The latest use of every batch id.
    pub(crate) ids: BTreeMap<BatchId, BatchKey>,
    /// Finalized and aborted batches, oldest first.
    pub(crate) terminal: VecDeque<BatchKey>,
    /// Batches whose waiters are to be looked at before `apply` returns.
    pub(crate) changed: BTreeSet<BatchKey>,
    pub(crate) leases: BTreeMap<LeaseId, Lease>,
    pub(crate) queues: Queues,
    pub(crate) pool: Pool,
    pub(crate) waiters: Waiters,
    pub(crate) durations: DurationStats,
    pub(crate) progress: Progress,
    pub(crate) serials: Serials,
    /// What was noticed and not yet asked for; none: nobody wants to know.
    pub(crate) notices: Option<Vec<CoreEvent>>,
}

/// Batches with runs that can be dispatched, and runs that wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queues {
    /// Active batches, in the order of service.
    pub(crate) order: BTreeSet<(BatchPriority, BatchKey)>,
    /// Batches with runs that were never dispatched.
    pub(crate) fresh: BTreeSet<(BatchPriority, BatchKey)>,
    /// Batches with runs that may be retried now.
    pub(crate) retrying: BTreeSet<(BatchPriority, BatchKey)>,
    /// Retries whose backoff is not over.
    pub(crate) paused: BTreeMap<u64, (BatchKey, PendingRetry)>,
    /// Tasks that have not ended.
    pub(crate) open_tasks: u64,
    /// Number of slices that were never dispatched, over all batches.
    pub(crate) slices: u64,
    /// When retries may next go back to the runner they failed on.
    pub(crate) other_runner_until: Option<Time>,
}

/// Runners and their number.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub(crate) runners: Vec<RunnerSlot>,
    /// Idle runners, the longest idle one first.
    pub(crate) idle: BTreeSet<(u64, RunnerId)>,
    pub(crate) retired_slots: BTreeSet<RunnerId>,
    /// Number of runners that are alive.
    pub(crate) alive: u32,
    /// Number of runners with an attempt.
    pub(crate) working: u32,
    /// Number of slots, from the first on, that no start waits for.
    pub(crate) settled: usize,
    /// Number of runners to keep.
    pub(crate) target_runners: u32,
    /// Decides `wanted`, if the pool follows the work.
    pub(crate) scaler: Option<Scaler>,
    pub(crate) scale_timer: Option<Time>,
    /// Whether a part of the scaler's quiet time has just ended.
    pub(crate) part_over: bool,
}

/// Requests that wait for something.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiters {
    pub(crate) requests: BTreeMap<RequestId, WaiterLocation>,
    pub(crate) all: Vec<WaitAllWaiter>,
    pub(crate) start: Vec<RequestId>,
}

/// Instants from which timeouts that restart on progress count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// When a run last ended or an attempt last began.
    pub(crate) last: Time,
    pub(crate) last_task_end: Time,
}

/// The next numbers to be used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Serials {
    pub(crate) batch: u64,
    pub(crate) attempt: u64,
    pub(crate) lease: u64,
    /// Place in queues, and names of timers.
    pub(crate) other: u64,
}

impl Pool {
    fn new(config: &CoreConfig) -> Self {
        let wanted = config.scaling.map_or(config.runners, |bounds| bounds.fit(config.runners));
        Self {
            runners: Vec::new(),
            idle: BTreeSet::new(),
            retired_slots: BTreeSet::new(),
            alive: 0,
            working: 0,
            settled: 0,
            target_runners: wanted.min(config.limits.runners),
            scaler: config.scaling.map(Scaler::new),
            scale_timer: None,
            part_over: false,
        }
    }
}

/// Bits for the attempts and deliveries of one epoch; the epoch stands above them.
const NUMBERS_PER_EPOCH: u32 = 40;

/// Where a waiting request is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaiterLocation {
    Batch(BatchKey),
    All,
    Start,
    Stop,
}

impl Core {
    /// Returns a core in which nothing has happened. It takes tasks, and works on them once it is
    /// asked to [`Start`](Request::Start).
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
            notices: None,
        }
    }

    /// Takes in one thing that happened at `now`, and appends what is to be done.
    ///
    /// An instant before the last one is taken for the last one.
    pub fn apply(&mut self, now: Time, input: Input, actions: &mut Vec<Action>) {
        self.now = self.now.max(now);
        self.counters.inputs += 1;
        match input {
            Input::Restore(record) => return self.restore(record, actions),
            Input::Requested { request, what } => self.request(request, what, actions),
            Input::RequestAbandoned { request } => self.withdraw(request),
            Input::Report { runner, life, report } => {
                self.report(runner, life, report, actions);
            }
            Input::DeliveryDone { lease, delivery } => self.delivered(lease, delivery, actions),
            Input::TimePassed => self.pass_time(actions),
        }
        self.advance(actions);
    }

    fn request(&mut self, request: RequestId, what: Request, actions: &mut Vec<Action>) {
        if self.waiters.requests.contains_key(&request) {
            self.ignore_report(IgnoreReason::RepeatedRequest);
            return;
        }
        self.counters.requests += 1;
        let most = u64::from(self.config.limits.waiters);
        // Never refused for lack of room: what brings waits to an end.
        let may_wait = matches!(
            what,
            Request::Collect { .. } | Request::Finalize { .. } | Request::WaitAll { .. }
        );
        if may_wait && self.waiters.requests.len() as u64 >= most {
            let value = self.waiters.requests.len() as u64 + 1;
            self.refuse(request, Refusal::Limit { limit: "waiters", value, max: most }, actions);
            return;
        }
        match what {
            Request::Schedule { batch, kind, tasks } => {
                self.schedule(request, batch, kind, &tasks, actions);
            }
            Request::Collect { .. } => self.collect(request, what, actions),
            Request::Drain { batch } => self.drain(request, &batch, actions),
            Request::Discard { batch } => self.discard(request, &batch, actions),
            Request::Submit { batch, kind, tasks, min_wait_num } => {
                self.submit(request, batch, kind, &tasks, min_wait_num, actions);
            }
            Request::Finalize { batch, kind, timeout } => {
                self.finalize(request, batch, kind, timeout, actions);
            }
            Request::Abort { batch, reason, keep_partial_results: keep, unresponsive } => {
                self.abort(request, &batch, reason, keep, unresponsive, actions);
            }
            Request::CancelRun { batch, task, run } => {
                self.cancel_run(request, &batch, (task, run), actions);
            }
            Request::WaitAll { timeout, clear_timeout_tasks } => {
                self.wait_all(request, timeout, clear_timeout_tasks, actions);
            }
            Request::Start => self.start(request, actions),
            Request::Stop { timeout } => self.stop(request, timeout, actions),
        }
    }

    fn withdraw(&mut self, request: RequestId) {
        let Some(waiting) = self.waiters.requests.remove(&request) else {
            // It was answered while the word was under way.
            return;
        };
        self.counters.abandoned += 1;
        match waiting {
            // An abort that waits for a sink is carried out all the same.
            WaiterLocation::Batch(key) => self.forget_waiter(key, request),
            WaiterLocation::All => self.forget_all_waiter(request),
            WaiterLocation::Start => self.waiters.start.retain(|waiter| *waiter != request),
            WaiterLocation::Stop => {
                if let Some(stopping) = &mut self.stopping {
                    stopping.waiters.retain(|waiter| *waiter != request);
                }
            }
        }
    }

    fn pass_time(&mut self, actions: &mut Vec<Action>) {
        while let Some(why) = self.timers.pop_due(self.now) {
            match why {
                DeadlineReason::Runner(runner) => self.runner_due(runner, actions),
                DeadlineReason::HeartbeatTimeout(runner) => self.silence_due(runner, actions),
                DeadlineReason::Waiter(request) => self.waiter_due(request),
                DeadlineReason::Retry(serial) => self.retry_due(serial),
                DeadlineReason::AnyRunner => self.queues.other_runner_until = None,
                DeadlineReason::Delivery(lease) => self.delivery_due(lease, actions),
                DeadlineReason::Stop => self.stop_due(actions),
                DeadlineReason::Scaling => self.scaling_due(),
            }
        }
    }

    /// Brings everything into line with what was just taken in: waiters that can be answered are,
    /// runs that can go out do.
    fn advance(&mut self, actions: &mut Vec<Action>) {
        loop {
            while let Some(key) = self.changed.pop_first() {
                self.look(key, actions);
            }
            self.dispatch(actions);
            if self.changed.is_empty() {
                break;
            }
        }
        self.scale(actions);
        self.look_at_all_waiters(actions);
        self.look_at_start(actions);
        self.look_at_stop(actions);
    }

    /// Answers a request.
    pub(crate) fn answer(
        &mut self,
        request: RequestId,
        answer: Response,
        actions: &mut Vec<Action>,
    ) {
        self.waiters.requests.remove(&request);
        self.counters.answers += 1;
        actions.push(Action::Respond { request, answer });
    }

    pub(crate) fn refuse(
        &mut self,
        request: RequestId,
        refusal: Refusal,
        actions: &mut Vec<Action>,
    ) {
        self.answer(request, Response::Refused(refusal), actions);
    }

    pub(crate) fn ignore_report(&mut self, why: IgnoreReason) {
        self.counters.ignored_reports[why] += 1;
    }

    pub(crate) fn serial(&mut self) -> u64 {
        self.serials.other += 1;
        self.serials.other
    }
}
