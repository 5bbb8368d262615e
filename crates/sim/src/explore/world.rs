//! The simulation: one virtual clock, one event queue, explorers, a trainer, and the synchronizer.

mod acts;
mod training;
mod waiting;

use std::time::Duration;

use rollway_core::Time;
use rollway_core::explore::{PlanAction, PlanInput, PlanStyle, SyncResult};
use rollway_core::sync::{LeaveReason, MemberRole, SyncCore, WaitOutcome as Waited};

use super::COVERAGE_ITEMS;
use super::checkers::{ExploreCheckers, ExploreContext, ExploreEvent};
use super::mutants::ExploreMutant;
use super::options::ExploreWorldOptions;
use super::process::{ExploreProcess, ProcessEnd, SimExplorer, Watch};
use super::subject::{Around, ExploreBug, Subject};
use super::trainer::SimTrainer;
use crate::checkers::Violation;
use crate::coverage::Coverage;
use crate::queue::EventQueue;
use crate::random::SimRandom;
use crate::trace::SimTrace;
use crate::world::WorldResult;

/// Maximum number of inputs; a plan with more makes no progress.
const MAX_INPUTS: u64 = 20_000;
/// Time by which every world must have ended.
const WORLD_DEADLINE: Duration = Duration::from_secs(400_000);
/// Lower bound of the ids of members and waits.
const FIRST: u64 = 1_000;

#[derive(Debug)]
pub(super) struct ExploreWorld {
    now: Time,
    rng: SimRandom,
    options: ExploreWorldOptions,
    queue: EventQueue<ExploreWorldEvent>,
    sync: SyncCore,
    explorers: Vec<SimExplorer>,
    trainer: SimTrainer,
    bug: Option<ExploreBug>,
    checkers: ExploreCheckers,
    trace: SimTrace,
    coverage: Coverage,
    violation: Option<Violation>,
    inputs: u64,
    /// Number of crashes and stops of explorers.
    crashes: u32,
    done: bool,
}

#[derive(Clone, Debug)]
enum ExploreWorldEvent {
    /// An explorer starts.
    Start { at: usize },
    /// An explorer performs an action.
    Act { at: usize, incarnation: u64, order: PlanAction },
    /// An explorer's servers have loaded the weights of a wait.
    Loads { at: usize, incarnation: u64, result: WaitResult },
    /// An input arrives at an explorer's plan.
    Input { at: usize, incarnation: u64, input: PlanInput },
    /// An explorer sends a heartbeat.
    Heartbeat { at: usize, incarnation: u64 },
    /// The trainer starts.
    TrainerStarts,
    /// The trainer looks for experiences.
    TrainerChecks { incarnation: u64 },
    /// The trainer has finished a step.
    TrainerSteps { incarnation: u64 },
    /// The trainer sends a heartbeat.
    TrainerHeartbeat { incarnation: u64 },
    /// The trainer crashes.
    TrainerCrashes,
    /// Every world must have ended by now.
    TooLate,
}

/// Outcome of a wait without an error.
#[derive(Clone, Copy, Debug)]
struct WaitResult {
    /// Newer weights, if there are any.
    version: Option<u64>,
    done: bool,
    began: Time,
}

impl ExploreWorld {
    pub(super) fn new(
        options: ExploreWorldOptions,
        rng: SimRandom,
        mutant: Option<&ExploreMutant>,
        checkers: ExploreCheckers,
        trace: SimTrace,
    ) -> Self {
        let works = options.explorers.iter().enumerate();
        let explorers = works.map(|(at, work)| SimExplorer::new(format!("explorer{at}"), *work));
        Self {
            now: Time::ZERO,
            rng,
            queue: EventQueue::default(),
            sync: SyncCore::new(options.lease, FIRST),
            explorers: explorers.collect(),
            trainer: SimTrainer::default(),
            bug: mutant.map(|mutant| mutant.bug),
            checkers,
            trace,
            coverage: Coverage::of(COVERAGE_ITEMS),
            violation: None,
            inputs: 0,
            crashes: 0,
            done: false,
            options,
        }
    }

