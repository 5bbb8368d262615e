//! One worker process and the runners that have a seat in it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rollway_core::{FailureKind, Incarnation, RunnerId};
use rollway_protocol::worker_server::{ConnectionSendError, PendingHandshake, WorkerConnection};
use rollway_protocol::{EngineMessage, StartAttempt};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::WorkerPoolShared;
use super::launcher::{LaunchStatus, Launcher, ProcessExit, Suspect};
use super::reports::ExpectedWorker;
use crate::run::{RunFailure, RunnerReport};
use crate::runner_status::LaunchState;
use crate::workers::{AttemptSpec, Reporter, RunnerCommand};

/// How long the last words of a dead process may take to be read.
const FINAL_OUTPUT_TIMEOUT: Duration = Duration::from_secs(2);

/// A process, from before it is started until it is gone.
#[derive(Debug)]
pub(super) struct WorkerProcess {
    number: u64,
    /// How many runners it takes; none: as many as are sent.
    room: Option<u32>,
    seats: Mutex<HostedRunners>,
    end: CancellationToken,
}

#[derive(Debug, Default)]
struct HostedRunners {
    taken: BTreeMap<RunnerId, HostedRunner>,
    /// None until the process has said hello.
    connection: Option<WorkerConnection>,
    /// Where it is, or why it is not anywhere yet.
    known: LaunchState,
    /// Whether newcomers have to go elsewhere.
    closed: bool,
}

#[derive(Debug)]
struct HostedRunner {
    reporter: Reporter,
    stage: HostedState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostedState {
    Starting,
    Idle,
    Busy,
}

impl WorkerProcess {
    pub(super) fn new(number: u64) -> Self {
        Self { number, room: None, seats: Mutex::default(), end: CancellationToken::new() }
    }

    /// Returns a process that came by itself, with room for so many runners.
    pub(super) fn by_hand(number: u64, room: u32) -> Self {
        Self { room: Some(room), ..Self::new(number) }
    }

    /// Gives a runner a seat, unless it is too late.
    pub(super) fn seat(&self, shared: &WorkerPoolShared, reporter: &Reporter) -> bool {
        let mut seats = self.seats.lock();
        let is_full = self.room.is_some_and(|room| seats.taken.len() >= room as usize);
        if seats.closed || is_full {
            return false;
        }
        let (runner, life) = (reporter.runner(), reporter.incarnation());
        shared.states.locate(reporter.runner(), reporter.incarnation(), &seats.known);
        if let Some(connection) = &seats.connection {
            // If the worker is gone, that is about to be noticed.
            let _ = connection.send(EngineMessage::StartRunner { runner, life });
        } else if let Some(why) = seats.known.waits.as_deref() {
            shared.aside(reporter, RunnerReport::Waits { why: Some(why.into()) });
        }
        let seat = HostedRunner { reporter: reporter.clone(), stage: HostedState::Starting };
        seats.taken.insert(runner, seat);
        true
    }

    /// Ends a life of a runner. One that is at something takes the process with it. One that has
    /// not begun is forgotten: nobody else has to suffer for it, but it may be that the process
    /// does not come round to it, so that the next one goes elsewhere.
    pub(super) fn leave(&self, runner: RunnerId, life: Incarnation) {
        let mut seats = self.seats.lock();
        if seats.taken.get(&runner).is_none_or(|seat| seat.reporter.incarnation() != life) {
            return;
        }
        let stage = seats.taken.remove(&runner).map(|seat| seat.stage);
        seats.closed |= stage != Some(HostedState::Idle);
        // One that came by itself stays for others, if it takes any.
        let useless = seats.taken.is_empty() && (self.room.is_none() || seats.closed);
        if stage == Some(HostedState::Busy) || useless {
            seats.closed = true;
            self.end.cancel();
        } else if let Some(connection) = &seats.connection {
            let _ = connection.send(EngineMessage::StopRunner { runner, life });
        }
    }

    /// Ends the process.
    pub(super) fn end(&self) {
        self.seats.lock().closed = true;
        self.end.cancel();
    }

    /// Tells the process that it is not needed any more.
    pub(super) fn dismiss(&self, deadline: Duration) {
        let mut seats = self.seats.lock();
        seats.closed = true;
        if let Some(connection) = &seats.connection {
            let _ = connection.send(EngineMessage::Shutdown { deadline });
        }
    }

    /// Returns where it is, for people.
    pub(super) fn place(&self) -> String {
        self.seats.lock().known.place.clone().unwrap_or_default()
    }

