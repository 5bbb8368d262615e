//! Execution of scenario commands on one core in virtual time.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rollway_core::{
    Action, AttemptId, BatchKey, BatchType, Core, CoreConfig, IgnoreReason, Incarnation, Input,
    LedgerRecord, Payload, PayloadId, Request, RequestId, RunFailure, RunId, RunOutcome, RunOutput,
    RunnerId, RunnerReport, RunnerState, Time,
};

use super::command::{self, Brings, DEFAULT_BYTES, ReportAbout, ScenarioCommand, TimeMove, Yield};
use super::labels::{self, ScenarioLabels};
use super::tokens::{BadScript, CommandTokens};
use super::{config, render, views};
use rollway_sim::ledger::SimLedger;

/// Maximum deadlines in one move; more mean that the core makes no progress.
const WAKES_MAX: u32 = 10_000;

pub(super) struct ScenarioRunner {
    core: Core,
    config: CoreConfig,
    ledger: SimLedger,
    now: Time,
    names: ScenarioLabels,
    attempts: BTreeMap<AttemptId, Sent>,
    last_request: u64,
    last_payload: u64,
    line: usize,
    /// True if the core has panicked.
    dead: bool,
    broken: Vec<(usize, String)>,
    /// Lines of the current case.
    given: Vec<String>,
}

struct Sent {
    runner: RunnerId,
    incarnation: Incarnation,
    batch: BatchKey,
    /// Runs without a report in the scenario.
    left: Vec<RunId>,
}

impl ScenarioRunner {
    pub(super) fn new() -> Self {
        Self::with(config::default_config())
    }

    fn with(config: CoreConfig) -> Self {
        Self {
            core: Core::new(config.clone()),
            config,
            ledger: SimLedger::default(),
            now: Time::ZERO,
            names: ScenarioLabels::default(),
            attempts: BTreeMap::new(),
            last_request: 0,
            last_payload: 0,
            line: 0,
            dead: false,
            broken: Vec::new(),
            given: Vec::new(),
        }
    }

    /// Executes commands, and returns the lines of their actions.
    pub(super) fn play(&mut self, commands: &[CommandTokens]) -> Result<Vec<String>, BadScript> {
        for tokens in commands {
            self.line = tokens.line;
            let command = command::read(tokens.clone())?;
            let restarts =
                matches!(command, ScenarioCommand::Config(_) | ScenarioCommand::StartedPool(_));
            if restarts || !self.dead {
                self.perform(tokens, command)?;
            }
        }
        if self.given.is_empty() {
            self.given.push("(nothing)".to_owned());
        }
        Ok(std::mem::take(&mut self.given))
    }

    /// Returns the contradictions of the core so far, with the lines of the commands.
    pub(super) fn take_broken(&mut self) -> Vec<(usize, String)> {
        std::mem::take(&mut self.broken)
    }

    fn perform(
        &mut self,
        tokens: &CommandTokens,
        command: ScenarioCommand,
    ) -> Result<(), BadScript> {
        match command {
            ScenarioCommand::Config(config) => self.configure(*config),
            ScenarioCommand::StartedPool(config) => {
                self.configure(*config);
                let shown = self.given.len();
                self.request(None, Request::Start);
                self.pool_ready();
                self.given.truncate(shown);
            }
            ScenarioCommand::Request(request, what) => self.request(request, what),
            ScenarioCommand::Withdraw(request) => self.apply(Input::RequestAbandoned { request }),
            ScenarioCommand::PoolReady => self.pool_ready(),
            ScenarioCommand::Report(runner, incarnation, report) => {
                let incarnation = incarnation.unwrap_or_else(|| self.incarnation(runner));
                self.report(runner, incarnation, report);
            }
            ScenarioCommand::Attempt(attempt, on, about) => {
                self.about(tokens, attempt, on, about)?;
            }
            ScenarioCommand::Delivered(lease, delivery) => {
                self.apply(Input::DeliveryDone { lease, delivery });
            }
            ScenarioCommand::Crash(lost) => self.crash(lost),
            ScenarioCommand::Recorded(record) => self.restore(record),
            ScenarioCommand::Move(to) => self.pass_time(tokens, &to)?,
            ScenarioCommand::Show(view) => {
                views::show(&self.core, &self.names, &view, &mut self.given);
            }
        }
        Ok(())
    }