    /// Runs the world until all explorers have ended or a checker reports a violation.
    pub(super) fn run(mut self) -> WorldResult {
        for at in 0..self.explorers.len() {
            self.later(ExploreWorldEvent::Start { at });
        }
        match self.options.trainer.comes {
            Some(after) => self.plan(after, ExploreWorldEvent::TrainerStarts),
            None => self.coverage.add("trainer", "never", 1),
        }
        if let Some((after, _)) = self.options.trainer.crash {
            self.plan(after, ExploreWorldEvent::TrainerCrashes);
        }
        self.plan(WORLD_DEADLINE, ExploreWorldEvent::TooLate);
        self.coverage.add("style", style(self.options.plan_config.style), 1);
        while self.violation.is_none() && !self.done {
            self.turn();
        }
        WorldResult {
            violation: self.violation,
            inputs: self.inputs,
            lasted: self.now,
            coverage: self.coverage,
            trace: self.trace,
        }
    }

    /// Handles the next event or deadline of the synchronizer. Events come before deadlines at the
    /// same time.
    fn turn(&mut self) {
        if self.inputs >= MAX_INPUTS {
            return self.fail(format!("more than {MAX_INPUTS} facts"));
        }
        let clock = !self.has_bug(Around::NoClock);
        let deadline = self.sync.next_deadline().filter(|_| clock);
        let event = self.queue.next_at();
        if let Some(deadline) = deadline.filter(|at| event.is_none_or(|event| *at < event)) {
            self.now = self.now.max(deadline);
            self.sync.tick(self.now);
            self.handle_outcomes();
        } else if let Some((at, event)) = self.queue.take() {
            self.now = self.now.max(at);
            self.handle_event(event);
        } else {
            return self.fail("no event is left".to_owned());
        }
        self.rouse_trainer();
        for at in 0..self.explorers.len() {
            self.on_event(at, &ExploreEvent::Settled);
        }
        if self.explorers.iter().all(|explorer| explorer.end.is_some()) {
            self.on_event(0, &ExploreEvent::Over);
            self.done = true;
        }
    }

    fn handle_event(&mut self, event: ExploreWorldEvent) {
        match event {
            ExploreWorldEvent::Start { at } => self.start(at),
            ExploreWorldEvent::Act { at, incarnation, order } => {
                if self.explorers[at].alive(incarnation).is_some() {
                    self.act(at, incarnation, order);
                }
            }
            ExploreWorldEvent::Loads { at, incarnation, result } => {
                if self.explorers[at].alive(incarnation).is_some() {
                    self.on_wait_result(at, incarnation, result);
                }
            }
            ExploreWorldEvent::Input { at, incarnation, input } => {
                if self.explorers[at].alive(incarnation).is_some() && !self.is_struck(at) {
                    self.apply(at, Some(input));
                    self.watch(at);
                }
            }
            ExploreWorldEvent::Heartbeat { at, incarnation } => self.heartbeat(at, incarnation),
            ExploreWorldEvent::TrainerStarts => self.trainer_starts(),
            ExploreWorldEvent::TrainerChecks { incarnation } => self.trainer_checks(incarnation),
            ExploreWorldEvent::TrainerSteps { incarnation } => self.trainer_steps(incarnation),
            ExploreWorldEvent::TrainerHeartbeat { incarnation } => {
                self.trainer_heartbeat(incarnation)
            }
            ExploreWorldEvent::TrainerCrashes => self.trainer_crashes(),
            ExploreWorldEvent::TooLate => {
                let left = self.explorers.iter().filter(|explorer| explorer.end.is_none());
                let left: Vec<String> =
                    left.map(|it| format!("{} at {:?}", it.name, it.checkpoint)).collect();
                self.fail(format!("never done: {}", left.join("; ")));
            }
        }
    }

