//! Statuses of tasks as Python tuples.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rollway_core::metrics::Metrics;
use rollway_core::{Status, TaskId};

use crate::metrics;

/// A status as Python takes it: task id, runs that went well, all runs, metrics, message, failed
/// runs by kind, cancelled runs by reason.
pub(crate) fn status_row(
    py: Python<'_>,
    task: TaskId,
    status: &Status,
    metrics: &Metrics,
) -> PyResult<Py<PyAny>> {
    let failed = PyDict::new(py);
    for (kind, count) in status.failed_runs.nonzero() {
        failed.set_item(kind.name(), count)?;
    }
    let cancelled = PyDict::new(py);
    for (reason, count) in status.cancelled_runs.nonzero() {
        cancelled.set_item(reason.name(), count)?;
    }
    let metrics = metrics::to_dict(py, metrics)?;
    let (completed, total) = (status.completed_runs, status.total_runs);
    let tuple = (task.0, completed, total, metrics, status.message(), failed, cancelled);
    Ok(tuple.into_pyobject(py)?.into_any().unbind())
}
