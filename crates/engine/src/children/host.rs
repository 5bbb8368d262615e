//! One worker process and the runners that have a seat in it.

use std::collections::BTreeMap;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rollway_core::{FailureKind, Life, RunnerId};
use rollway_wire::server::{Connection, Greeting, SendError};
use rollway_wire::{EngineMessage, StartAttempt, env};
use tokio::io::AsyncRead;
use tokio::process::{Child, Command as Process};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::listen::Expected;
use super::marks::Marks;
use super::{Shared, lock};
use crate::lines::lines;
use crate::workers::{Attempt, Command, Reporter, RunEnd, Said};

/// How long the last words of a dead process may take to be read.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A process, from before it is started until it is gone.
#[derive(Debug)]
pub(super) struct Host {
    number: u64,
    seats: Mutex<Seats>,
    end: CancellationToken,
}

#[derive(Debug, Default)]
struct Seats {
    taken: BTreeMap<RunnerId, Seat>,
    /// None until the process has said hello.
    connection: Option<Connection>,
    /// Whether newcomers have to go elsewhere.
    closed: bool,
}

#[derive(Debug)]
struct Seat {
    reporter: Reporter,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Starting,
    Idle,
    Busy,
}

impl Host {
    pub(super) fn new(number: u64) -> Self {
        Self { number, seats: Mutex::default(), end: CancellationToken::new() }
    }

    /// Gives a runner a seat, unless it is too late.
    pub(super) fn seat(&self, reporter: &Reporter) -> bool {
        let mut seats = lock(&self.seats);
        if seats.closed {
            return false;
        }
        let (runner, life) = (reporter.runner(), reporter.life());
        if let Some(connection) = &seats.connection {
            // If the worker is gone, that is about to be noticed.
            let _ = connection.send(EngineMessage::StartRunner { runner, life });
        }
        let seat = Seat { reporter: reporter.clone(), stage: Stage::Starting };
        seats.taken.insert(runner, seat);
        true
    }

    /// Ends a life of a runner. One that is at something takes the process with it.
    pub(super) fn leave(&self, runner: RunnerId, life: Life) {
        let mut seats = lock(&self.seats);
        if seats.taken.get(&runner).is_none_or(|seat| seat.reporter.life() != life) {
            return;
        }
        let stage = seats.taken.remove(&runner).map(|seat| seat.stage);
        if stage != Some(Stage::Idle) || seats.taken.is_empty() {
            seats.closed = true;
            self.end.cancel();
        } else if let Some(connection) = &seats.connection {
            let _ = connection.send(EngineMessage::StopRunner { runner, life });
        }
    }

    /// Ends the process.
    pub(super) fn end(&self) {
        lock(&self.seats).closed = true;
        self.end.cancel();
    }

    /// Takes the process in, with all runners that have a seat.
    pub(super) fn welcome(&self, greeting: Greeting, heartbeat: Duration) {
        let mut seats = lock(&self.seats);
        let life = |(runner, seat): (&RunnerId, &Seat)| (*runner, seat.reporter.life());
        let offered = greeting.hello().runners as usize;
        let runners: Vec<_> = seats.taken.iter().map(life).collect();
        let (first, rest) = runners.split_at(offered.min(runners.len()));
        let connection = greeting.welcome(first, heartbeat);
        for (runner, life) in rest {
            let _ = connection.send(EngineMessage::StartRunner { runner: *runner, life: *life });
        }
        seats.connection = Some(connection);
    }

    /// Notes what a runner says, and returns who speaks for it; none: that life is over.
    pub(super) fn heard(&self, runner: RunnerId, life: Life, said: &Said) -> Option<Reporter> {
        let mut seats = lock(&self.seats);
        let seat = seats.taken.get_mut(&runner).filter(|seat| seat.reporter.life() == life)?;
        let reporter = seat.reporter.clone();
        match said {
            Said::Ready { .. } | Said::Ended(_) => seat.stage = Stage::Idle,
            Said::Lost { .. } | Said::StartFailed(_) => {
                seats.taken.remove(&runner);
                // Where one was lost the next should not begin.
                seats.closed = true;
                if seats.taken.is_empty() {
                    self.end.cancel();
                }
            }
            Said::Alive | Said::Began(_) | Said::Finished(..) => {}
        }
        Some(reporter)
    }

    /// Sends a command. If it cannot be sent at all, returns what the runner would say to it.
    pub(super) fn send(
        &self,
        shared: &Shared,
        runner: RunnerId,
        life: Life,
        command: Command,
    ) -> Option<(Reporter, Vec<Said>)> {
        let mut seats = lock(&self.seats);
        let Seats { taken, connection, .. } = &mut *seats;
        let connection = connection.as_ref()?;
        let seat = taken.get_mut(&runner).filter(|seat| seat.reporter.life() == life)?;
        let mut started = None;
        let message = match command {
            Command::Cancel { attempt, reason } => {
                EngineMessage::CancelAttempt { runner, life, attempt, reason }
            }
            Command::Start(attempt) => {
                seat.stage = Stage::Busy;
                started = Some((attempt.id, attempt.runs));
                EngineMessage::StartAttempt(start(shared, runner, life, *attempt))
            }
        };
        match connection.send(message) {
            Ok(()) => None,
            // It is about to be noticed that the worker is gone.
            Err(SendError::Gone) => {
                tracing::debug!(%runner, "a command came too late");
                None
            }
            Err(error @ SendError::TooLarge { .. }) => {
                let (id, runs) = started?;
                seat.stage = Stage::Idle;
                let message: Arc<str> = format!("the task cannot be sent: {error}").into();
                let kind = FailureKind::InvalidOutput;
                let failed = runs.iter().map(|run| {
                    let message = Arc::clone(&message);
                    Said::Finished(id, run, RunEnd::Failed { kind, message })
                });
                let said = [Said::Began(id)].into_iter().chain(failed).chain([Said::Ended(id)]);
                Some((seat.reporter.clone(), said.collect()))
            }
        }
    }

