//! One core in virtual time, and what a scenario needs to know around it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rollway_core::{
    Action, AttemptId, BatchKey, BatchKind, Config, Core, Disbelief, Input, Life, Payload,
    PayloadId, Record, Report, Request, RequestId, RunId, RunOutcome, RunnerId, RunnerState, Time,
};

use super::command::{self, About, Brings, Command, Move, USUAL_BYTES, Yield};
use super::names::{self, Names};
use super::words::{BadScript, Words};
use super::{config, show, views};
use rollway_sim::ledger::Ledger;

/// More wake-ups than any scenario needs in one move: beyond them the core is running in circles.
const WAKES_MAX: u32 = 10_000;

pub(super) struct World {
    core: Core,
    config: Config,
    ledger: Ledger,
    now: Time,
    names: Names,
    attempts: BTreeMap<AttemptId, Sent>,
    last_request: u64,
    last_payload: u64,
    /// The line of the command that is being played.
    line: usize,
    /// Whether the core has panicked and cannot be used any more.
    dead: bool,
    broken: Vec<(usize, String)>,
}

/// An attempt as it was sent out.
struct Sent {
    runner: RunnerId,
    life: Life,
    batch: BatchKey,
    /// Runs about which the scenario has said nothing.
    left: Vec<RunId>,
}

impl World {
    pub(super) fn new() -> Self {
        Self::with(config::usual())
    }

    fn with(config: Config) -> Self {
        Self {
            core: Core::new(config.clone()),
            config,
            ledger: Ledger::default(),
            now: Time::ZERO,
            names: Names::default(),
            attempts: BTreeMap::new(),
            last_request: 0,
            last_payload: 0,
            line: 0,
            dead: false,
            broken: Vec::new(),
        }
    }

    /// Plays commands and appends what came of them.
    pub(super) fn play(
        &mut self,
        commands: &[Words],
        given: &mut Vec<String>,
    ) -> Result<(), BadScript> {
        for words in commands {
            self.line = words.line;
            let command = command::read(words.clone())?;
            if self.dead && !matches!(command, Command::Config(_) | Command::StartedPool(_)) {
                continue;
            }
            self.perform(words, command, given)?;
        }
        if given.is_empty() {
            given.push("(nothing)".to_owned());
        }
        Ok(())
    }

    /// Takes out what the core did wrong so far, with the lines of the commands.
    pub(super) fn take_broken(&mut self) -> Vec<(usize, String)> {
        std::mem::take(&mut self.broken)
    }

    fn perform(
        &mut self,
        words: &Words,
        command: Command,
        given: &mut Vec<String>,
    ) -> Result<(), BadScript> {
        match command {
            Command::Config(config) => self.configure(*config),
            Command::StartedPool(config) => {
                self.configure(*config);
                let unshown = &mut Vec::new();
                self.request(None, Request::Start, unshown);
                self.pool_ready(unshown);
            }
            Command::Request(request, what) => self.request(request, what, given),
            Command::Withdraw(request) => self.apply(Input::Withdrawn { request }, given),
            Command::PoolReady => self.pool_ready(given),
            Command::Report(runner, life, report) => {
                let life = life.unwrap_or_else(|| self.life(runner));
                self.report(runner, life, report, given);
            }
            Command::Attempt(attempt, on, about) => {
                self.about(words, attempt, on, about, given)?;
            }
            Command::Delivered(lease, delivery) => {
                self.apply(Input::Delivered { lease, delivery }, given);
            }
            Command::Crash(lost) => self.crash(lost, given),
            Command::Recorded(record) => self.take_up(record, given),
            Command::Move(to) => self.pass_time(words, &to, given)?,
            Command::Show(view) => views::show(&self.core, &self.names, &view, given),
        }
        Ok(())
    }

    /// Begins anew with another configuration.
    fn configure(&mut self, config: Config) {
        let broken = self.take_broken();
        *self = Self::with(config);
        self.broken = broken;
    }

