//! A simulated world around the core: one virtual clock, one queue of events, and everybody who
//! talks to the core. Faults strike until the world is healed; from then on everything that was
//! accepted must come to an end.

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
    Action, AttemptId, BatchKey, DeliveryOutcome, FailureKind, Incarnation, Input, LeaseId,
    PayloadId, Request, RequestId, RunRange, RunnerId, RunnerReport, TaskId, Time,
};

use crate::checkers::{CheckContext, Checkers, Violation};
use crate::coverage::Coverage;
use crate::faults::{Fault, FaultPlan};
use crate::ledger::SimLedger;
use crate::mutants::CoreSubject;
use crate::options::{WorldOptions, WorldShape};
use crate::process::Processes;
use crate::queue::EventQueue;
use crate::random::SimRandom;
use crate::reference_model::ReferenceModel;
use crate::sink::{Origin, SimSink};
use crate::trace::SimTrace;
use crate::world::users::Users;

/// No world takes as many inputs as this unless something goes round in circles.
const MAX_INPUTS: u64 = 60_000;

/// A world.
#[derive(Debug)]
pub struct SimWorld {
    pub(crate) now: Time,
    pub(crate) dice: SimRandom,
    pub(crate) faults: FaultPlan,
    pub(crate) shape: WorldShape,
    pub(crate) queue: EventQueue<WorldEvent>,
    pub(crate) subject: CoreSubject,
    pub(crate) book: ReferenceModel,
    pub(crate) processes: Processes,
    pub(crate) sink: SimSink,
    pub(crate) ledger: SimLedger,
    pub(crate) users: Users,
    /// Whether nothing goes wrong any more.
    pub(crate) healed: bool,
    /// What the tasks are like that were begun.
    pub(crate) characters: BTreeMap<(BatchKey, TaskId), TaskBehaviour>,
    checkers: Checkers,
    trace: SimTrace,
    coverage: Coverage,
    violation: Option<Violation>,
    done: bool,
    inputs: u64,
    next_payload: u64,
    /// How often the coordinator has crashed, and whether it is about to.
    crashes: u32,
    crashing: bool,
    /// Machines that were lost, and until when they are away.
    away: BTreeMap<u32, Time>,
    /// The deadline that was last seen, and when the caller of the core will notice it.
    alarm: Option<(Time, Time)>,
}

/// Something that is going to happen.
#[derive(Clone, Debug)]
pub(crate) enum WorldEvent {
    /// A report arrives at the core.
    Report {
        runner: RunnerId,
        life: Incarnation,
        report: RunnerReport,
    },
    /// An order arrives at a runner.
    Order {
        runner: RunnerId,
        life: Incarnation,
        order: RunnerOrder,
    },
    /// A runner is up.
    Started {
        runner: RunnerId,
        life: Incarnation,
    },
    /// A runner dies, if it is still at this attempt.
    Crash {
        runner: RunnerId,
        life: Incarnation,
        attempt: Option<AttemptId>,
        suspect: bool,
    },
    /// A runner has been killed.
    Killed {
        runner: RunnerId,
        life: Incarnation,
    },
    /// A runner says that it is alive.
    Heartbeat {
        runner: RunnerId,
        life: Incarnation,
    },
    /// A runner is no longer cut off.
    Reconnect {
        runner: RunnerId,
        life: Incarnation,
    },
    /// A run ends.
    RunDone {
        runner: RunnerId,
        life: Incarnation,
        attempt: AttemptId,
        run: u32,
    },
    AttemptDone {
        runner: RunnerId,
        life: Incarnation,
        attempt: AttemptId,
    },
    /// The sink stores payloads, each with the run it comes from.
    Store {
        payloads: Vec<(Origin, PayloadId)>,
    },
    /// What was being written to the ledger is safe.
    Written,
    /// The coordinator is killed.
    CoordinatorCrash,
    /// The core hears of a delivery.
    Delivered {
        lease: LeaseId,
        delivery: DeliveryOutcome,
    },
    /// A user does the next thing.
    Wake {
        user: usize,
    },
    /// A user goes away.
    Withdraw {
        request: RequestId,
    },
    /// A request is sent again.
    AskAgain {
        request: RequestId,
    },
    /// Somebody asks anew for what was never answered.
    AskAnew {
        user: usize,
        what: Request,
    },
    /// Something senseless is said.
    Mischief,
    /// Nothing goes wrong any more.
    Heal,
    /// What is unfinished is looked after.
    Close,
    /// Everything should have come to an end.
    TooLate,
}