    /// Restarts with another configuration.
    fn configure(&mut self, config: CoreConfig) {
        let (given, broken) = (std::mem::take(&mut self.given), self.take_broken());
        *self = Self { given, broken, ..Self::with(config) };
    }

    fn request(&mut self, request: Option<RequestId>, what: Request) {
        let request = request.unwrap_or(RequestId(self.last_request + 1));
        self.last_request = self.last_request.max(request.0);
        self.apply(Input::Requested { request, what });
    }

    /// Returns the current or last incarnation of a runner; of an unknown one the first.
    fn incarnation(&self, runner: RunnerId) -> Incarnation {
        self.core.runner(runner).map_or(Incarnation(1), |view| view.incarnation)
    }

    fn pool_ready(&mut self) {
        let runners = self.core.runners();
        let starting: Vec<RunnerId> = runners
            .filter(|view| view.state == RunnerState::Starting)
            .map(|view| view.runner)
            .collect();
        for runner in starting {
            let incarnation = self.incarnation(runner);
            self.report(runner, incarnation, RunnerReport::Ready { after: None });
        }
    }

    fn report(&mut self, runner: RunnerId, incarnation: Incarnation, report: RunnerReport) {
        let input = Input::Report { runner, incarnation, report };
        self.apply(input);
    }

    /// Reports about an attempt, from its own runner and incarnation unless the scenario names
    /// others.
    fn about(
        &mut self,
        tokens: &CommandTokens,
        attempt: AttemptId,
        on: Option<(RunnerId, Option<Incarnation>)>,
        about: ReportAbout,
    ) -> Result<(), BadScript> {
        let Some(sent) = self.attempts.get(&attempt) else {
            return Err(tokens.bad("no such attempt was started", &attempt.to_string()));
        };
        let left = sent.left.clone();
        let (runner, incarnation) = match on {
            None => (sent.runner, sent.incarnation),
            Some((runner, incarnation)) => {
                (runner, incarnation.unwrap_or_else(|| self.incarnation(runner)))
            }
        };
        let named = |runs: Vec<u32>| -> Vec<RunId> {
            if runs.is_empty() { left.clone() } else { runs.into_iter().map(RunId).collect() }
        };
        match about {
            ReportAbout::Began => {
                self.report(runner, incarnation, RunnerReport::AttemptBegan { attempt });
            }
            ReportAbout::Ended => {
                self.report(runner, incarnation, RunnerReport::AttemptEnded { attempt });
            }
            ReportAbout::Done(yields) => {
                self.succeed((runner, incarnation), attempt, &left, &yields);
                self.report(runner, incarnation, RunnerReport::AttemptEnded { attempt });
            }
            ReportAbout::Ok(runs, yields) => {
                self.succeed((runner, incarnation), attempt, &named(runs), &yields);
            }
            ReportAbout::Fail(runs, kind, message) => {
                for run in named(runs) {
                    let message = message.clone();
                    let outcome = Err(RunFailure { kind, message });
                    self.finish((runner, incarnation), attempt, run, outcome);
                }
            }
        }
        Ok(())
    }

    fn succeed(
        &mut self,
        from: (RunnerId, Incarnation),
        attempt: AttemptId,
        runs: &[RunId],
        yields: &Yield,
    ) {
        for run in runs {
            let outcome = Ok(RunOutput {
                payload: self.payload(attempt, &yields.payload),
                metrics: yields.metrics.clone(),
            });
            self.finish(from, attempt, *run, outcome);
        }
    }

    fn payload(&mut self, attempt: AttemptId, brings: &Brings) -> Option<Payload> {
        let sent = self.attempts.get(&attempt);
        let train = sent.and_then(|sent| self.names.kind(sent.batch)) == Some(BatchType::Train);
        let (id, bytes) = match brings {
            Brings::Default if train => (None, DEFAULT_BYTES),
            Brings::Default | Brings::Nothing => return None,
            Brings::Payload { id, bytes } => (*id, *bytes),
        };
        let id = id.unwrap_or(self.last_payload + 1);
        self.last_payload = self.last_payload.max(id);
        let id = PayloadId(id);
        Some(Payload { id, bytes })
    }