    /// Takes the process in, with all runners that have a seat.
    pub(super) fn welcome(&self, shared: &WorkerPoolShared, greeting: PendingHandshake) {
        let mut seats = self.seats.lock();
        let hello = greeting.hello();
        let known = LaunchState { place: Some(place(&hello.host, hello.pid)), waits: None };
        let waited = std::mem::replace(&mut seats.known, known).waits.is_some();
        for seat in seats.taken.values() {
            let reporter = &seat.reporter;
            shared.states.locate(reporter.runner(), reporter.incarnation(), &seats.known);
            if waited {
                shared.aside(&seat.reporter, RunnerReport::Waits { why: None });
            }
        }
        let life =
            |(runner, seat): (&RunnerId, &HostedRunner)| (*runner, seat.reporter.incarnation());
        let offered = greeting.hello().runners as usize;
        let runners: Vec<_> = seats.taken.iter().map(life).collect();
        let (first, rest) = runners.split_at(offered.min(runners.len()));
        let env = match self.room {
            Some(_) => shared.options.env.iter().cloned().collect(),
            None => BTreeMap::new(),
        };
        let connection = greeting.accept(first, shared.options.heartbeat, env);
        for (runner, life) in rest {
            let _ = connection.send(EngineMessage::StartRunner { runner: *runner, life: *life });
        }
        seats.connection = Some(connection);
    }

    /// Notes what a runner says, and returns who speaks for it; none: that life is over.
    pub(super) fn on_report(
        &self,
        runner: RunnerId,
        life: Incarnation,
        said: &RunnerReport,
    ) -> Option<Reporter> {
        let mut seats = self.seats.lock();
        let seat =
            seats.taken.get_mut(&runner).filter(|seat| seat.reporter.incarnation() == life)?;
        let reporter = seat.reporter.clone();
        match said {
            RunnerReport::Ready { .. } | RunnerReport::AttemptEnded { .. } => {
                seat.stage = HostedState::Idle
            }
            RunnerReport::Lost { .. } | RunnerReport::StartFailed { .. } => {
                seats.taken.remove(&runner);
                // Where one was lost the next should not begin.
                seats.closed = true;
                if seats.taken.is_empty() {
                    self.end.cancel();
                }
            }
            RunnerReport::Heartbeat
            | RunnerReport::Waits { .. }
            | RunnerReport::AttemptBegan { .. }
            | RunnerReport::RunFinished { .. } => {}
        }
        Some(reporter)
    }

    /// Sends a command. If it cannot be sent at all, returns what the runner would say to it.
    pub(super) fn send(
        &self,
        shared: &WorkerPoolShared,
        runner: RunnerId,
        life: Incarnation,
        command: RunnerCommand,
    ) -> Option<(Reporter, Vec<RunnerReport>)> {
        let mut seats = self.seats.lock();
        let HostedRunners { taken, connection, .. } = &mut *seats;
        let connection = connection.as_ref()?;
        let seat = taken.get_mut(&runner).filter(|seat| seat.reporter.incarnation() == life)?;
        let mut started = None;
        let message = match command {
            RunnerCommand::Cancel { attempt, reason } => {
                EngineMessage::CancelAttempt { runner, life, attempt, reason }
            }
            RunnerCommand::Start(attempt) => {
                seat.stage = HostedState::Busy;
                started = Some((attempt.id, attempt.runs));
                EngineMessage::StartAttempt(start(shared, runner, life, *attempt))
            }
        };
        match connection.send(message) {
            Ok(()) => None,
            // It is about to be noticed that the worker is gone.
            Err(ConnectionSendError::Gone) => {
                tracing::debug!(%runner, "a command came too late");
                None
            }
            Err(error @ ConnectionSendError::TooLarge { .. }) => {
                let (id, runs) = started?;
                seat.stage = HostedState::Idle;
                let message: Arc<str> = format!("the task cannot be sent: {error}").into();
                let kind = FailureKind::InvalidOutput;
                let failed = runs.iter().map(|run| {
                    let message = Arc::clone(&message);
                    RunnerReport::RunFinished {
                        attempt: id,
                        run,
                        outcome: Err(RunFailure { kind, message }),
                    }
                });
                let said = [RunnerReport::AttemptBegan { attempt: id }]
                    .into_iter()
                    .chain(failed)
                    .chain([RunnerReport::AttemptEnded { attempt: id }]);
                Some((seat.reporter.clone(), said.collect()))
            }
        }
    }