/// An order under way to a runner.
#[derive(Clone, Debug)]
pub(crate) enum RunnerOrder {
    /// Work.
    Begin { attempt: AttemptId, batch: BatchKey, task: TaskId, runs: RunRange },
    /// Give up.
    Cancel { attempt: AttemptId },
}

/// What a task is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskBehaviour {
    /// It works.
    Sound,
    /// It kills whoever runs it.
    Poison,
    /// It fails, always.
    Failing(FailureKind),
}

/// What became of a world.
#[derive(Debug)]
pub struct WorldResult {
    /// What was found wrong.
    pub violation: Option<Violation>,
    /// How many inputs the core took.
    pub inputs: u64,
    /// How much time passed in the world.
    pub lasted: Time,
    /// What came up.
    pub coverage: Coverage,
    /// Everything that went in and came out.
    pub trace: SimTrace,
}

impl SimWorld {
    /// Makes a world as its options say.
    pub fn new(
        options: WorldOptions,
        dice: SimRandom,
        subject: CoreSubject,
        checkers: Checkers,
        trace: SimTrace,
    ) -> Self {
        let WorldOptions { config, faults, shape } = options;
        Self {
            now: Time::ZERO,
            dice,
            faults,
            shape,
            queue: EventQueue::default(),
            subject,
            book: ReferenceModel::new(config),
            processes: Processes::default(),
            sink: SimSink::default(),
            ledger: SimLedger::default(),
            users: Users::default(),
            healed: false,
            characters: BTreeMap::new(),
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

    /// Lets the world run until everything has ended or something is found wrong.
    pub fn run(mut self) -> WorldResult {
        self.open_users();
        self.plan(self.shape.length, WorldEvent::Heal);
        if self.faults.on(Fault::ReportBogus) || self.faults.on(Fault::IdleClock) {
            self.plan(self.shape.think, WorldEvent::Mischief);
        }
        if self.faults.on(Fault::CoordinatorCrash) {
            let wait = self.dice.spread(self.shape.run, self.shape.length / 2);
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

    /// Does the next thing: an event, or the passing of time. What happens at the instant of a
    /// deadline comes before it.
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
                self.happen(event);
                self.crash_if_due();
            }
            (None, None) => self.give_up("nothing will ever happen again".to_owned()),
        }
    }

    /// Returns when the caller of the core will look at the clock.
    fn alarm(&mut self) -> Option<Time> {
        let deadline = self.subject.core().next_deadline()?.at;
        if let Some((seen, alarm)) = self.alarm
            && seen == deadline
        {
            return Some(alarm);
        }
        let late = self.faults.strikes(Fault::LateClock, &mut self.dice);
        let mut by = Duration::ZERO;
        if late {
            by = self.dice.spread(self.shape.latency, self.shape.run * 4);
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

    fn happen(&mut self, event: WorldEvent) {
        match event {
            WorldEvent::Report { runner, life, report } => {
                self.report_arrives(runner, life, report)
            }
            WorldEvent::Order { runner, life, order } => self.order_arrives(runner, life, order),
            WorldEvent::Started { runner, life } => self.started(runner, life),
            WorldEvent::Crash { runner, life, attempt, suspect } => {
                self.crash(runner, life, attempt, suspect);
            }
            WorldEvent::Killed { runner, life } => self.killed(runner, life),
            WorldEvent::Heartbeat { runner, life } => self.heartbeat(runner, life),
            WorldEvent::Reconnect { runner, life } => self.reconnect(runner, life),
            WorldEvent::RunDone { runner, life, attempt, run } => {
                self.run_done(runner, life, attempt, run);
            }
            WorldEvent::AttemptDone { runner, life, attempt } => {
                self.attempt_done(runner, life, attempt);
            }
            WorldEvent::Store { payloads } => self.store(&payloads),
            WorldEvent::Written => self.written(),
            WorldEvent::CoordinatorCrash => {
                self.faults.note(Fault::CoordinatorCrash);
                self.crashing = true;
            }
            WorldEvent::Delivered { lease, delivery } => {
                self.step(Input::DeliveryDone { lease, delivery })
            }
            WorldEvent::Wake { user } => self.wake_user(user),
            WorldEvent::Withdraw { request } => self.withdraw(request),
            WorldEvent::AskAgain { request } => self.ask_again(request),
            WorldEvent::AskAnew { user, what } => self.ask_anew(user, what),
            WorldEvent::Mischief => self.mischief(),
            WorldEvent::Heal => self.heal(),
            WorldEvent::Close => self.close(),
            WorldEvent::TooLate => {
                let left = self.left_undone().unwrap_or_default();
                self.give_up(format!("still not done long after the world was healed: {left}"));
            }
        }
    }

    /// Hands an input to the core, lets the checkers look, and performs what was ordered.
    pub(crate) fn step(&mut self, input: Input) {
        if self.violation.is_some() {
            return;
        }
        self.inputs += 1;
        let core = self.subject.core();
        let disbelieved = core.counters().ignored_reports.total();
        self.coverage.before(core);
        self.trace.input(self.inputs, self.now, &input);
        let mut actions = Vec::new();
        self.subject.apply(self.now, input.clone(), &mut actions);
        for action in &actions {
            self.trace.action(self.inputs, self.now, action);
        }
        let core = self.subject.core();
        let believed = core.counters().ignored_reports.total() == disbelieved;
        self.coverage.step(&input, &actions, core, &self.book.config);
        let mut scene = CheckContext {
            now: self.now,
            input: &input,
            actions: &actions,
            believed,
            core,
            book: &mut self.book,
            processes: &self.processes,
            sink: &self.sink,
        };
        self.violation = self.checkers.observe(&mut scene);
        self.perform(actions);
    }

    /// Ends the world well, unless the checkers have a last word to say.
    fn finish(&mut self) {
        self.done = true;
        self.show(Checkers::ended);
    }

    /// Lets the checkers look at an answer or a delivery that nothing holds back any more.
    fn see_released(&mut self, action: &Action) {
        self.show(|checkers, scene| checkers.released(scene, action));
    }

    /// Lets the checkers look at a core that has taken up what the ledger has.
    fn see_restored(&mut self) {
        self.show(Checkers::restored);
    }

    /// Shows the checkers everything as it is between two steps.
    fn show(
        &mut self,
        look: impl FnOnce(&mut Checkers, &mut CheckContext<'_>) -> Option<Violation>,
    ) {
        if self.violation.is_some() {
            return;
        }
        let mut scene = CheckContext {
            now: self.now,
            input: &Input::TimePassed,
            actions: &[],
            believed: true,
            core: self.subject.core(),
            book: &mut self.book,
            processes: &self.processes,
            sink: &self.sink,
        };
        self.violation = look(&mut self.checkers, &mut scene);
    }

    fn give_up(&mut self, what: String) {
        self.done = true;
        self.violation = self.checkers.stuck(self.now, what);
    }

    /// Plans an event.
    pub(crate) fn plan(&mut self, after: Duration, event: WorldEvent) {
        self.queue.plan(self.now.after(after), event);
    }

    /// Returns a number for a payload that has just come in.
    pub(crate) fn next_payload(&mut self) -> PayloadId {
        self.next_payload += 1;
        PayloadId(self.next_payload)
    }

    fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            self.perform_one(action);
        }
    }
}
