//! Runners in child processes, one process each: a run that hangs, leaks or dies takes nothing with
//! it but its own process, which is killed and replaced.
//!
//! ```text
//!  StartRunner ──► spawn ──► hello with its token ──► welcome ──► Ready … AttemptEnded …
//!                    │ exits before its hello            │ exits, or its stream ends
//!                    ▼                                   ▼
//!               StartFailed                            Lost, after everything that it said
//! ```
//!
//! A process that the engine did not order to stop and that ends while it has an attempt is
//! suspected of being killed by it.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollway_core::{FailureKind, Life, RunnerId};
use rollway_wire::server::{ConnId, Connection, Greeting, Options, SendError, Server, ServerEvent};
use rollway_wire::{
    Address, DefinitionId, EngineMessage, Outcome, RunnerReport, Secret, StartAttempt, StopCause,
    WorkerMessage,
};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::{Child, Command as Process};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::workers::{Attempt, Command, Reporter, RunEnd, Said, Workers};

/// How many messages of workers are taken in at once.
const BATCH: usize = 1024;

/// How long the last words of a dead process may take to be read.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How much of a line of a worker's output is shown at once.
const LINE_BYTES: u64 = 16 * 1024;

/// How workers are started.
#[derive(Clone, Debug)]
pub struct ChildOptions {
    /// The program. It finds where to connect in its environment (`rollway_wire::env`).
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables of its environment, on top of this process's own.
    pub env: Vec<(String, String)>,
    /// Where the engine listens for them; none: a port of the loopback that the system chooses.
    pub address: Option<Address>,
    /// How often a worker says that it is alive.
    pub heartbeat: Duration,
}

impl ChildOptions {
    /// Returns options for a program without arguments.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            address: None,
            heartbeat: Duration::from_secs(5),
        }
    }
}

/// What runners last said about themselves, for people.
#[derive(Clone, Debug, Default)]
pub struct RunnerStates(Arc<Mutex<BTreeMap<RunnerId, BTreeMap<String, String>>>>);

impl RunnerStates {
    /// Returns the state of every runner that has told one.
    pub fn get(&self) -> BTreeMap<RunnerId, BTreeMap<String, String>> {
        lock(&self.0).clone()
    }
}

/// Runners in child processes.
#[derive(Debug)]
pub struct Children {
    shared: Arc<Shared>,
    lives: HashMap<RunnerId, (Life, CancellationToken)>,
    _alive: DropGuard,
}

#[derive(Debug)]
struct Shared {
    options: ChildOptions,
    address: Address,
    secret: Secret,
    routes: Mutex<Routes>,
    definitions: Mutex<Definitions>,
    states: RunnerStates,
}

/// Who is expected, and who has come.
#[derive(Debug, Default)]
struct Routes {
    expected: HashMap<String, Expected>,
    connected: HashMap<ConnId, Route>,
}

#[derive(Debug)]
struct Expected {
    reporter: Reporter,
    greeted: oneshot::Sender<(Connection, oneshot::Receiver<()>)>,
}

#[derive(Debug)]
struct Route {
    reporter: Reporter,
    /// Fires when everything that the worker said has been passed on.
    left: oneshot::Sender<()>,
}

/// Workflows by name, with the number under which each travels.
#[derive(Debug, Default)]
struct Definitions {
    known: HashMap<Arc<str>, Arc<rollway_wire::Definition>>,
    next: u64,
}

impl Children {
    /// Begins to listen for workers; none is started yet. Needs a tokio runtime.
    ///
    /// # Errors
    /// If there is no secret to be had or nothing can be listened on.
    pub async fn new(options: ChildOptions) -> io::Result<Self> {
        let secret = Secret::random()?;
        let address = options.address.clone().unwrap_or_else(Address::loopback);
        let server = Server::bind(Options::new(address, secret.clone())).await;
        let server = server.map_err(io::Error::other)?;
        let alive = CancellationToken::new();
        let shared = Arc::new(Shared {
            options,
            address: server.address().clone(),
            secret,
            routes: Mutex::default(),
            definitions: Mutex::default(),
            states: RunnerStates::default(),
        });
        tokio::spawn(listen(server, Arc::clone(&shared), alive.clone()));
        Ok(Self { shared, lives: HashMap::new(), _alive: alive.drop_guard() })
    }

    /// Returns what runners say about themselves.
    pub fn states(&self) -> RunnerStates {
        self.shared.states.clone()
    }
}

impl Workers for Children {
    fn start(&mut self, reporter: Reporter, commands: mpsc::Receiver<Command>) {
        let stop = CancellationToken::new();
        self.lives.insert(reporter.runner(), (reporter.life(), stop.clone()));
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            tokio::select! {
                // Dropping the process kills it.
                () = stop.cancelled() => {}
                () = live(shared, reporter, commands) => {}
            }
        });
    }

    fn stop(&mut self, runner: RunnerId, life: Life) {
        if self.lives.get(&runner).is_some_and(|(current, _)| *current == life)
            && let Some((_, stop)) = self.lives.remove(&runner)
        {
            stop.cancel();
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for (_, stop) in self.lives.values() {
            stop.cancel();
        }
    }
}

