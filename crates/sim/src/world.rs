//! A simulated world around the core: one virtual clock, one event queue, users, runners and a
//! sink.
//! Faults occur until the world is healed; from then on everything that was accepted must end.

mod crash;
mod drain_phase;
mod invalid_inputs;
mod links;
mod machines;
mod perform;
mod runners;
mod users;

use std::collections::BTreeMap;
use std::time::Duration;

use rollway_core::{
    AttemptId, BatchKey, DeliveryOutcome, FailureKind, Input, LeaseId, PayloadId, Request,
    RequestId, RunRange, RunnerReport, Suspicion, TaskId, Time,
};

use crate::checkers::{CheckContext, Checkers, Violation};
use crate::coverage::Coverage;
use crate::faults::{Fault, FaultPlan};
use crate::ledger::SimLedger;
use crate::mutants::CoreSubject;
use crate::options::{WorldOptions, WorldShape};
use crate::process::{Processes, RunnerKey};
use crate::queue::EventQueue;
use crate::random::SimRandom;
use crate::reference_model::ReferenceModel;
use crate::sink::{Origin, SimSink};
use crate::trace::SimTrace;
use crate::world::users::Users;

/// Maximum number of inputs; a world with more makes no progress.
const MAX_INPUTS: u64 = 60_000;

#[derive(Debug)]
pub struct SimWorld {
    pub(crate) now: Time,
    pub(crate) rng: SimRandom,
    pub(crate) faults: FaultPlan,
    pub(crate) shape: WorldShape,
    pub(crate) queue: EventQueue<WorldEvent>,
    pub(crate) subject: CoreSubject,
    pub(crate) model: ReferenceModel,
    pub(crate) processes: Processes,
    pub(crate) sink: SimSink,
    pub(crate) ledger: SimLedger,
    pub(crate) users: Users,
    /// True if faults are disabled.
    pub(crate) faults_ended: bool,
    pub(crate) behaviours: BTreeMap<(BatchKey, TaskId), TaskBehaviour>,
    /// Refusals that are left of batches that the sink rejects.
    pub(crate) rejected: BTreeMap<BatchKey, u32>,
    checkers: Checkers,
    trace: SimTrace,
    coverage: Coverage,
    violation: Option<Violation>,
    done: bool,
    inputs: u64,
    next_payload: u64,
    /// Number of crashes of the coordinator, and whether one is due.
    crashes: u32,
    crashing: bool,
    /// Lost machines, and the time of their return.
    away: BTreeMap<u32, Time>,
    /// Last seen deadline, and the time at which the driver handles it.
    alarm: Option<(Time, Time)>,
}

#[derive(Clone, Debug)]
pub(crate) enum WorldEvent {
    /// A report arrives at the core.
    Report(RunnerKey, RunnerReport),
    /// A command arrives at a runner.
    Order(RunnerKey, RunnerOrder),
    Started(RunnerKey),
    /// A runner dies, if it still executes this attempt.
    Crash(RunnerKey, Option<AttemptId>, Suspicion),
    /// A task ends the process of its runner.
    EndProcess(RunnerKey, AttemptId),
    Killed(RunnerKey),
    Heartbeat(RunnerKey),
    Reconnect(RunnerKey),
    RunDone(RunnerKey, AttemptId, u32),
    AttemptDone(RunnerKey, AttemptId),
    Store(Vec<(Origin, PayloadId)>),
    /// A write of the ledger is durable.
    Written,
    CoordinatorCrash,
    /// The outcome of a delivery arrives at the core.
    Delivered(LeaseId, DeliveryOutcome),
    /// A user continues.
    Wake(usize),
    Withdraw(RequestId),
    /// A request is sent again under its id.
    AskAgain(RequestId),
    /// A request without a response is sent anew after a crash.
    AskAnew(usize, Request),
    InvalidInput,
    /// Faults are disabled.
    Heal,
    /// Open work is finished by the world itself.
    Close,
    /// Every world must have ended by now.
    TooLate,
}