    fn request(&mut self, request: Option<RequestId>, what: Request, given: &mut Vec<String>) {
        let request = request.unwrap_or(RequestId(self.last_request + 1));
        self.last_request = self.last_request.max(request.0);
        self.apply(Input::Requested { request, what }, given);
    }

    /// Returns the current or last life of a runner; of an unknown one the first.
    fn life(&self, runner: RunnerId) -> Life {
        self.core.runner(runner).map_or(Life(1), |view| view.life)
    }

    fn pool_ready(&mut self, given: &mut Vec<String>) {
        let runners = self.core.runners();
        let starting: Vec<RunnerId> = runners
            .filter(|view| view.state == RunnerState::Starting)
            .map(|view| view.runner)
            .collect();
        for runner in starting {
            let life = self.life(runner);
            self.report(runner, life, Report::Ready { after: None }, given);
        }
    }

    fn report(&mut self, runner: RunnerId, life: Life, report: Report, given: &mut Vec<String>) {
        let input = Input::Reported { runner, life, report };
        self.apply(input, given);
    }

    /// Reports something about an attempt, from the runner and life it was sent to unless the
    /// scenario says otherwise.
    fn about(
        &mut self,
        words: &Words,
        attempt: AttemptId,
        on: Option<(RunnerId, Option<Life>)>,
        about: About,
        given: &mut Vec<String>,
    ) -> Result<(), BadScript> {
        let Some(sent) = self.attempts.get(&attempt) else {
            return Err(words.bad("no such attempt was started", &attempt.to_string()));
        };
        let left = sent.left.clone();
        let (runner, life) = match on {
            None => (sent.runner, sent.life),
            Some((runner, life)) => (runner, life.unwrap_or_else(|| self.life(runner))),
        };
        let named = |runs: Vec<u32>| -> Vec<RunId> {
            if runs.is_empty() { left.clone() } else { runs.into_iter().map(RunId).collect() }
        };
        match about {
            About::Began => {
                self.report(runner, life, Report::AttemptBegan { attempt }, given);
            }
            About::Ended => {
                self.report(runner, life, Report::AttemptEnded { attempt }, given);
            }
            About::Done(yields) => {
                self.succeed((runner, life), attempt, &left, &yields, given);
                self.report(runner, life, Report::AttemptEnded { attempt }, given);
            }
            About::Ok(runs, yields) => {
                self.succeed((runner, life), attempt, &named(runs), &yields, given);
            }
            About::Fail(runs, kind, message) => {
                for run in named(runs) {
                    let message = message.clone();
                    let outcome = RunOutcome::Failed { kind, message };
                    self.finish((runner, life), attempt, run, outcome, given);
                }
            }
        }
        Ok(())
    }

    fn succeed(
        &mut self,
        from: (RunnerId, Life),
        attempt: AttemptId,
        runs: &[RunId],
        yields: &Yield,
        given: &mut Vec<String>,
    ) {
        for run in runs {
            let outcome = RunOutcome::Succeeded {
                payload: self.payload(attempt, &yields.payload),
                metrics: yields.metrics.clone(),
            };
            self.finish(from, attempt, *run, outcome, given);
        }
    }

    fn payload(&mut self, attempt: AttemptId, brings: &Brings) -> Option<Payload> {
        let sent = self.attempts.get(&attempt);
        let train = sent.and_then(|sent| self.names.kind(sent.batch)) == Some(BatchKind::Train);
        let (id, bytes) = match brings {
            Brings::Usual if train => (None, USUAL_BYTES),
            Brings::Usual | Brings::Nothing => return None,
            Brings::Payload { id, bytes } => (*id, *bytes),
        };
        let id = id.unwrap_or(self.last_payload + 1);
        self.last_payload = self.last_payload.max(id);
        let id = PayloadId(id);
        Some(Payload { id, bytes })
    }