/// Passes on what workers say, each in the order in which it said it.
async fn listen(mut server: Server, shared: Arc<Shared>, alive: CancellationToken) {
    let mut events = Vec::with_capacity(BATCH);
    loop {
        tokio::select! {
            () = alive.cancelled() => return,
            _ = server.recv_many(&mut events, BATCH) => {}
        }
        // What one worker says in a batch is passed on at once.
        let mut said: BTreeMap<ConnId, (Reporter, Vec<Said>)> = BTreeMap::new();
        for event in events.drain(..) {
            match event {
                ServerEvent::Hello(greeting) => greet(&shared, greeting),
                ServerEvent::Message { conn, message } => {
                    let Some(reporter) = reporter_of(&shared, conn) else { continue };
                    let entry = said.entry(conn).or_insert_with(|| (reporter, Vec::new()));
                    translate(&shared, message, &mut entry.1);
                }
                ServerEvent::Left { conn, .. } => {
                    if let Some((reporter, words)) = said.remove(&conn) {
                        reporter.say(words).await;
                    }
                    if let Some(route) = lock(&shared.routes).connected.remove(&conn) {
                        let _ = route.left.send(());
                    }
                }
            }
        }
        for (reporter, words) in said.into_values() {
            reporter.say(words).await;
        }
    }
}

fn reporter_of(shared: &Shared, conn: ConnId) -> Option<Reporter> {
    lock(&shared.routes).connected.get(&conn).map(|route| route.reporter.clone())
}

/// Takes a worker in if it was started here; anybody else is refused by dropping the greeting.
fn greet(shared: &Shared, greeting: Greeting) {
    let mut routes = lock(&shared.routes);
    let Some(expected) = routes.expected.remove(&greeting.hello().token) else { return };
    let Expected { reporter, greeted } = expected;
    let conn = greeting.conn();
    let runner = (reporter.runner(), reporter.life());
    let connection = greeting.welcome(&[runner], shared.options.heartbeat);
    let (left, gone) = oneshot::channel();
    routes.connected.insert(conn, Route { reporter, left });
    // If the life was stopped meanwhile, dropping the connection ends the worker.
    let _ = greeted.send((connection, gone));
}

fn translate(shared: &Shared, message: WorkerMessage, said: &mut Vec<Said>) {
    match message {
        WorkerMessage::Runner { report, .. } => said.extend(report_of(report)),
        WorkerMessage::Heartbeat(states) => {
            let mut known = lock(&shared.states.0);
            for state in states {
                known.insert(state.runner, state.state);
            }
            said.push(Said::Alive);
        }
        WorkerMessage::Log(line) => tracing::info!(target: "rollway::worker", "{}", line.line),
        WorkerMessage::Goodbye { reason } => tracing::debug!(%reason, "worker says goodbye"),
    }
}

fn report_of(report: RunnerReport) -> Option<Said> {
    Some(match report {
        RunnerReport::Ready { after } => Said::Ready { after },
        RunnerReport::AttemptBegan { attempt } => Said::Began(attempt),
        RunnerReport::RunFinished { attempt, run, outcome } => {
            let end = match outcome {
                Outcome::Succeeded { payload, metrics } => RunEnd::Succeeded { payload, metrics },
                Outcome::Failed { kind, message } => RunEnd::Failed { kind, message },
            };
            Said::Finished(attempt, run, end)
        }
        RunnerReport::AttemptEnded { attempt } => Said::Ended(attempt),
        RunnerReport::Stopped(StopCause::Ordered) => return None,
        RunnerReport::Stopped(StopCause::StartFailed { message }) => Said::StartFailed(message),
        RunnerReport::Stopped(StopCause::Lost { message, suspect }) => {
            Said::Lost { message, suspect }
        }
    })
}

/// Leads one life of a runner, from the start of its process to its end.
async fn live(shared: Arc<Shared>, reporter: Reporter, mut commands: mpsc::Receiver<Command>) {
    let token = format!("{}-{}", reporter.runner(), reporter.life());
    let (greeted, mut greeting) = oneshot::channel();
    let expected = Expected { reporter: reporter.clone(), greeted };
    lock(&shared.routes).expected.insert(token.clone(), expected);
    let _forget = Forget { shared: &shared, token: &token };
    let mut child = match spawn(&shared, &token, &reporter) {
        Ok(child) => child,
        Err(error) => {
            let program = shared.options.program.display();
            let message = format!("{program} could not be started: {error}");
            return reporter.say(vec![Said::StartFailed(message.into())]).await;
        }
    };
    let (connection, mut left) = tokio::select! {
        greeted = &mut greeting => match greeted {
            Ok(greeted) => greeted,
            Err(_) => return,
        },
        status = child.wait() => {
            let message = format!("ended before it said hello: {}", describe(status));
            return reporter.say(vec![Said::StartFailed(message.into())]).await;
        }
    };
    let message = loop {
        tokio::select! {
            command = commands.recv() => match command {
                Some(command) => send(&shared, &reporter, &connection, command).await,
                // The engine has let go; dropping the process ends it.
                None => return,
            },
            status = child.wait() => {
                // Its last words may still be on their way.
                let _ = timeout(LAST_WORDS, &mut left).await;
                break format!("worker ended: {}", describe(status));
            }
            _ = &mut left => {
                let exit = timeout(LAST_WORDS, child.wait()).await;
                break match exit {
                    Ok(status) => format!("worker ended: {}", describe(status)),
                    Err(_) => "worker closed its connection".to_owned(),
                };
            }
        }
    };
    reporter.say(vec![Said::Lost { message: message.into(), suspect: true }]).await;
}