    fn finish(
        &mut self,
        (runner, incarnation): (RunnerId, Incarnation),
        attempt: AttemptId,
        run: RunId,
        outcome: RunOutcome,
    ) {
        if let Some(sent) = self.attempts.get_mut(&attempt) {
            sent.left.retain(|left| *left != run);
        }
        let report = RunnerReport::RunFinished { attempt, run, outcome };
        self.report(runner, incarnation, report);
    }

    /// Restarts with a core that restores the records of the ledger, except the last ones.
    fn crash(&mut self, lost: usize) {
        let (_, all) = self.ledger.reach();
        self.ledger.crash(all.saturating_sub(lost));
        self.config.epoch += 1;
        self.core = Core::new(self.config.clone());
        let restored = self.ledger.durable_records();
        self.given.push(format!("restored {} of {all} records", restored.len()));
        for record in restored {
            self.restore(record);
        }
    }

    fn restore(&mut self, record: LedgerRecord) {
        self.apply(Input::Restore(record));
        self.names.note_batches(&self.core);
    }

    /// Advances the time, and stops at every deadline of the core.
    fn pass_time(&mut self, tokens: &CommandTokens, to: &TimeMove) -> Result<(), BadScript> {
        let (until, inclusive) = match *to {
            TimeMove::At(time) => (time, true),
            TimeMove::After(duration) => (self.now.after(duration), true),
            TimeMove::Reach(time) => (time, false),
        };
        if until < self.now {
            return Err(tokens.bad("that is in the past", &labels::instant(until)));
        }
        let mut wakes = 0;
        while let Some(deadline) = self.core.next_deadline() {
            let due = deadline.at < until || (inclusive && deadline.at == until);
            if !due || self.dead {
                break;
            }
            wakes += 1;
            if wakes > WAKES_MAX {
                let message = format!("its deadlines make no progress: {deadline:?}");
                self.broken.push((self.line, message));
                break;
            }
            self.now = self.now.max(deadline.at);
            let shown = self.given.len();
            self.apply(Input::TimePassed);
            let at = labels::instant(self.now);
            for line in &mut self.given[shown..] {
                *line = format!("[{at}] {line}");
            }
        }
        self.now = until;
        Ok(())
    }

    /// Applies one input, appends the lines of its actions and lets the core check itself.
    fn apply(&mut self, input: Input) {
        if self.dead {
            return;
        }
        self.names.note_input(&input);
        let before = self.core.counters().ignored_reports;
        let mut actions = Vec::new();
        // A panic is reported at its line, and the other files are still executed.
        let applied = catch_unwind(AssertUnwindSafe(|| {
            self.core.apply(self.now, input, &mut actions);
        }));
        for action in &actions {
            self.names.note_action(action);
            if let Action::AppendRecord(record) = action {
                self.ledger.append(record.clone());
            }
            render::action(action, &self.names, &mut self.given);
            if let Some((attempt, sent)) = sent(action) {
                self.attempts.insert(attempt, sent);
            }
        }
        if applied.is_err() {
            self.dead = true;
            self.broken.push((self.line, "it panicked".to_owned()));
            self.given.push("panic".to_owned());
            return;
        }
        let after = self.core.counters().ignored_reports;
        for reason in IgnoreReason::ALL {
            if after[*reason] > before[*reason] {
                self.given.push(format!("ignored: {reason}"));
            }
        }
        if let Err(message) = self.core.check() {
            self.given.push(format!("check failed: {message}"));
            self.broken.push((self.line, message));
        }
    }
}

fn sent(action: &Action) -> Option<(AttemptId, Sent)> {
    let Action::StartAttempt { runner, incarnation, attempt, batch, runs, .. } = action else {
        return None;
    };
    let sent = Sent {
        runner: *runner,
        incarnation: *incarnation,
        batch: *batch,
        left: runs.iter().collect(),
    };
    Some((*attempt, sent))
}
