//! The one tokio runtime of the process, started when it is first needed, and the thread that calls
//! into Python for it.
//!
//! Threads of the runtime never attach to Python: attaching is slow, and a user's code that keeps
//! the interpreter to itself would stop the engine. What Python is to do for them goes to
//! `rollway-python`, a thread that is attached as long as there is something to do.

use std::num::NonZero;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::{errors, log};

/// A Python call on behalf of a thread that is not attached to the interpreter.
pub(crate) type PyJob = Box<dyn FnOnce(Python<'_>) + Send>;

/// Maximum threads of an engine.
const MAX_THREADS: usize = 4;

/// Maximum time for running tasks to end when the interpreter exits.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);

struct Started {
    runtime: Runtime,
    /// Not bounded: there is one job at most for every call that waits, and for every line of a
    /// log that was let in.
    jobs: Sender<PyJob>,
}

static STARTED: Mutex<Option<Started>> = Mutex::new(None);

/// The process in which it was started; 0 before that. A thread that is not here any more may have
/// held the lock when this process was forked, so that this is looked at first.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Returns `true` if this process was forked from the one that has the runtime.
fn is_forked() -> bool {
    let process = PROCESS.load(Ordering::Relaxed);
    process != 0 && process != process::id()
}

fn started() -> MutexGuard<'static, Option<Started>> {
    STARTED.lock()
}

/// Returns the runtime. A few processors have more to do than to pass work to each other: what the
/// engine does for an attempt is shorter than waking another thread for it.
pub(crate) fn handle(py: Python<'_>) -> PyResult<Handle> {
    let cores = thread::available_parallelism().map_or(2, NonZero::get);
    start(py, (cores / 4).clamp(1, MAX_THREADS))
}

/// Returns the runtime, which begins with this many threads if it has not begun.
pub(crate) fn start(py: Python<'_>, threads: usize) -> PyResult<Handle> {
    if is_forked() {
        let message = "this process was forked from one in which rollway was in use: its threads \
                       do not exist here. Start processes with `spawn` or `forkserver`";
        return Err(errors::plain(py, "forked", message));
    }
    let mut started = started();
    if let Some(Started { runtime, .. }) = &*started {
        return Ok(runtime.handle().clone());
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("rollway")
        .enable_all()
        .build()?;
    let (jobs, inbox) = channel::<PyJob>();
    thread::Builder::new().name("rollway-python".to_owned()).spawn(move || {
        while let Ok(first) = inbox.recv() {
            let attached = Python::try_attach(|py| {
                first(py);
                while let Ok(next) = inbox.try_recv() {
                    next(py);
                }
            });
            if attached.is_none() {
                return;
            }
        }
    })?;
    log::install();
    let handle = runtime.handle().clone();
    PROCESS.store(process::id(), Ordering::Relaxed);
    *started = Some(Started { runtime, jobs });
    Ok(handle)
}

/// Queues a Python call; calls run in order. Dropped without an error when the interpreter exits.
pub(crate) fn in_python(job: impl FnOnce(Python<'_>) + Send + 'static) {
    if !is_forked()
        && let Some(Started { jobs, .. }) = &*started()
    {
        let _ = jobs.send(Box::new(job));
    }
}

/// Returns the version of the engine.
#[pyfunction]
pub(crate) fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Ends everything, worker processes included. Called when the interpreter ends.
#[pyfunction]
pub(crate) fn shutdown(py: Python<'_>) {
    if is_forked() {
        return;
    }
    let started_runtime = started().take();
    PROCESS.store(0, Ordering::Relaxed);
    if let Some(Started { runtime, .. }) = started_runtime {
        py.detach(|| runtime.shutdown_timeout(SHUTDOWN_TIMEOUT));
    }
}
