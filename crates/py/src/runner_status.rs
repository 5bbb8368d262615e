//! Runner status as Python dictionaries.

use std::future::Future;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rollway::{Error, RunnerStatus};

use crate::batch_id::PyBatchId;
use crate::pending::PyPending;

/// A runner: its number, the engine's status of it, and its own labels.
type Row = (u32, Py<PyDict>, Py<PyDict>);

/// Waits for the runners, and returns them in order: those that are stuck first.
pub(crate) fn pending(
    py: Python<'_>,
    runners: impl Future<Output = Result<Vec<RunnerStatus>, Error>> + Send + 'static,
) -> PyResult<PyPending> {
    PyPending::new(py, runners, |py, runners| list(py, &runners))
}

/// Returns the status of each runner with its id.
pub(crate) fn list(py: Python<'_>, runners: &[RunnerStatus]) -> PyResult<Vec<Row>> {
    runners
        .iter()
        .map(|one| Ok((one.runner.0, known_status(py, one)?, status_dict(py, one)?)))
        .collect()
}

/// Status known to the engine.
fn known_status(py: Python<'_>, one: &RunnerStatus) -> PyResult<Py<PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("state", one.state.name())?;
    dict.set_item("stuck", one.stuck)?;
    dict.set_item("age", one.age.as_secs_f64())?;
    dict.set_item("incarnation", one.incarnation.0)?;
    if let Some(batch) = &one.batch {
        dict.set_item("batch_id", PyBatchId(batch.clone()))?;
        dict.set_item("task_id", one.task.map(|task| task.0))?;
        dict.set_item("run_id", one.run.map(|run| run.0))?;
        let runs: Vec<u32> = one.runs.iter().map(|run| run.0).collect();
        dict.set_item("run_ids", runs)?;
        dict.set_item("attempt", one.attempt.map(|attempt| attempt.0))?;
        dict.set_item("calls", one.calls)?;
    }
    if let Some(stage) = &one.stage {
        dict.set_item("stage", stage)?;
        dict.set_item("stage_seconds", one.stage_for.map(|lasted| lasted.as_secs_f64()))?;
    }
    if let Some(typical) = one.typical_duration {
        dict.set_item("typical_seconds", typical.as_secs_f64())?;
    }
    let texts = [
        ("code_location", one.code_location.as_deref()),
        ("model", one.model.as_deref()),
        ("server", one.server.as_deref()),
        ("location", one.node.as_deref()),
        ("message", one.message.as_deref()),
    ];
    for (name, text) in texts.into_iter().filter(|(_, text)| text.is_some()) {
        dict.set_item(name, text)?;
    }
    dict.set_item("silent_for", one.since_report.as_secs_f64())?;
    Ok(dict.unbind())
}

/// Labels reported by the runner.
fn status_dict(py: Python<'_>, one: &RunnerStatus) -> PyResult<Py<PyDict>> {
    let dict = PyDict::new(py);
    for (key, value) in &one.labels {
        dict.set_item(key, value)?;
    }
    Ok(dict.unbind())
}