    /// Leads the process to its end, and tells the runners in it.
    pub(super) async fn live(
        self: Arc<Self>,
        shared: &WorkerPoolShared,
        ends: impl Future<Output = ProcessExit>,
    ) {
        let ended = tokio::select! {
            biased;
            // Dropping what was launched ends it by force.
            () = self.end.cancelled() => ProcessExit::unattributed("its process was ended"),
            ended = ends => ended,
        };
        let ordered = self.end.is_cancelled();
        let taken = {
            let mut seats = self.seats.lock();
            seats.closed = true;
            seats.connection = None;
            std::mem::take(&mut seats.taken)
        };
        let busy = taken.values().filter(|seat| seat.stage == HostedState::Busy).count();
        let per_worker = shared.options.runners_per_worker.max(1);
        for (runner, HostedRunner { reporter, stage }) in taken {
            let message = ended.message.as_str().into();
            let blamed = match ended.blame {
                Suspect::None => false,
                Suspect::SoleAttempt => busy == 1,
                Suspect::RunnerIndex(place) => busy == 1 || place == runner.0 % per_worker,
            };
            let said = match stage {
                HostedState::Starting if !ordered => RunnerReport::StartFailed { message },
                HostedState::Starting | HostedState::Idle => {
                    RunnerReport::Lost { message, suspect: false }
                }
                HostedState::Busy => RunnerReport::Lost { message, suspect: blamed && !ordered },
            };
            shared.states.forget(runner, reporter.incarnation());
            reporter.send(vec![said]).await;
        }
    }

    /// Passes on what is known of a process that has not said hello.
    fn note(&self, shared: &WorkerPoolShared, known: LaunchState) {
        let mut seats = self.seats.lock();
        for seat in seats.taken.values() {
            let reporter = &seat.reporter;
            shared.states.locate(reporter.runner(), reporter.incarnation(), &known);
            let why = known.waits.as_deref().map(Into::into);
            shared.aside(&seat.reporter, RunnerReport::Waits { why });
        }
        seats.known = known;
    }

    /// Has the process started and waits until it is gone; returns how it ended.
    pub(super) async fn launched(
        self: Arc<Self>,
        shared: &WorkerPoolShared,
        launcher: &dyn Launcher,
    ) -> ProcessExit {
        let token = format!("w{}", self.number);
        let (greeted, mut greeting) = oneshot::channel();
        let expected = ExpectedWorker { host: Arc::clone(&self), greeted };
        shared.routes.lock().expected.insert(token.clone(), expected);
        let _forget = Forget { shared, token: &token };
        let whereabouts = LaunchStatus::new();
        let mut known = whereabouts.watch();
        let ticket = shared.ticket(self.number, &token, whereabouts);
        let mut launched = launcher.launch(ticket);
        let mut left = loop {
            tokio::select! {
                greeted = &mut greeting => match greeted {
                    Ok(left) => break left,
                    Err(_) => return ProcessExit::unattributed("it was forgotten"),
                },
                ended = launched.ended() => return unheard(ended),
                Ok(()) = known.changed() => {
                    let known = known.borrow_and_update().clone();
                    self.note(shared, known);
                }
            }
        };
        tokio::select! {
            ended = launched.ended() => {
                // Its last words may still be on their way.
                let _ = timeout(FINAL_OUTPUT_TIMEOUT, &mut left).await;
                as_worker(ended)
            }
            _ = &mut left => match timeout(FINAL_OUTPUT_TIMEOUT, launched.ended()).await {
                Ok(ended) => as_worker(ended),
                Err(_) => ProcessExit::unattributed("worker closed its connection"),
            },
        }
    }
}

/// Returns where a process is, for people.
fn place(host: &str, pid: Option<u32>) -> String {
    let host = if host.is_empty() { "unknown" } else { host };
    match pid {
        Some(pid) => format!("{host}, pid {pid}"),
        None => host.to_owned(),
    }
}

/// Says how a process ended that had said hello.
fn as_worker(ended: ProcessExit) -> ProcessExit {
    ProcessExit { message: format!("worker ended: {}", ended.message), ..ended }
}

/// Says how a process ended that never said hello.
fn unheard(ended: ProcessExit) -> ProcessExit {
    if !ended.started {
        return ended;
    }
    ProcessExit { message: format!("ended before it said hello: {}", ended.message), ..ended }
}

fn start(
    shared: &WorkerPoolShared,
    runner: RunnerId,
    life: Incarnation,
    attempt: AttemptSpec,
) -> StartAttempt {
    let definition = shared.definitions.lock().of(&attempt);
    let AttemptSpec { id, batch, kind, task_id, task, runs, timeout, kills, models } = attempt;
    StartAttempt {
        runner,
        life,
        attempt: id,
        batch,
        kind,
        task_id,
        runs,
        task: task.body.clone(),
        definition,
        timeout,
        kills,
        model_keys: models.map(|models| models.keys).unwrap_or_default(),
    }
}

/// Takes a token back when its process is gone.
struct Forget<'a> {
    shared: &'a WorkerPoolShared,
    token: &'a str,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.shared.routes.lock().expected.remove(self.token);
    }
}
