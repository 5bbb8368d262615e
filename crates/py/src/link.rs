//! A worker's connection to its engine, for the worker process in Python.
//!
//! The Python event loop polls the socket itself. One call without another thread sends gathered
//! messages and returns received ones. Reports are gathered by calls that do not await, so that
//! short attempts share one batch of messages. While the event loop is blocked, a companion thread
//! drives the connection: it queues received messages and wakes the loop through a socket pair.

mod attempt;
mod loop_watchdog;
mod outbox;
mod runtime_driver;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pyo3::exceptions::{PyPermissionError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyDict, PyList};
use rollway_base::{Address, Secret};
use rollway_core::{AttemptId, FailureKind, Incarnation, RunFailure, RunId, RunOutput, RunnerId};
use rollway_protocol::worker_client::{
    self, ClientSocket, ConnectedWorker, EngineReceiver, WorkerClientOptions, WorkerConnectError,
    WorkerSendError,
};
use rollway_protocol::{
    EngineMessage, Hello, LogLine, LogSource, StopCause, WorkerLogLevel, WorkerMessage,
    WorkerReport,
};
use tokio::sync::watch;

pub(crate) use self::attempt::PyAttempt;
use self::outbox::LinkOutbox;
use self::runtime_driver::{RuntimeDriver, poll_tasks};
use crate::{errors, metrics, runtime};

/// Maximum messages taken from the stream at once.
const BATCH: usize = 256;

/// Payloads of at least this size are sent immediately, so that the caller gets size errors.
const LARGE_PAYLOAD_BYTES: usize = 16 * 1024;

/// Maximum time for the process to exit after the connection to its engine is lost.
const ORPHAN_EXIT_TIMEOUT: Duration = Duration::from_secs(3);

/// Received messages that Python has not read yet.
#[derive(Debug)]
struct Inbox {
    messages: Mutex<VecDeque<EngineMessage>>,
    ended: Mutex<Option<String>>,
    wake_writer: UnixStream,
    wake_reader: UnixStream,
    wake_pending: AtomicBool,
}

impl Inbox {
    fn new() -> io::Result<Self> {
        let (wake_writer, wake_reader) = UnixStream::pair()?;
        wake_writer.set_nonblocking(true)?;
        wake_reader.set_nonblocking(true)?;
        let (messages, ended, wake_pending) = Default::default();
        Ok(Self { messages, ended, wake_writer, wake_reader, wake_pending })
    }

    fn put(&self, more: impl IntoIterator<Item = EngineMessage>) {
        self.messages.lock().extend(more);
    }

    /// Wakes the event loop if there is something for it.
    fn wake_event_loop(&self) {
        let any = !self.messages.lock().is_empty() || self.ended.lock().is_some();
        if any && !self.wake_pending.swap(true, Ordering::AcqRel) {
            // A full socket is readable already.
            let _ = (&self.wake_writer).write(&[1]);
        }
    }

    /// Clears the pending wake-up. The next message wakes the event loop again.
    fn clear_signal(&self) {
        if self.wake_pending.swap(false, Ordering::AcqRel) {
            let _ = (&self.wake_reader).read(&mut [0; 64]);
        }
    }
}

/// A connection to the engine.
#[pyclass(frozen, module = "rollway._rollway")]
pub(crate) struct WorkerLink {
    driver: Arc<RuntimeDriver>,
    outbox: Arc<LinkOutbox>,
    inbox: Arc<Inbox>,
    socket: ClientSocket,
    runners: Vec<(u32, u32)>,
    env: BTreeMap<String, String>,
}