    /// Leads the process from its start to its end, and tells the runners in it.
    pub(super) async fn live(self: Arc<Self>, shared: Arc<Shared>) {
        let file = shared.folder.path().join(format!("marks-{}", self.number));
        let marks = Marks::new(file, shared.options.runners_per_worker.max(1));
        let ended = match &marks {
            Ok(marks) => tokio::select! {
                biased;
                // Dropping the process kills it.
                () = self.end.cancelled() => "its process was ended".to_owned(),
                ended = Arc::clone(&self).watch(&shared, marks) => ended,
            },
            Err(error) => format!("its process could not be started: {error}"),
        };
        let ordered = self.end.is_cancelled();
        let culprit = marks.ok().and_then(|marks| marks.culprit());
        let taken = {
            let mut seats = lock(&self.seats);
            seats.closed = true;
            seats.connection = None;
            std::mem::take(&mut seats.taken)
        };
        let busy = taken.values().filter(|seat| seat.stage == Stage::Busy).count();
        let per_worker = shared.options.runners_per_worker.max(1);
        for (runner, Seat { reporter, stage }) in taken {
            let message = ended.as_str().into();
            let blamed = busy == 1 || culprit == Some(runner.0 % per_worker);
            let said = match stage {
                Stage::Starting if !ordered => Said::StartFailed(message),
                Stage::Starting | Stage::Idle => Said::Lost { message, suspect: false },
                Stage::Busy => Said::Lost { message, suspect: blamed && !ordered },
            };
            reporter.say(vec![said]).await;
        }
    }

    /// Starts the process and waits until it is gone; returns how it ended.
    async fn watch(self: Arc<Self>, shared: &Shared, marks: &Marks) -> String {
        let token = format!("w{}", self.number);
        let (greeted, mut greeting) = oneshot::channel();
        let expected = Expected { host: Arc::clone(&self), greeted };
        lock(&shared.routes).expected.insert(token.clone(), expected);
        let _forget = Forget { shared, token: &token };
        let mut child = match spawn(shared, &token, marks) {
            Ok(child) => child,
            Err(error) => {
                let program = shared.options.program.display();
                return format!("{program} could not be started: {error}");
            }
        };
        let mut left = tokio::select! {
            greeted = &mut greeting => match greeted {
                Ok(left) => left,
                Err(_) => return "it was forgotten".to_owned(),
            },
            status = child.wait() => {
                return format!("ended before it said hello: {}", describe(status));
            }
        };
        tokio::select! {
            status = child.wait() => {
                // Its last words may still be on their way.
                let _ = timeout(LAST_WORDS, &mut left).await;
                format!("worker ended: {}", describe(status))
            }
            _ = &mut left => match timeout(LAST_WORDS, child.wait()).await {
                Ok(status) => format!("worker ended: {}", describe(status)),
                Err(_) => "worker closed its connection".to_owned(),
            },
        }
    }
}

fn start(shared: &Shared, runner: RunnerId, life: Life, attempt: Attempt) -> StartAttempt {
    let definition = lock(&shared.definitions).of(&attempt);
    let Attempt { id, batch, kind, task_id, task, runs, timeout, kills, models } = attempt;
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
        env: BTreeMap::new(),
        model_keys: models.map(|models| models.keys).unwrap_or_default(),
    }
}

/// Takes a token back when its process is gone.
struct Forget<'a> {
    shared: &'a Shared,
    token: &'a str,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        lock(&self.shared.routes).expected.remove(self.token);
    }
}

fn spawn(shared: &Shared, token: &str, marks: &Marks) -> io::Result<Child> {
    let options = &shared.options;
    let mut child = Process::new(&options.program)
        .args(&options.args)
        .envs(options.env.iter().cloned())
        .env(env::ADDRESS, shared.address.to_string())
        .env(env::SECRET, shared.secret.reveal())
        .env(env::TOKEN, token)
        .env(env::RUNNERS, options.runners_per_worker.max(1).to_string())
        .env(env::MARKS, marks.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    if let Some(stdout) = child.stdout.take() {
        tokio::spawn(relay(stdout, token.to_owned(), "stdout"));
    }
    if let Some(stderr) = child.stderr.take() {
        tokio::spawn(relay(stderr, token.to_owned(), "stderr"));
    }
    Ok(child)
}

/// Puts what a worker prints into the log, line by line, under its name.
async fn relay(output: impl AsyncRead + Unpin, worker: String, stream: &'static str) {
    let log = |line: &str| {
        tracing::info!(target: "rollway::worker", %worker, stream, "{line}");
    };
    lines(output, log).await;
}

fn describe(status: io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    }
}
