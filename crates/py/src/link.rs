//! A worker's connection to its engine, for the worker process in Python.
//!
//! What the engine says is queued here, and one byte in a socket wakes the event loop of Python for
//! all of it. What the worker says goes out by plain calls that await nothing, small words
//! together: a short attempt is one batch of messages. Words do not wait for more than a moment,
//! also if Python is busy.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList};
use rollway_core::{AttemptId, FailureKind, Life, RunId, RunnerId};
use rollway_wire::worker::{self, Connected, Options, Receiver, SendError, Sender};
use rollway_wire::{
    Address, EngineMessage, Hello, Outcome, RunnerReport, Secret, StartAttempt, StopCause,
    WorkerMessage,
};
use tokio::runtime::Handle;

use crate::batch_id::Id;
use crate::{errors, metrics, runtime};

/// How many messages are taken from the stream at once.
const BATCH: usize = 256;

/// How long small words wait for others to go with.
const GATHER: Duration = Duration::from_millis(1);

/// A payload of this size goes at once, and whoever sends it learns whether it is too large.
const LARGE: usize = 32 * 1024;

/// How long the process may take to end when its engine is gone.
const ORPHAN: Duration = Duration::from_secs(3);

/// What is to be read by Python.
#[derive(Debug)]
struct Inbox {
    messages: Mutex<VecDeque<EngineMessage>>,
    ended: Mutex<Option<String>>,
    bell: UnixStream,
}

/// What is to be said.
struct Outbox {
    sender: Sender,
    words: Mutex<Vec<WorkerMessage>>,
    /// Held while words are on their way, so that they stay in order.
    turn: tokio::sync::Mutex<()>,
}

impl Outbox {
    /// Sends everything that has gathered, then `last`.
    async fn send(&self, last: Option<WorkerMessage>) -> Result<(), SendError> {
        let _turn = self.turn.lock().await;
        let words = std::mem::take(&mut *lock(&self.words));
        for message in words.into_iter().chain(last) {
            self.sender.send(message).await?;
        }
        Ok(())
    }
}

/// A connection to the engine.
#[pyclass(frozen, module = "rollway._rollway")]
pub(crate) struct WorkerLink {
    outbox: Arc<Outbox>,
    runtime: Handle,
    runners: Vec<(u32, u32)>,
    inbox: Arc<Inbox>,
    ear: UnixStream,
}

#[pymethods]
impl WorkerLink {
    /// Connects as the environment says, and returns when the engine has taken the worker in.
    #[new]
    fn new(py: Python<'_>, address: &str, secret: String, token: String) -> PyResult<Self> {
        let runtime = runtime::start(py, 1)?;
        let refused = |words: String| errors::plain(py, "closed", &words);
        let address: Address = address.parse().map_err(|error| refused(format!("{error}")))?;
        let secret = Secret::new(secret).map_err(|error| refused(error.to_string()))?;
        let mut hello = Hello::new(secret, token, 1);
        "python".clone_into(&mut hello.language);
        let connecting = worker::connect(&address, hello, Options::default());
        let connected = py.detach(|| runtime.block_on(connecting));
        let connected = connected.map_err(|error| refused(error.to_string()))?;
        let Connected { welcome, sender, receiver } = connected;
        let (bell, ear) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        ear.set_nonblocking(true)?;
        let inbox = Arc::new(Inbox { messages: Mutex::default(), ended: Mutex::default(), bell });
        runtime.spawn(listen(receiver, Arc::clone(&inbox)));
        let runners = welcome.runners.iter().map(|(runner, life)| (runner.0, life.0)).collect();
        let (words, turn) = (Mutex::default(), tokio::sync::Mutex::default());
        let outbox = Arc::new(Outbox { sender, words, turn });
        Ok(Self { outbox, runtime, runners, inbox, ear })
    }

    /// The runners that this worker hosts, with their lives.
    #[getter]
    fn runners(&self) -> Vec<(u32, u32)> {
        self.runners.clone()
    }

    /// Returns what becomes readable when there are messages.
    fn fileno(&self) -> i32 {
        self.ear.as_raw_fd()
    }