/// Takes a token back when its life is over.
struct Forget<'a> {
    shared: &'a Shared,
    token: &'a str,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        lock(&self.shared.routes).expected.remove(self.token);
    }
}

fn spawn(shared: &Shared, token: &str, reporter: &Reporter) -> io::Result<Child> {
    let options = &shared.options;
    let mut child = Process::new(&options.program)
        .args(&options.args)
        .envs(options.env.iter().cloned())
        .env(rollway_wire::env::ADDRESS, shared.address.to_string())
        .env(rollway_wire::env::SECRET, shared.secret.reveal())
        .env(rollway_wire::env::TOKEN, token)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let runner = reporter.runner();
    if let Some(stdout) = child.stdout.take() {
        tokio::spawn(relay(stdout, runner, "stdout"));
    }
    if let Some(stderr) = child.stderr.take() {
        tokio::spawn(relay(stderr, runner, "stderr"));
    }
    Ok(child)
}

/// Puts what a worker prints into the log, line by line, under the name of its runner.
async fn relay(output: impl AsyncRead + Unpin, runner: RunnerId, stream: &'static str) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    // Longer lines are shown in pieces: a worker that never ends one costs no memory.
    while let Ok(read) = (&mut output).take(LINE_BYTES).read_until(b'\n', &mut line).await {
        if read == 0 {
            return;
        }
        let text = String::from_utf8_lossy(&line);
        tracing::info!(target: "rollway::worker", %runner, stream, "{}", text.trim_end());
        line.clear();
    }
}

fn describe(status: io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    }
}

async fn send(shared: &Shared, reporter: &Reporter, connection: &Connection, command: Command) {
    let (runner, life) = (reporter.runner(), reporter.life());
    let mut started = None;
    let message = match command {
        Command::Cancel { attempt, reason } => {
            EngineMessage::CancelAttempt { runner, life, attempt, reason }
        }
        Command::Start(attempt) => {
            let attempt = *attempt;
            let definition = define(shared, &attempt);
            started = Some((attempt.id, attempt.runs));
            let Attempt { id, batch, kind, task_id, task, runs, timeout, kills } = attempt;
            EngineMessage::StartAttempt(StartAttempt {
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
            })
        }
    };
    match connection.send(message) {
        Ok(()) => {}
        // It is about to be noticed that the worker is gone.
        Err(SendError::Gone) => tracing::debug!(%runner, "a command came too late"),
        Err(error @ SendError::TooLarge { .. }) => {
            let Some((id, runs)) = started else { return };
            let message: Arc<str> = format!("the task cannot be sent: {error}").into();
            let kind = FailureKind::InvalidOutput;
            let failed = runs.iter().map(|run| {
                let message = Arc::clone(&message);
                Said::Finished(id, run, RunEnd::Failed { kind, message })
            });
            let said = [Said::Began(id)].into_iter().chain(failed).chain([Said::Ended(id)]);
            reporter.say(said.collect()).await;
        }
    }
}

/// Returns the workflow as it travels. A changed workflow of the same name gets a new number.
fn define(shared: &Shared, attempt: &Attempt) -> Arc<rollway_wire::Definition> {
    let mut definitions = lock(&shared.definitions);
    let name = &attempt.task.workflow;
    let (encoding, task_encoding, body) = match attempt.task.definition.as_deref() {
        Some(found) => (found.encoding.clone(), found.task_encoding.clone(), found.body.clone()),
        None => ("name".into(), "bytes".into(), bytes::Bytes::new()),
    };
    if let Some(known) = definitions.known.get(name)
        && known.body == body
        && known.encoding == encoding
    {
        return Arc::clone(known);
    }
    let id = DefinitionId(definitions.next);
    definitions.next += 1;
    let name = Arc::clone(name);
    let definition = Arc::new(rollway_wire::Definition {
        id,
        name: name.clone(),
        encoding,
        task_encoding,
        body,
    });
    definitions.known.insert(name, Arc::clone(&definition));
    definition
}

/// Locks what no panic can leave half-done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