#[derive(Clone, Debug)]
pub(crate) enum RunnerOrder {
    Begin { attempt: AttemptId, batch: BatchKey, task: TaskId, runs: RunRange },
    Cancel { attempt: AttemptId },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskBehaviour {
    Sound,
    /// It kills every runner that executes it.
    Poison,
    /// It fails in every attempt.
    Failing(FailureKind),
}

#[derive(Debug)]
pub struct WorldResult {
    pub violation: Option<Violation>,
    /// Inputs applied to the core, or to the plans of explorers.
    pub inputs: u64,
    /// Virtual time at the end.
    pub lasted: Time,
    pub coverage: Coverage,
    pub trace: SimTrace,
}

impl SimWorld {
    pub fn new(
        options: WorldOptions,
        rng: SimRandom,
        subject: CoreSubject,
        checkers: Checkers,
        trace: SimTrace,
    ) -> Self {
        let WorldOptions { config, faults, shape } = options;
        Self {
            now: Time::ZERO,
            rng,
            faults,
            shape,
            queue: EventQueue::default(),
            subject,
            model: ReferenceModel::new(config),
            processes: Processes::default(),
            sink: SimSink::default(),
            ledger: SimLedger::default(),
            users: Users::default(),
            faults_ended: false,
            behaviours: BTreeMap::new(),
            rejected: BTreeMap::new(),
            checkers,
            trace,
            coverage: Coverage::default(),
            violation: None,
            done: false,
            inputs: 0,
            next_payload: 0,
            crashes: 0,
            crashing: false,
            away: BTreeMap::new(),
            alarm: None,
        }
    }

    /// Runs the world until everything has ended or a checker reports a violation.
    pub fn run(mut self) -> WorldResult {
        self.open_users();
        self.plan(self.shape.length, WorldEvent::Heal);
        if self.faults.on(Fault::ReportBogus) || self.faults.on(Fault::IdleClock) {
            self.plan(self.shape.think, WorldEvent::InvalidInput);
        }
        if self.faults.on(Fault::CoordinatorCrash) {
            let wait = self.rng.spread(self.shape.run, self.shape.length / 2);
            self.plan(wait, WorldEvent::CoordinatorCrash);
        }
        while self.violation.is_none() && !self.done {
            self.turn();
        }
        self.coverage.faults(&self.faults);
        self.coverage.counters(self.subject.core());
        WorldResult {
            violation: self.violation,
            inputs: self.inputs,
            lasted: self.now,
            coverage: self.coverage,
            trace: self.trace,
        }
    }

    /// Handles the next event or deadline of the core. Events come before deadlines at the same
    /// time.
    fn turn(&mut self) {
        if self.inputs >= MAX_INPUTS {
            return self.give_up(format!("more than {MAX_INPUTS} inputs"));
        }
        let alarm = self.alarm();
        match (self.queue.next_at(), alarm) {
            (Some(event), Some(alarm)) if alarm < event => self.time_passes(alarm),
            (None, Some(alarm)) => self.time_passes(alarm),
            (Some(_), _) => {
                let Some((at, event)) = self.queue.take() else { return };
                self.now = self.now.max(at);
                self.handle_event(event);
                self.crash_if_due();
            }
            (None, None) => self.give_up("no event is left".to_owned()),
        }
    }

    /// Returns the time at which the driver handles the next deadline.
    fn alarm(&mut self) -> Option<Time> {
        let deadline = self.subject.core().next_deadline()?.at;
        if let Some((seen, alarm)) = self.alarm
            && seen == deadline
        {
            return Some(alarm);
        }
        let late = self.faults.strikes(Fault::LateClock, &mut self.rng);
        let mut by = Duration::ZERO;
        if late {
            by = self.rng.spread(self.shape.latency, self.shape.run * 4);
        }
        let alarm = deadline.after(by);
        self.alarm = Some((deadline, alarm));
        Some(alarm)
    }

    fn time_passes(&mut self, at: Time) {
        self.now = self.now.max(at);
        self.alarm = None;
        self.step(Input::TimePassed);
        self.crash_if_due();
    }