    /// Takes all messages that have come. The last one ever is `("ended", why)`.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        // The bell first: whatever comes after this rings it again.
        let mut bytes = [0; 64];
        while matches!((&self.ear).read(&mut bytes), Ok(read) if read > 0) {}
        let messages = std::mem::take(&mut *lock(&self.inbox.messages));
        let list = PyList::empty(py);
        for message in messages {
            list.append(translate(py, message)?)?;
        }
        if let Some(why) = &*lock(&self.inbox.ended) {
            list.append(("ended", why.as_str()))?;
        }
        Ok(list)
    }

    /// Says that a runner is idle.
    #[pyo3(signature = (runner, life, after=None))]
    fn ready(&self, py: Python<'_>, runner: u32, life: u32, after: Option<u64>) -> PyResult<()> {
        self.report(py, runner, life, RunnerReport::Ready { after: after.map(AttemptId) })
    }

    /// Says that a runner has begun an attempt.
    fn began(&self, runner: u32, life: u32, attempt: u64) {
        let attempt = AttemptId(attempt);
        self.gather(message(runner, life, RunnerReport::AttemptBegan { attempt }));
    }

    /// Says that a run went well. Returns why it could not be said, if it is too large.
    #[expect(clippy::too_many_arguments, reason = "one flat call per run, for speed")]
    fn succeeded(
        &self,
        py: Python<'_>,
        runner: u32,
        life: u32,
        attempt: u64,
        run: u32,
        payload: Option<PyBackedBytes>,
        metrics: &Bound<'_, PyDict>,
    ) -> PyResult<Option<String>> {
        let payload = payload.map(Bytes::from_owner);
        let is_large = payload.as_ref().is_some_and(|payload| payload.len() >= LARGE);
        let outcome = Outcome::Succeeded { payload, metrics: metrics::from_dict(metrics)? };
        let (attempt, run) = (AttemptId(attempt), RunId(run));
        let report = RunnerReport::RunFinished { attempt, run, outcome };
        let message = message(runner, life, report);
        if !is_large {
            self.gather(message);
            return Ok(None);
        }
        match self.send(py, message) {
            Ok(()) => Ok(None),
            Err(error @ SendError::TooLarge { .. }) => Ok(Some(error.to_string())),
            Err(error @ SendError::Closed) => Err(closed(py, &error)),
        }
    }

    /// Says that a run went badly.
    fn failed(&self, runner: u32, life: u32, attempt: u64, run: u32, kind: &str, words: &str) {
        let named = FailureKind::ALL.iter().find(|known| known.name() == kind);
        let kind = named.copied().unwrap_or(FailureKind::Workflow);
        let outcome = Outcome::Failed { kind, message: words.into() };
        let (attempt, run) = (AttemptId(attempt), RunId(run));
        self.gather(message(runner, life, RunnerReport::RunFinished { attempt, run, outcome }));
    }

    /// Says that an attempt is over.
    fn ended(&self, py: Python<'_>, runner: u32, life: u32, attempt: u64) -> PyResult<()> {
        self.report(py, runner, life, RunnerReport::AttemptEnded { attempt: AttemptId(attempt) })
    }

    /// Says that a life of a runner is over, as ordered.
    fn stopped(&self, py: Python<'_>, runner: u32, life: u32) -> PyResult<()> {
        self.report(py, runner, life, RunnerReport::Stopped(StopCause::Ordered))
    }

    /// Sets what the next heartbeats say about a runner.
    fn set_state(&self, runner: u32, state: BTreeMap<String, String>) {
        self.outbox.sender.set_state(RunnerId(runner), state);
    }

    /// Says goodbye.
    fn goodbye(&self, py: Python<'_>, reason: String) -> PyResult<()> {
        let reason = reason.into();
        let sent = self.send(py, WorkerMessage::Goodbye { reason });
        sent.map_err(|error| closed(py, &error))
    }
}

impl WorkerLink {
    fn report(&self, py: Python<'_>, runner: u32, life: u32, report: RunnerReport) -> PyResult<()> {
        self.send(py, message(runner, life, report)).map_err(|error| closed(py, &error))
    }

    /// Sends at once, and waits with the interpreter free while the engine is behind.
    fn send(&self, py: Python<'_>, message: WorkerMessage) -> Result<(), SendError> {
        py.detach(|| self.runtime.block_on(self.outbox.send(Some(message))))
    }