    /// Starts an explorer, new or from its saved progress.
    fn start(&mut self, at: usize) {
        let Ok(joined) = self.sync.join(self.now, MemberRole::Explorer, &self.explorers[at].name)
        else {
            return self.fail("an explorer could not join".to_owned());
        };
        let is_async = self.is_async();
        let explorer = &mut self.explorers[at];
        explorer.starts += 1;
        let incarnation = explorer.starts;
        let checkpoint = explorer.checkpoint.clone();
        let subject = Subject::new(self.options.plan_config.clone(), checkpoint, self.bug);
        // The saved version is loaded into the servers.
        let version = subject.plan().progress().version;
        explorer.version = version;
        explorer.down_since = None;
        explorer.process = Some(ExploreProcess {
            incarnation,
            subject,
            member: joined.member,
            wait: None,
            watch: Watch { seen: version, wait_id: None, is_over: !is_async },
            stopping: false,
            closing: false,
        });
        self.coverage.add("explorer", "restarted", u64::from(incarnation > 1));
        self.on_event(at, &ExploreEvent::Started { version });
        self.share_submissions();
        let published = self.sync.newest().filter(|newest| is_async && *newest > version);
        match published.filter(|_| self.rng.percent(50)) {
            Some(newest) => self.apply(at, Some(PlanInput::Published(newest))),
            None => self.apply(at, None),
        }
        self.plan(self.options.lease / 2, ExploreWorldEvent::Heartbeat { at, incarnation });
        self.watch(at);
        self.handle_outcomes();
    }

    /// Applies an optional input to an explorer's plan, and performs the resulting actions.
    fn apply(&mut self, at: usize, input: Option<PlanInput>) {
        if self.violation.is_some() {
            return;
        }
        self.inputs += 1;
        if let Some(input) = &input {
            self.coverage.add("fact", input_kind(input), 1);
            self.trace.line(self.inputs, self.now, '>', input_kind(input), (at, input));
            self.on_event(at, &ExploreEvent::Applied(input));
        }
        let explorer = &mut self.explorers[at];
        let Some(process) = &mut explorer.process else { return };
        let (incarnation, forced) = (process.incarnation, process.subject.plan().forced());
        let actions = process.subject.apply(input);
        let plan = process.subject.plan();
        explorer.checkpoint = plan.progress().clone();
        self.coverage.add("explorer", "forced", plan.forced() - forced);
        for order in actions {
            self.coverage.add("order", order_kind(order), 1);
            self.trace.line(self.inputs, self.now, '<', order_kind(order), (at, order));
            self.on_event(at, &ExploreEvent::Ordered(order));
            self.perform(at, incarnation, order);
        }
        let process = self.explorers[at].process.as_ref();
        if process.is_some_and(|process| process.stopping && process.subject.plan().is_over()) {
            self.goes_down(at, "stopped");
        }
    }

    /// Draws a crash or a stop. Returns whether the explorer is down.
    fn is_struck(&mut self, at: usize) -> bool {
        if self.crashes >= self.options.crashes_max {
            return false;
        }
        if self.rng.chance(self.options.crash) {
            self.crashes += 1;
            self.goes_down(at, "crashed");
            return true;
        }
        if self.rng.chance(self.options.stop) {
            self.crashes += 1;
            if let Some(process) = &mut self.explorers[at].process {
                process.stopping = true;
            }
            self.apply(at, Some(PlanInput::Stopped));
        }
        self.explorers[at].process.is_none()
    }

    /// Ends an explorer's process, which will be started again.
    fn goes_down(&mut self, at: usize, event: &'static str) {
        self.coverage.add("explorer", event, 1);
        let Some(process) = self.explorers[at].process.take() else { return };
        self.explorers[at].down_since = Some(self.now);
        if self.rng.percent(50) {
            self.sync.leave(self.now, process.member, &LeaveReason::TimedOut);
            let asks =
                process.wait.map(|wait| wait.wait_id).into_iter().chain(process.watch.wait_id);
            asks.for_each(|wait_id| self.sync.abandon(wait_id));
        }
        let lease = self.options.lease;
        let wait = self.rng.spread(lease / 16, lease * 4);
        self.plan(wait, ExploreWorldEvent::Start { at });
        self.handle_outcomes();
    }

