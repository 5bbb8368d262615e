//! Observer that calls a Python function for every ended task.
//!
//! It keeps the payloads of open tasks (shared, not copied) until the task ends. Calls are made in
//! order by the thread `rollway-python`; if more than `MAX_PENDING_CALLS` wait, further ones are
//! dropped and the next call reports their number.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use rollway::events::{RunEvent, RunEventKind, RunObserver};
use rollway_core::{
    AttemptId, BatchId, BatchKey, BatchState, BatchType, RunId, RunnerId, Status, TaskId,
};

use crate::batch_id::PyBatchId;
use crate::runtime;
use crate::status::status_row;

/// Maximum number of calls that wait for the interpreter.
const MAX_PENDING_CALLS: u64 = 65_536;

/// State of one open task.
#[derive(Debug, Default)]
struct OpenTask {
    /// Runner of the newest attempt.
    runner: Option<RunnerId>,
    payloads: BTreeMap<RunId, Bytes>,
}

#[derive(Debug, Default)]
struct OpenTasks {
    batches: HashMap<BatchKey, (BatchId, BatchType)>,
    attempts: HashMap<AttemptId, (BatchKey, TaskId)>,
    tasks: HashMap<(BatchKey, TaskId), OpenTask>,
}

/// Calls `(batch_id, status_row, payloads, runner_id, seconds, dropped_calls)` per ended task.
pub(crate) struct TaskDoneObserver {
    callback: Arc<Py<PyAny>>,
    open: Mutex<OpenTasks>,
    pending: Arc<AtomicU64>,
    dropped: AtomicU64,
}

impl fmt::Debug for TaskDoneObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskDoneObserver").finish_non_exhaustive()
    }
}

impl TaskDoneObserver {
    pub(crate) fn new(callback: Py<PyAny>) -> Self {
        Self {
            callback: Arc::new(callback),
            open: Mutex::default(),
            pending: Arc::default(),
            dropped: AtomicU64::new(0),
        }
    }

    fn call(&self, batch: (BatchId, BatchType), task: TaskId, done: OpenTask, status: Arc<Status>) {
        if self.pending.load(Ordering::Relaxed) >= MAX_PENDING_CALLS {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        let (callback, pending) = (Arc::clone(&self.callback), Arc::clone(&self.pending));
        pending.fetch_add(1, Ordering::Relaxed);
        runtime::in_python(move |py| {
            pending.fetch_sub(1, Ordering::Relaxed);
            let call = || -> PyResult<()> {
                let row = status_row(py, task, &status, &status.metrics(batch.1))?;
                let payloads = done.payloads.values().map(|payload| PyBytes::new(py, payload));
                let payloads = PyList::new(py, payloads.collect::<Vec<_>>())?;
                let seconds: f64 = status.attempt_seconds.iter().sum();
                let runner = done.runner.map(|runner| runner.0);
                let batch = PyBatchId(batch.0.clone());
                callback.call1(py, (batch, row, payloads, runner, seconds, dropped)).map(drop)
            };
            if let Err(error) = call() {
                error.write_unraisable(py, Some(callback.bind(py)));
            }
        });
    }
}

impl RunObserver for TaskDoneObserver {
    fn observe(&self, seen: &[RunEvent]) {
        let mut open = self.open.lock();
        for event in seen {
            match &event.what {
                RunEventKind::BatchBegan { batch, key, kind, .. } => {
                    open.batches.insert(*key, (batch.clone(), *kind));
                }
                RunEventKind::AttemptSent { attempt, key, task, runner, .. } => {
                    open.attempts.insert(*attempt, (*key, *task));
                    open.tasks.entry((*key, *task)).or_default().runner = Some(*runner);
                }
                RunEventKind::RunReported { attempt, run, end: Ok(output) } => {
                    if let (Some(payload), Some(of)) =
                        (&output.payload, open.attempts.get(attempt).copied())
                    {
                        let task = open.tasks.entry(of).or_default();
                        task.payloads.insert(*run, payload.clone());
                    }
                }
                RunEventKind::AttemptEnded { attempt, .. } => {
                    open.attempts.remove(attempt);
                }
                RunEventKind::TaskEnded { key, task, status, dropped } => {
                    let mut done = open.tasks.remove(&(*key, *task)).unwrap_or_default();
                    if dropped.is_some() {
                        done.payloads.clear();
                    }
                    if let Some(batch) = open.batches.get(key).cloned() {
                        self.call(batch, *task, done, Arc::clone(status));
                    }
                }
                RunEventKind::BatchStateChanged {
                    key,
                    state: BatchState::Finalized | BatchState::Aborted,
                } => {
                    open.batches.remove(key);
                    open.tasks.retain(|(batch, _), _| batch != key);
                }
                _ => {}
            }
        }
    }
}