    /// Sends soon: with the next message that is sent at once, or after a moment.
    fn gather(&self, message: WorkerMessage) {
        let mut words = lock(&self.outbox.words);
        words.push(message);
        if words.len() == 1 {
            let outbox = Arc::clone(&self.outbox);
            self.runtime.spawn(async move {
                tokio::time::sleep(GATHER).await;
                // That the connection is gone is noticed by whoever listens.
                let _ = outbox.send(None).await;
            });
        }
    }
}

fn message(runner: u32, life: u32, report: RunnerReport) -> WorkerMessage {
    WorkerMessage::Runner { runner: RunnerId(runner), life: Life(life), report }
}

fn closed(py: Python<'_>, error: &SendError) -> PyErr {
    errors::plain(py, "closed", &error.to_string())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Queues what the engine says, until it says no more; then the process has little time left.
async fn listen(mut receiver: Receiver, inbox: Arc<Inbox>) {
    let mut batch = Vec::with_capacity(BATCH);
    let why = loop {
        match receiver.recv_many(&mut batch, BATCH).await {
            Ok(_) => {
                let mut messages = lock(&inbox.messages);
                let ring = messages.is_empty();
                messages.extend(batch.drain(..));
                drop(messages);
                if ring {
                    ring_bell(&inbox);
                }
            }
            Err(ended) => break ended,
        }
    };
    *lock(&inbox.ended) = Some(why.to_string());
    ring_bell(&inbox);
    // Whatever keeps the interpreter busy, a worker does not outlive its engine.
    tokio::time::sleep(ORPHAN).await;
    std::process::exit(1);
}

fn ring_bell(inbox: &Inbox) {
    // If it is full, it rings already.
    let _ = (&inbox.bell).write(&[1]);
}

fn translate<'py>(py: Python<'py>, message: EngineMessage) -> PyResult<Bound<'py, PyAny>> {
    Ok(match message {
        EngineMessage::StartAttempt(start) => {
            let start = Bound::new(py, Start(start))?;
            ("start", start).into_pyobject(py)?.into_any()
        }
        EngineMessage::CancelAttempt { runner, life, attempt, reason: _ } => {
            ("cancel", runner.0, life.0, attempt.0).into_pyobject(py)?.into_any()
        }
        EngineMessage::StartRunner { runner, life } => {
            ("start_runner", runner.0, life.0).into_pyobject(py)?.into_any()
        }
        EngineMessage::StopRunner { runner, life } => {
            ("stop_runner", runner.0, life.0).into_pyobject(py)?.into_any()
        }
        EngineMessage::Shutdown { deadline } => {
            ("shutdown", deadline.as_secs_f64()).into_pyobject(py)?.into_any()
        }
    })
}

/// An attempt to be executed, read field by field.
#[pyclass(frozen, module = "rollway._rollway")]
pub(crate) struct Start(StartAttempt);

#[pymethods]
impl Start {
    #[getter]
    fn runner(&self) -> u32 {
        self.0.runner.0
    }

    #[getter]
    fn life(&self) -> u32 {
        self.0.life.0
    }

    #[getter]
    fn attempt(&self) -> u64 {
        self.0.attempt.0
    }

    #[getter]
    fn batch_id(&self) -> Id {
        Id(self.0.batch.clone())
    }

    #[getter]
    fn task_id(&self) -> u32 {
        self.0.task_id.0
    }

    #[getter]
    fn runs(&self) -> Vec<u32> {
        self.0.runs.iter().map(|run| run.0).collect()
    }

    #[getter]
    fn is_eval(&self) -> bool {
        self.0.kind == rollway_core::BatchKind::Eval
    }

    #[getter]
    fn task<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.task)
    }

    /// Names the workflow on this connection.
    #[getter]
    fn definition_id(&self) -> u64 {
        self.0.definition.id.0
    }

    /// The workflow: its name, its encoding and its body.
    #[getter]
    fn definition<'py>(&self, py: Python<'py>) -> (String, String, Bound<'py, PyBytes>) {
        let definition = &self.0.definition;
        let body = PyBytes::new(py, &definition.body);
        (definition.name.to_string(), definition.encoding.to_string(), body)
    }

    #[getter]
    fn kills(&self) -> u32 {
        self.0.kills
    }

    /// What the workflow is to find in its environment.
    #[getter]
    fn env(&self) -> BTreeMap<String, String> {
        self.0.env.clone()
    }
}
