//! Snapshots of tasks and pending batches as Python tuples; `rollway.explorer` makes its data
//! classes of them.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use rollway::{PendingBatch, RunningTask, TaskSnapshot};

use crate::batch_id::PyBatchId;
use crate::metrics;
use crate::status::status_row;

/// Returns snapshots as dictionaries.
pub(crate) fn list(py: Python<'_>, tasks: &[TaskSnapshot]) -> PyResult<Vec<Py<PyDict>>> {
    tasks.iter().map(|task| Ok(dict(py, task)?.unbind())).collect()
}

/// Returns each busy runner with the snapshot of its task.
pub(crate) fn running(py: Python<'_>, tasks: &[RunningTask]) -> PyResult<Vec<(u32, Py<PyDict>)>> {
    tasks.iter().map(|one| Ok((one.runner.0, dict(py, &one.task)?.unbind()))).collect()
}

fn dict<'py>(py: Python<'py>, snapshot: &TaskSnapshot) -> PyResult<Bound<'py, PyDict>> {
    let TaskSnapshot { batch, kind, task, view, payloads } = snapshot;
    let dict = PyDict::new(py);
    dict.set_item("batch_id", PyBatchId(batch.clone()))?;
    dict.set_item("task_id", view.task.0)?;
    dict.set_item("is_eval", task.is_eval)?;
    dict.set_item("workflow", &*task.workflow)?;
    let definition = task.definition.as_ref().map(|definition| {
        let body = PyBytes::new(py, &definition.body);
        (definition.encoding.to_string(), body, definition.task_encoding.to_string())
    });
    dict.set_item("definition", definition)?;
    dict.set_item("body", PyBytes::new(py, &task.body))?;
    dict.set_item("total_runs", view.total_runs)?;
    dict.set_item("completed_runs", view.completed_runs)?;
    dict.set_item("slices", view.slices)?;
    dict.set_item("ended_slices", view.ended_slices)?;
    let runs = view.run_metrics.iter().map(|run| metrics::to_dict(py, run));
    dict.set_item("metrics", runs.collect::<PyResult<Vec<_>>>()?)?;
    let payloads = payloads.iter().map(|payload| PyBytes::new(py, payload));
    dict.set_item("payloads", PyList::new(py, payloads.collect::<Vec<_>>())?)?;
    dict.set_item("first_error", view.first_error.as_ref().map(ToString::to_string))?;
    let status = view.status.as_ref();
    let status = status.map(|status| status_row(py, view.task, status, &status.metrics(*kind)));
    dict.set_item("status", status.transpose()?)?;
    Ok(dict)
}

/// Returns pending batches as dictionaries.
pub(crate) fn batches(py: Python<'_>, batches: &[PendingBatch]) -> PyResult<Vec<Py<PyDict>>> {
    let row = |pending: &PendingBatch| {
        let dict = PyDict::new(py);
        let kind = pending.view.kind;
        dict.set_item("batch_id", PyBatchId(pending.view.batch.clone()))?;
        dict.set_item("batch_type", kind.to_string())?;
        dict.set_item("state", pending.state.to_string())?;
        dict.set_item("min_wait_num", pending.min_wait_num)?;
        dict.set_item("expected_task_count", pending.expected_tasks)?;
        let ended =
            pending.ended.iter().filter_map(|task| Some((task.task, task.status.as_ref()?)));
        let statuses =
            ended.map(|(task, status)| status_row(py, task, status, &status.metrics(kind)));
        dict.set_item("statuses", statuses.collect::<PyResult<Vec<_>>>()?)?;
        Ok(dict.unbind())
    };
    batches.iter().map(row).collect()
}