#[pymethods]
impl WorkerLink {
    /// Connects by the environment variables, and returns after the handshake.
    /// Raises `PermissionError` if the engine refuses this worker for good.
    #[new]
    fn new(
        py: Python<'_>,
        address: &str,
        secret: String,
        token: String,
        runners: u32,
        marks: PathBuf,
        host: String,
    ) -> PyResult<Self> {
        // The connection has a runtime of its own; this one serves other calls of workflows.
        runtime::start(py, 1)?;
        let driver = Arc::new(RuntimeDriver::new()?);
        let refused = |text: String| errors::plain(py, "closed", &text);
        let address: Address = address.parse().map_err(|error| refused(format!("{error}")))?;
        let secret = Secret::new(secret).map_err(|error| refused(error.to_string()))?;
        let mut hello = Hello::new(token, runners);
        "python".clone_into(&mut hello.language);
        hello.host = host;
        let inbox = Arc::new(Inbox::new()?);
        let connecting = async {
            let options = WorkerClientOptions::default();
            let (connected, socket) =
                worker_client::connect_watched(&address, &secret, hello, options).await?;
            let ConnectedWorker { welcome, sender, receiver } = connected;
            let outbox = Arc::new(LinkOutbox::new(sender));
            let (block_timeout, limit) = watch::channel(loop_watchdog::LOOP_BLOCK_TIMEOUT);
            tokio::spawn(listen(receiver, Arc::clone(&inbox), block_timeout));
            let (text, messages) = (Arc::clone(&outbox), Arc::clone(&inbox));
            tokio::spawn(loop_watchdog::watch_blocking(limit, marks, text, messages));
            Ok::<_, WorkerConnectError>((welcome, outbox, socket))
        };
        let connected = py.detach(|| driver.run(connecting));
        let (welcome, outbox, socket) = connected.map_err(|error| match &error {
            error if error.is_final() => PyPermissionError::new_err(error.to_string()),
            error => refused(error.to_string()),
        })?;
        driver.start_companion(Arc::clone(&outbox), Arc::clone(&inbox))?;
        let runners =
            welcome.runners.iter().map(|(runner, incarnation)| (runner.0, incarnation.0)).collect();
        Ok(Self { driver, outbox, inbox, socket, runners, env: welcome.env })
    }

    /// Environment variables that the engine sets for workers that it starts itself.
    #[getter]
    fn env(&self) -> BTreeMap<String, String> {
        self.env.clone()
    }

    /// The runners that this worker hosts, with their incarnations.
    #[getter]
    fn runners(&self) -> Vec<(u32, u32)> {
        self.runners.clone()
    }

    /// Descriptors that become readable when a turn has something to do.
    #[getter]
    fn file_descriptors(&self) -> (i32, i32) {
        (self.socket.as_raw_fd(), self.inbox.wake_reader.as_raw_fd())
    }

    /// `True` while output waits until the first descriptor becomes writable.
    #[getter]
    fn is_backlogged(&self) -> bool {
        self.socket.is_full()
    }

