//! What happens: one virtual clock, one queue of events, explorers, a trainer, and the board.

mod acts;
mod training;
mod waiting;

use std::time::Duration;

use rollway_core::Time;
use rollway_core::explore::{Exchange, Fact, Order, Style};
use rollway_core::rendezvous::{Board, Left, Outcome as Waited, Role};

use super::KNOWN;
use super::checkers::{Checkers, Scene, Seen};
use super::mutants::Mutant;
use super::options::Options;
use super::process::{End, Explorer, Process, Watch};
use super::subject::{Around, Bug, Subject};
use super::trainer::Trainer;
use crate::checkers::Violation;
use crate::coverage::Coverage;
use crate::dice::Dice;
use crate::queue::Queue;
use crate::trace::Trace;
use crate::world::Outcome;

/// No explorers take as many facts as this unless something goes round in circles.
const FACTS_MAX: u64 = 20_000;
/// When everything should have come to an end.
const TOO_LATE: Duration = Duration::from_secs(400_000);
/// Numbers of seats and waits are above this.
const FIRST: u64 = 1_000;

/// A world.
#[derive(Debug)]
pub(super) struct World {
    now: Time,
    dice: Dice,
    options: Options,
    queue: Queue<Event>,
    board: Board,
    explorers: Vec<Explorer>,
    trainer: Trainer,
    bug: Option<Bug>,
    checkers: Checkers,
    trace: Trace,
    coverage: Coverage,
    violation: Option<Violation>,
    facts: u64,
    /// How often explorers have died or were stopped.
    crashes: u32,
    done: bool,
}

/// Something that is going to happen.
#[derive(Clone, Debug)]
enum Event {
    /// An explorer is started.
    Start { at: usize },
    /// An explorer carries out an order.
    Act { at: usize, life: u64, order: Order },
    /// An explorer's servers have the weights that a wait came to.
    Loads { at: usize, life: u64, came: Came },
    /// An explorer's loop hears of something.
    Heard { at: usize, life: u64, fact: Fact },
    /// An explorer says that it is alive.
    Beats { at: usize, life: u64 },
    /// The trainer is started.
    TrainerComes,
    /// The trainer looks for experiences.
    TrainerLooks { life: u64 },
    /// The trainer has made a step.
    TrainerSteps { life: u64 },
    /// The trainer says that it is alive.
    TrainerBeats { life: u64 },
    /// The trainer dies.
    TrainerDies,
    /// Everything should have come to an end.
    TooLate,
}

/// What a wait came to, apart from errors.
#[derive(Clone, Copy, Debug)]
struct Came {
    /// Newer weights, if there are any.
    version: Option<u64>,
    /// Whether the trainer is done.
    done: bool,
    /// When the wait began.
    began: Time,
}

impl World {
    /// Makes a world as its options say.
    pub(super) fn new(
        options: Options,
        dice: Dice,
        mutant: Option<&Mutant>,
        checkers: Checkers,
        trace: Trace,
    ) -> Self {
        let works = options.explorers.iter().enumerate();
        let explorers = works.map(|(at, work)| Explorer::new(format!("explorer{at}"), *work));
        Self {
            now: Time::ZERO,
            dice,
            queue: Queue::default(),
            board: Board::new(options.lease, FIRST),
            explorers: explorers.collect(),
            trainer: Trainer::default(),
            bug: mutant.map(|mutant| mutant.bug),
            checkers,
            trace,
            coverage: Coverage::of(KNOWN),
            violation: None,
            facts: 0,
            crashes: 0,
            done: false,
            options,
        }
    }

    /// Lets the world run until everybody has ended or something is found wrong.
    pub(super) fn run(mut self) -> Outcome {
        for at in 0..self.explorers.len() {
            self.later(Event::Start { at });
        }
        match self.options.trainer.comes {
            Some(after) => self.plan(after, Event::TrainerComes),
            None => self.coverage.add("trainer", "never", 1),
        }
        if let Some((after, _)) = self.options.trainer.crash {
            self.plan(after, Event::TrainerDies);
        }
        self.plan(TOO_LATE, Event::TooLate);
        self.coverage.add("style", style(self.options.pace.style), 1);
        while self.violation.is_none() && !self.done {
            self.turn();
        }
        Outcome {
            violation: self.violation,
            inputs: self.facts,
            lasted: self.now,
            coverage: self.coverage,
            trace: self.trace,
        }
    }