    fn finish(
        &mut self,
        (runner, life): (RunnerId, Life),
        attempt: AttemptId,
        run: RunId,
        outcome: RunOutcome,
        given: &mut Vec<String>,
    ) {
        if let Some(sent) = self.attempts.get_mut(&attempt) {
            sent.left.retain(|left| *left != run);
        }
        let report = Report::RunFinished { attempt, run, outcome };
        self.report(runner, life, report, given);
    }

    /// Begins anew with a core that is told what the ledger has, but for the last records.
    fn crash(&mut self, lost: usize, given: &mut Vec<String>) {
        let (_, all) = self.ledger.reach();
        self.ledger.crash(all.saturating_sub(lost));
        self.config.epoch += 1;
        self.core = Core::new(self.config.clone());
        let told = self.ledger.told();
        given.push(format!("told {} of {all} records", told.len()));
        for record in told {
            self.take_up(record, given);
        }
    }

    fn take_up(&mut self, record: Record, given: &mut Vec<String>) {
        self.apply(Input::Recorded(record), given);
        self.names.note_batches(&self.core);
    }

    /// Lets time go on, and stops wherever the core wants to be woken.
    fn pass_time(
        &mut self,
        words: &Words,
        to: &Move,
        given: &mut Vec<String>,
    ) -> Result<(), BadScript> {
        let (until, inclusive) = match *to {
            Move::At(time) => (time, true),
            Move::After(duration) => (self.now.after(duration), true),
            Move::Reach(time) => (time, false),
        };
        if until < self.now {
            return Err(words.bad("that is in the past", &names::instant(until)));
        }
        let mut wakes = 0;
        while let Some(deadline) = self.core.next_deadline() {
            let due = deadline.at < until || (inclusive && deadline.at == until);
            if !due || self.dead {
                break;
            }
            wakes += 1;
            if wakes > WAKES_MAX {
                let words = format!("it wants to be woken again and again: {deadline:?}");
                self.broken.push((self.line, words));
                break;
            }
            self.now = self.now.max(deadline.at);
            let mut woken = Vec::new();
            self.apply(Input::TimePassed, &mut woken);
            let at = names::instant(self.now);
            let lines = woken.into_iter().map(|line| format!("[{at}] {line}"));
            given.extend(lines);
        }
        self.now = until;
        Ok(())
    }

    /// Applies one input, shows what came of it and has the core check itself.
    fn apply(&mut self, input: Input, given: &mut Vec<String>) {
        if self.dead {
            return;
        }
        self.names.note_input(&input);
        let before = self.core.counters().disbelieved;
        let mut actions = Vec::new();
        // A panic is shown at its line, and the files after this one are still played.
        let applied = catch_unwind(AssertUnwindSafe(|| {
            self.core.apply(self.now, input, &mut actions);
        }));
        for action in &actions {
            self.names.note_action(action);
            if let Action::Record(record) = action {
                self.ledger.append(record.clone());
            }
            show::action(action, &self.names, given);
            if let Some((attempt, sent)) = sent(action) {
                self.attempts.insert(attempt, sent);
            }
        }
        if applied.is_err() {
            self.dead = true;
            self.broken.push((self.line, "it panicked".to_owned()));
            given.push("panic".to_owned());
            return;
        }
        let after = self.core.counters().disbelieved;
        for why in Disbelief::ALL {
            if after[*why] > before[*why] {
                given.push(format!("ignored: {why}"));
            }
        }
        if let Err(words) = self.core.check() {
            given.push(format!("check failed: {words}"));
            self.broken.push((self.line, words));
        }
    }
}

fn sent(action: &Action) -> Option<(AttemptId, Sent)> {
    let Action::StartAttempt { runner, life, attempt, batch, runs, .. } = action else {
        return None;
    };
    let sent = Sent { runner: *runner, life: *life, batch: *batch, left: runs.iter().collect() };
    Some((*attempt, sent))
}