    /// Sends queued reports, and returns all received messages. The last one
    /// ever is `("ended", reason)`.
    fn poll_messages<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.inbox.clear_signal();
        let mut sent = self.driver.run(async {
            let sent = self.outbox.try_send();
            poll_tasks().await;
            sent
        });
        if let Ok(false) = sent {
            // The engine is behind: the interpreter is free meanwhile.
            sent = py.detach(|| self.driver.run(self.outbox.send(None))).map(|()| true);
        }
        let messages = std::mem::take(&mut *self.inbox.messages.lock());
        let ended = self.inbox.ended.lock().clone();
        let list = PyList::empty(py);
        for message in messages {
            list.append(translate(py, message)?)?;
        }
        match (ended, sent) {
            (Some(reason), _) => list.append(("ended", reason))?,
            (None, Err(error)) => return Err(closed(py, &error)),
            (None, Ok(_)) => {}
        }
        Ok(list)
    }

    /// Reports that a runner is idle.
    #[pyo3(signature = (runner, incarnation, after=None))]
    fn ready(
        &self,
        py: Python<'_>,
        runner: u32,
        incarnation: u32,
        after: Option<u64>,
    ) -> PyResult<()> {
        self.report(py, runner, incarnation, WorkerReport::Ready { after: after.map(AttemptId) })
    }

    /// Reports that a runner has begun an attempt.
    fn attempt_began(&self, runner: u32, incarnation: u32, attempt: u64) {
        let attempt = AttemptId(attempt);
        self.queue_message(message(runner, incarnation, WorkerReport::AttemptBegan { attempt }));
    }

    /// Reports a successful run. Returns the reason if the report is too large.
    #[expect(clippy::too_many_arguments, reason = "one flat call per run, for speed")]
    fn succeeded(
        &self,
        py: Python<'_>,
        runner: u32,
        incarnation: u32,
        attempt: u64,
        run: u32,
        payload: Option<PyBackedBytes>,
        metrics: &Bound<'_, PyDict>,
    ) -> PyResult<Option<String>> {
        let payload = payload.map(Bytes::from_owner);
        let is_large = payload.as_ref().is_some_and(|payload| payload.len() >= LARGE_PAYLOAD_BYTES);
        let outcome = Ok(RunOutput { payload, metrics: metrics::from_dict(metrics)? });
        let (attempt, run) = (AttemptId(attempt), RunId(run));
        let report = WorkerReport::RunFinished { attempt, run, outcome };
        let message = message(runner, incarnation, report);
        if !is_large {
            self.queue_message(message);
            return Ok(None);
        }
        match self.send(py, message) {
            Ok(()) => Ok(None),
            Err(error @ WorkerSendError::TooLarge { .. }) => Ok(Some(error.to_string())),
            Err(error @ WorkerSendError::Closed) => Err(closed(py, &error)),
        }
    }

    /// Reports a failed run.
    fn failed(
        &self,
        runner: u32,
        incarnation: u32,
        attempt: u64,
        run: u32,
        kind: &str,
        text: &str,
    ) -> PyResult<()> {
        let kind = FailureKind::ALL.iter().copied().find(|current| current.name() == kind);
        let kind = kind.ok_or_else(|| PyValueError::new_err("unknown kind of failure"))?;
        let outcome = Err(RunFailure { kind, message: text.into() });
        let (attempt, run) = (AttemptId(attempt), RunId(run));
        self.queue_message(message(
            runner,
            incarnation,
            WorkerReport::RunFinished { attempt, run, outcome },
        ));
        Ok(())
    }

    /// Reports the end of an attempt.
    fn attempt_ended(&self, runner: u32, incarnation: u32, attempt: u64) {
        let attempt = AttemptId(attempt);
        self.queue_message(message(runner, incarnation, WorkerReport::AttemptEnded { attempt }));
    }

    /// Sends queued reports, and waits until they arrive even if this process dies.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let settled = self.at_once(py, async {
            self.outbox.send(None).await?;
            self.outbox.sender().drained().await
        });
        settled.map_err(|error| closed(py, &error))
    }

    /// Reports that an incarnation was stopped as requested.
    fn stopped(&self, py: Python<'_>, runner: u32, incarnation: u32) -> PyResult<()> {
        self.report(py, runner, incarnation, WorkerReport::Stopped(StopCause::Requested))
    }

    /// Reports that no runner can be started, with the reason. No report may follow.
    fn start_failed(&self, py: Python<'_>, text: &str) -> PyResult<()> {
        let message: Arc<str> = text.into();
        for (runner, incarnation) in &self.runners {
            let cause = StopCause::StartFailed { message: Arc::clone(&message) };
            self.report(py, *runner, *incarnation, WorkerReport::Stopped(cause))?;
        }
        self.flush(py)
    }

    /// Sets the labels of a runner in the next heartbeats.
    fn set_state(&self, runner: u32, state: BTreeMap<String, String>) {
        self.outbox.sender().set_labels(RunnerId(runner), state);
    }

    /// Sends a line for the log, with its source as far as it is known. May be called from any
    /// thread.
    #[pyo3(signature = (level, line, logger=None, batch=None, task=None, run=None, attempt=None))]
    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    fn log(
        &self,
        level: i32,
        line: &str,
        logger: Option<&str>,
        batch: Option<&str>,
        task: Option<u32>,
        run: Option<u32>,
        attempt: Option<u64>,
    ) {
        // The numbers of Python's `logging`.
        let level = match level {
            ..20 => WorkerLogLevel::Debug,
            20..30 => WorkerLogLevel::Info,
            30..40 => WorkerLogLevel::Warning,
            _ => WorkerLogLevel::Error,
        };
        let (logger, batch) = (logger.map(Into::into), batch.map(Into::into));
        let source = LogSource { logger, batch, task, run, attempt };
        let line = LogLine { runner: None, level, line: line.into(), source };
        self.queue_message(WorkerMessage::Log(line));
    }

    /// Sends `Goodbye` with a reason: the worker ends.
    fn goodbye(&self, py: Python<'_>, reason: String) -> PyResult<()> {
        let reason = reason.into();
        let sent = self.send(py, WorkerMessage::Goodbye { reason });
        sent.map_err(|error| closed(py, &error))
    }
}