    fn handle_event(&mut self, event: WorldEvent) {
        match event {
            WorldEvent::Report(at, report) => self.report_arrives(at, report),
            WorldEvent::Order(at, order) => self.order_arrives(at, order),
            WorldEvent::Started(at) => self.started(at),
            WorldEvent::Crash(at, attempt, suspicion) => self.crash(at, attempt, suspicion),
            WorldEvent::EndProcess(at, attempt) => self.end_process(at, attempt),
            WorldEvent::Killed(at) => self.killed(at),
            WorldEvent::Heartbeat(at) => self.heartbeat(at),
            WorldEvent::Reconnect(at) => self.reconnect(at),
            WorldEvent::RunDone(at, attempt, run) => self.run_done(at, attempt, run),
            WorldEvent::AttemptDone(at, attempt) => self.attempt_done(at, attempt),
            WorldEvent::Store(payloads) => self.store(&payloads),
            WorldEvent::Written => self.written(),
            WorldEvent::CoordinatorCrash => {
                self.faults.note(Fault::CoordinatorCrash);
                self.crashing = true;
            }
            WorldEvent::Delivered(lease, delivery) => {
                self.step(Input::DeliveryDone { lease, delivery })
            }
            WorldEvent::Wake(user) => self.wake_user(user),
            WorldEvent::Withdraw(request) => self.withdraw(request),
            WorldEvent::AskAgain(request) => self.repeat_request(request),
            WorldEvent::AskAnew(user, what) => self.resubmit(user, what),
            WorldEvent::InvalidInput => self.invalid_input(),
            WorldEvent::Heal => self.end_faults(),
            WorldEvent::Close => self.close(),
            WorldEvent::TooLate => {
                let left = self.left_undone().unwrap_or_default();
                self.give_up(format!("not done long after the last fault: {left}"));
            }
        }
    }

    /// Applies an input to the core, runs the checkers, and performs the actions.
    pub(crate) fn step(&mut self, input: Input) {
        if self.violation.is_some() {
            return;
        }
        self.inputs += 1;
        let core = self.subject.core();
        let ignored = core.counters().ignored_reports.total();
        self.coverage.before(core);
        self.trace.input(self.inputs, self.now, &input);
        let mut actions = Vec::new();
        self.subject.apply(self.now, input.clone(), &mut actions);
        for action in &actions {
            self.trace.action(self.inputs, self.now, action);
        }
        let core = self.subject.core();
        let accepted = core.counters().ignored_reports.total() == ignored;
        self.coverage.step(&input, &actions, core, &self.model.config);
        let mut ctx = CheckContext {
            now: self.now,
            input: &input,
            actions: &actions,
            accepted,
            core,
            model: &mut self.model,
            processes: &self.processes,
            sink: &self.sink,
        };
        self.violation = self.checkers.observe(&mut ctx);
        for action in actions {
            self.perform(action);
        }
    }

    /// Ends the world after a final check.
    fn finish(&mut self) {
        self.done = true;
        self.check(Checkers::ended);
    }

    /// Runs a check between two steps.
    fn check(
        &mut self,
        check: impl FnOnce(&mut Checkers, &mut CheckContext<'_>) -> Option<Violation>,
    ) {
        if self.violation.is_some() {
            return;
        }
        let mut ctx = CheckContext {
            now: self.now,
            input: &Input::TimePassed,
            actions: &[],
            accepted: true,
            core: self.subject.core(),
            model: &mut self.model,
            processes: &self.processes,
            sink: &self.sink,
        };
        self.violation = check(&mut self.checkers, &mut ctx);
    }

    fn give_up(&mut self, what: String) {
        self.done = true;
        self.violation = self.checkers.stuck(self.now, &self.model, what);
    }

    pub(crate) fn plan(&mut self, after: Duration, event: WorldEvent) {
        self.queue.plan(self.now.after(after), event);
    }

    pub(crate) fn next_payload(&mut self) -> PayloadId {
        self.next_payload += 1;
        PayloadId(self.next_payload)
    }
}