    /// Does the next thing: an event, or a deadline of the board. What happens at the instant of a
    /// deadline comes before it.
    fn turn(&mut self) {
        if self.facts >= FACTS_MAX {
            return self.give_up(format!("more than {FACTS_MAX} facts"));
        }
        let clock = !self.has_bug(Around::NoClock);
        let deadline = self.board.next_deadline().filter(|_| clock);
        let event = self.queue.next_at();
        if let Some(deadline) = deadline.filter(|at| event.is_none_or(|event| *at < event)) {
            self.now = self.now.max(deadline);
            self.board.tick(self.now);
            self.answers();
        } else if let Some((at, event)) = self.queue.take() {
            self.now = self.now.max(at);
            self.happen(event);
        } else {
            return self.give_up("nothing will ever happen again".to_owned());
        }
        self.rouse_trainer();
        for at in 0..self.explorers.len() {
            self.see(at, &Seen::Settled);
        }
        if self.explorers.iter().all(|explorer| explorer.end.is_some()) {
            self.see(0, &Seen::Over);
            self.done = true;
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Start { at } => self.start(at),
            Event::Act { at, life, order } => {
                if self.explorers[at].alive(life).is_some() {
                    self.act(at, life, order);
                }
            }
            Event::Loads { at, life, came } => {
                if self.explorers[at].alive(life).is_some() {
                    self.came(at, life, came);
                }
            }
            Event::Heard { at, life, fact } => {
                if self.explorers[at].alive(life).is_some() && !self.is_struck(at) {
                    self.tell(at, Some(fact));
                    self.watch(at);
                }
            }
            Event::Beats { at, life } => self.beat(at, life),
            Event::TrainerComes => self.trainer_comes(),
            Event::TrainerLooks { life } => self.trainer_looks(life),
            Event::TrainerSteps { life } => self.trainer_steps(life),
            Event::TrainerBeats { life } => self.trainer_beats(life),
            Event::TrainerDies => self.trainer_dies(),
            Event::TooLate => {
                let left = self.explorers.iter().filter(|explorer| explorer.end.is_none());
                let left: Vec<String> =
                    left.map(|it| format!("{} at {:?}", it.name, it.kept)).collect();
                self.give_up(format!("never done: {}", left.join("; ")));
            }
        }
    }

    /// Starts an explorer, anew or where it was.
    fn start(&mut self, at: usize) {
        let Ok(entered) = self.board.enter(self.now, Role::Explorer, &self.explorers[at].name)
        else {
            return self.give_up("there is no seat for an explorer".to_owned());
        };
        let is_async = self.is_async();
        let explorer = &mut self.explorers[at];
        explorer.lives += 1;
        let life = explorer.lives;
        let kept = explorer.kept.clone();
        let subject = Subject::new(self.options.pace.clone(), kept, self.bug);
        // What was kept is put back into the servers, whatever they had.
        let version = subject.plan().progress().version;
        explorer.version = version;
        explorer.down_since = None;
        explorer.process = Some(Process {
            life,
            subject,
            seat: entered.seat,
            wait: None,
            watch: Watch { seen: version, ask: None, is_over: !is_async },
            stopping: false,
            closing: false,
        });
        self.coverage.add("explorer", "restarted", u64::from(life > 1));
        self.see(at, &Seen::Started { version });
        self.tell_elsewhere();
        let published = self.board.newest().filter(|newest| is_async && *newest > version);
        match published.filter(|_| self.dice.percent(50)) {
            Some(newest) => self.tell(at, Some(Fact::Published(newest))),
            None => self.tell(at, None),
        }
        self.plan(self.options.lease / 2, Event::Beats { at, life });
        self.watch(at);
        self.answers();
    }

    /// Tells an explorer something, or nothing, and lets it carry out what it orders.
    fn tell(&mut self, at: usize, fact: Option<Fact>) {
        if self.violation.is_some() {
            return;
        }
        self.facts += 1;
        if let Some(fact) = &fact {
            self.coverage.add("fact", fact_kind(fact), 1);
            self.trace.line(self.facts, self.now, '>', fact_kind(fact), (at, fact));
            self.see(at, &Seen::Told(fact));
        }
        let explorer = &mut self.explorers[at];
        let Some(process) = &mut explorer.process else { return };
        let (life, forced) = (process.life, process.subject.plan().forced());
        let orders = process.subject.apply(fact);
        let plan = process.subject.plan();
        explorer.kept = plan.progress().clone();
        self.coverage.add("explorer", "forced", plan.forced() - forced);
        for order in orders {
            self.coverage.add("order", order_kind(order), 1);
            self.trace.line(self.facts, self.now, '<', order_kind(order), (at, order));
            self.see(at, &Seen::Ordered(order));
            self.perform(at, life, order);
        }
        let process = self.explorers[at].process.as_ref();
        if process.is_some_and(|process| process.stopping && process.subject.plan().is_over()) {
            self.goes_down(at, "stopped");
        }
    }

    /// Decides whether an explorer dies now or is told to stop; it is dead if so.
    fn is_struck(&mut self, at: usize) -> bool {
        if self.crashes >= self.options.crashes_max {
            return false;
        }
        if self.dice.chance(self.options.crash) {
            self.crashes += 1;
            self.goes_down(at, "crashed");
            return true;
        }
        if self.dice.chance(self.options.stop) {
            self.crashes += 1;
            if let Some(process) = &mut self.explorers[at].process {
                process.stopping = true;
            }
            self.tell(at, Some(Fact::Stopped));
        }
        self.explorers[at].process.is_none()
    }