impl WorkerLink {
    fn report(
        &self,
        py: Python<'_>,
        runner: u32,
        incarnation: u32,
        report: WorkerReport,
    ) -> PyResult<()> {
        self.send(py, message(runner, incarnation, report)).map_err(|error| closed(py, &error))
    }

    /// Sends at once, and waits with the interpreter free while the engine is behind.
    fn send(&self, py: Python<'_>, message: WorkerMessage) -> Result<(), WorkerSendError> {
        self.at_once(py, async {
            self.outbox.send(Some(message)).await?;
            poll_tasks().await;
            Ok(())
        })
    }

    /// Runs a future on the connection; the event loop reads messages that arrive meanwhile.
    fn at_once<T: Send>(&self, py: Python<'_>, work: impl Future<Output = T> + Send) -> T {
        let done = py.detach(|| self.driver.run(work));
        self.inbox.wake_event_loop();
        done
    }

    /// Queues a message; it is sent at the next turn of the event loop, or by the companion thread.
    fn queue_message(&self, message: WorkerMessage) {
        if self.outbox.push(message) {
            self.driver.wake_companion();
        }
    }
}

fn message(runner: u32, incarnation: u32, report: WorkerReport) -> WorkerMessage {
    WorkerMessage::Runner {
        runner: RunnerId(runner),
        incarnation: Incarnation(incarnation),
        report,
    }
}

/// Returns the names of all kinds of failures.
#[pyfunction]
pub(crate) fn failure_kinds() -> Vec<&'static str> {
    FailureKind::ALL.iter().map(|kind| kind.name()).collect()
}

fn closed(py: Python<'_>, error: &WorkerSendError) -> PyErr {
    errors::plain(py, "closed", &error.to_string())
}

/// Queues messages of the engine until the stream ends; then the process must exit soon.
async fn listen(
    mut receiver: EngineReceiver,
    inbox: Arc<Inbox>,
    block_timeout: watch::Sender<Duration>,
) {
    let mut batch = Vec::with_capacity(BATCH);
    let reason = loop {
        match receiver.recv_many(&mut batch, BATCH).await {
            Ok(_) => {
                if let Some(limit) = loop_watchdog::block_timeout(&batch) {
                    block_timeout
                        .send_if_modified(|current| std::mem::replace(current, limit) != limit);
                }
                inbox.put(batch.drain(..));
            }
            Err(ended) => break ended,
        }
    };
    *inbox.ended.lock() = Some(reason.to_string());
    // Whatever keeps the interpreter busy, a worker does not outlive its engine.
    tokio::time::sleep(ORPHAN_EXIT_TIMEOUT).await;
    std::process::exit(1);
}

fn translate<'py>(py: Python<'py>, message: EngineMessage) -> PyResult<Bound<'py, PyAny>> {
    Ok(match message {
        EngineMessage::StartAttempt(start) => {
            let start = Bound::new(py, PyAttempt::new(start))?;
            ("start", start).into_pyobject(py)?.into_any()
        }
        EngineMessage::CancelAttempt { runner, incarnation, attempt, reason: _ } => {
            ("cancel", runner.0, incarnation.0, attempt.0).into_pyobject(py)?.into_any()
        }
        EngineMessage::StartRunner { runner, incarnation } => {
            ("start_runner", runner.0, incarnation.0).into_pyobject(py)?.into_any()
        }
        EngineMessage::StopRunner { runner, incarnation } => {
            ("stop_runner", runner.0, incarnation.0).into_pyobject(py)?.into_any()
        }
        EngineMessage::Shutdown { deadline } => {
            ("shutdown", deadline.as_secs_f64()).into_pyobject(py)?.into_any()
        }
    })
}