    fn ends(&mut self, at: usize, end: ProcessEnd) {
        let Some(process) = self.explorers[at].process.take() else { return };
        let reason = match &end {
            ProcessEnd::Done => LeaveReason::Done,
            ProcessEnd::TrainerFailed(message) | ProcessEnd::TimedOut(message) => {
                LeaveReason::Failed(message.clone())
            }
        };
        self.sync.leave(self.now, process.member, &reason);
        self.coverage.add("end", end.name(), 1);
        self.explorers[at].end = Some(end.clone());
        self.trace.line(self.inputs, self.now, '=', end.name(), (at, &end));
        self.on_event(at, &ExploreEvent::Ended(&end));
        self.handle_outcomes();
    }

    fn heartbeat(&mut self, at: usize, incarnation: u64) {
        let Some(process) = self.explorers[at].alive(incarnation) else { return };
        if process.closing {
            return;
        }
        let member = process.member;
        self.sync.heartbeat(self.now, member);
        self.handle_outcomes();
        self.plan(self.options.lease / 2, ExploreWorldEvent::Heartbeat { at, incarnation });
    }

    fn on_event(&mut self, at: usize, seen: &ExploreEvent<'_>) {
        if self.violation.is_some() {
            return;
        }
        let ctx = ExploreContext {
            now: self.now,
            at,
            options: &self.options,
            explorers: &self.explorers,
            trainer: &self.trainer,
        };
        self.violation = self.checkers.on_event(&ctx, seen);
    }

    fn fail(&mut self, what: String) {
        self.done = true;
        self.violation = self.checkers.stuck(self.now, what);
    }

    fn plan(&mut self, after: Duration, event: ExploreWorldEvent) {
        self.queue.plan(self.now.after(after), event);
    }

    /// Plans an event after the delay of a message.
    fn later(&mut self, event: ExploreWorldEvent) {
        let wait = self.rng.spread(self.options.latency / 4, self.options.latency * 4);
        self.plan(wait, event);
    }

    fn is_async(&self) -> bool {
        self.options.plan_config.style == PlanStyle::FullyAsync
    }

    fn has_bug(&self, bug: Around) -> bool {
        matches!(self.bug, Some(ExploreBug::World(planted)) if planted == bug)
    }
}

const fn style(style: PlanStyle) -> &'static str {
    match style {
        PlanStyle::Fixed => "fixed",
        PlanStyle::ExplorerDriven => "explorer_driven",
        PlanStyle::TrainerDriven => "trainer_driven",
        PlanStyle::FullyAsync => "fully_async",
    }
}

const fn order_kind(order: PlanAction) -> &'static str {
    match order {
        PlanAction::BeginStep(_) => "begin",
        PlanAction::FinalizeStep(_) => "finalize",
        PlanAction::Evaluate(_) => "evaluate",
        PlanAction::FinishEval(_) => "finish_eval",
        PlanAction::Sync { .. } => "sync",
        PlanAction::Load => "load",
        PlanAction::FinishTraining => "close",
        PlanAction::End => "end",
    }
}

const fn input_kind(input: &PlanInput) -> &'static str {
    match input {
        PlanInput::Begun(_) => "begun",
        PlanInput::Exhausted => "exhausted",
        PlanInput::Finalized { .. } => "finalized",
        PlanInput::EvalBegun(_) => "eval_begun",
        PlanInput::EvalFinished(_) => "eval_finished",
        PlanInput::Synced(SyncResult::Version(_)) => "synced:version",
        PlanInput::Synced(SyncResult::NothingNew) => "synced:nothing_new",
        PlanInput::Synced(SyncResult::TrainerDone(_)) => "synced:trainer_done",
        PlanInput::Published(_) => "published",
        PlanInput::Loaded(_) => "loaded",
        PlanInput::OthersSubmitted(_) => "elsewhere",
        PlanInput::TrainerDone => "trainer_done",
        PlanInput::Stopped => "stopped",
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