    /// An explorer's process ends, and will be started again.
    fn goes_down(&mut self, at: usize, why: &'static str) {
        self.coverage.add("explorer", why, 1);
        let Some(process) = self.explorers[at].process.take() else { return };
        self.explorers[at].down_since = Some(self.now);
        if self.dice.percent(50) {
            self.board.leave(self.now, process.seat, &Left::Silent);
            let asks = process.wait.map(|wait| wait.ask).into_iter().chain(process.watch.ask);
            asks.for_each(|ask| self.board.abandon(ask));
        }
        let lease = self.options.lease;
        let wait = self.dice.spread(lease / 16, lease * 4);
        self.plan(wait, Event::Start { at });
        self.answers();
    }

    fn ends(&mut self, at: usize, end: End) {
        let Some(process) = self.explorers[at].process.take() else { return };
        let how = match &end {
            End::Done => Left::Done,
            End::TrainerFailed(words) | End::TimedOut(words) => Left::Failed(words.clone()),
        };
        self.board.leave(self.now, process.seat, &how);
        self.coverage.add("end", end.name(), 1);
        self.explorers[at].end = Some(end.clone());
        self.trace.line(self.facts, self.now, '=', end.name(), (at, &end));
        self.see(at, &Seen::Ended(&end));
        self.answers();
    }

    fn beat(&mut self, at: usize, life: u64) {
        let Some(process) = self.explorers[at].alive(life) else { return };
        if process.closing {
            return;
        }
        let seat = process.seat;
        self.board.beat(self.now, seat);
        self.answers();
        self.plan(self.options.lease / 2, Event::Beats { at, life });
    }

    fn see(&mut self, at: usize, seen: &Seen<'_>) {
        if self.violation.is_some() {
            return;
        }
        let scene = Scene {
            now: self.now,
            at,
            options: &self.options,
            explorers: &self.explorers,
            trainer: &self.trainer,
        };
        self.violation = self.checkers.see(&scene, seen);
    }

    fn give_up(&mut self, what: String) {
        self.done = true;
        self.violation = self.checkers.stuck(self.now, what);
    }

    fn plan(&mut self, after: Duration, event: Event) {
        self.queue.plan(self.now.after(after), event);
    }

    /// Plans an event for when a message has got there.
    fn later(&mut self, event: Event) {
        let wait = self.dice.spread(self.options.latency / 4, self.options.latency * 4);
        self.plan(wait, event);
    }

    fn is_async(&self) -> bool {
        self.options.pace.style == Style::FullyAsync
    }

    /// Tells whether this bug was planted.
    fn has_bug(&self, bug: Around) -> bool {
        matches!(self.bug, Some(Bug::Around(planted)) if planted == bug)
    }
}

const fn style(style: Style) -> &'static str {
    match style {
        Style::Fixed => "fixed",
        Style::ExplorerDriven => "explorer_driven",
        Style::TrainerDriven => "trainer_driven",
        Style::FullyAsync => "fully_async",
    }
}

const fn order_kind(order: Order) -> &'static str {
    match order {
        Order::Begin(_) => "begin",
        Order::Finalize(_) => "finalize",
        Order::Evaluate(_) => "evaluate",
        Order::FinishEval(_) => "finish_eval",
        Order::Sync { .. } => "sync",
        Order::Load => "load",
        Order::Close => "close",
        Order::End => "end",
    }
}

const fn fact_kind(fact: &Fact) -> &'static str {
    match fact {
        Fact::Begun(_) => "begun",
        Fact::Exhausted => "exhausted",
        Fact::Finalized { .. } => "finalized",
        Fact::EvalBegun(_) => "eval_begun",
        Fact::EvalFinished(_) => "eval_finished",
        Fact::Synced(Exchange::Version(_)) => "synced:version",
        Fact::Synced(Exchange::NothingNew) => "synced:nothing_new",
        Fact::Synced(Exchange::TrainerDone(_)) => "synced:trainer_done",
        Fact::Published(_) => "published",
        Fact::Loaded(_) => "loaded",
        Fact::Elsewhere(_) => "elsewhere",
        Fact::TrainerDone => "trainer_done",
        Fact::Stopped => "stopped",
    }
}

const fn waited_kind(outcome: &Waited) -> &'static str {
    match outcome {
        Waited::New(_) => "new",
        Waited::NothingNew => "nothing_new",
        Waited::TrainerDone(_) => "trainer_done",
        Waited::TrainerFailed(_) => "trainer_failed",
        Waited::TimedOut(_) => "timed_out",
    }
}
