//! Errors on their way to Python: the only place where they are translated.
//!
//! The exceptions themselves are declared in `rollway/errors.py`; here they get their data.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rollway::config::ConfigError;
use rollway::explorer::ExplorerError;
use rollway::workflow_runtime::WorkflowSetupErrorKind;
use rollway_core::Refusal;
use rollway_experience::PayloadError;

use crate::batch_id::PyBatchId;

/// Raises the exception with this code.
pub(crate) fn raise(py: Python<'_>, code: &str, message: &str, data: &Bound<'_, PyDict>) -> PyErr {
    let made = py
        .import("rollway.errors")
        .and_then(|errors| errors.getattr("make"))
        .and_then(|make| make.call1((code, message, data)));
    match made {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

/// Raises the exception with this code, which has no data.
pub(crate) fn plain(py: Python<'_>, code: &str, message: &str) -> PyErr {
    raise(py, code, message, &PyDict::new(py))
}

/// Returns an error of the engine as an exception.
pub(crate) fn engine(py: Python<'_>, error: &rollway::Error) -> PyErr {
    let data = match error {
        rollway::Error::Refused(refusal) => match refusal_data(py, refusal) {
            Ok(data) => data,
            Err(error) => return error,
        },
        rollway::Error::Closed
        | rollway::Error::NoPipeline
        | rollway::Error::Pipeline(_)
        | rollway::Error::Ledger(_) => PyDict::new(py),
    };
    raise(py, error.code(), &error.to_string(), &data)
}

fn refusal_data<'py>(py: Python<'py>, refusal: &Refusal) -> PyResult<Bound<'py, PyDict>> {
    let data = PyDict::new(py);
    if let Some(batch) = batch_of(refusal) {
        data.set_item("batch_id", PyBatchId(batch.clone()))?;
    }
    match refusal {
        Refusal::AlreadyActive { batch: _ }
        | Refusal::NotRegistered { batch: _ }
        | Refusal::NotCollectable { batch: _ }
        | Refusal::NotStarted
        | Refusal::Stopped => {}
        Refusal::WrongBatchType { batch: _, kind, expected } => {
            data.set_item("batch_type", kind.to_string())?;
            data.set_item("expected", expected.to_string())?;
        }
        Refusal::NoRuns { task } => data.set_item("task", task)?,
        Refusal::Limit { limit, value, max } => {
            data.set_item("limit", limit)?;
            data.set_item("value", value)?;
            data.set_item("max", max)?;
        }
        Refusal::TimedOut { batch: _, state, finished, needed, expected, serving } => {
            data.set_item("state", state.to_string())?;
            data.set_item("serving", serving)?;
            set_counts(&data, *finished, *needed, *expected)?;
        }
        Refusal::TasksCancelled { batch: _, finished, needed, expected } => {
            set_counts(&data, *finished, *needed, *expected)?;
        }
        Refusal::WaitAllTimedOut { pending, running } => {
            data.set_item("pending", pending)?;
            data.set_item("running", running)?;
        }
        Refusal::Aborted { batch: _, reason } => data.set_item("reason", &**reason)?,
        Refusal::BatchFailed { batch: _, kind, message } => {
            data.set_item("kind", kind.name())?;
            data.set_item("message", &**message)?;
        }
        Refusal::SinkFailed { batch: _, message } => data.set_item("message", &**message)?,
        Refusal::TooFewSucceeded { batch: _, succeeded, needed } => {
            data.set_item("succeeded", succeeded)?;
            data.set_item("needed", needed)?;
        }
    }
    Ok(data)
}

fn set_counts(data: &Bound<'_, PyDict>, finished: u64, needed: u64, expected: u64) -> PyResult<()> {
    data.set_item("finished", finished)?;
    data.set_item("needed", needed)?;
    data.set_item("expected", expected)
}

fn batch_of(refusal: &Refusal) -> Option<&rollway_core::BatchId> {
    match refusal {
        Refusal::AlreadyActive { batch }
        | Refusal::NotRegistered { batch }
        | Refusal::WrongBatchType { batch, .. }
        | Refusal::NotCollectable { batch }
        | Refusal::TimedOut { batch, .. }
        | Refusal::TasksCancelled { batch, .. }
        | Refusal::Aborted { batch, .. }
        | Refusal::BatchFailed { batch, .. }
        | Refusal::SinkFailed { batch, .. }
        | Refusal::TooFewSucceeded { batch, .. } => Some(batch),
        Refusal::NoRuns { .. }
        | Refusal::Limit { .. }
        | Refusal::NotStarted
        | Refusal::Stopped
        | Refusal::WaitAllTimedOut { .. } => None,
    }
}

/// Returns what ended an explorer as an exception.
pub(crate) fn explorer(py: Python<'_>, error: &ExplorerError) -> PyErr {
    let data = PyDict::new(py);
    let code = match error {
        ExplorerError::Config(error) => return config(py, error),
        ExplorerError::Engine(error) => return engine(py, error),
        ExplorerError::Tasks(_) => "taskset",
        ExplorerError::Pipeline(_) | ExplorerError::Sink(_) => "pipeline_failed",
        ExplorerError::Workflow(error) if error.kind == WorkflowSetupErrorKind::Cluster => {
            "cluster"
        }
        ExplorerError::Workflow(error) => {
            if let Err(error) = data.set_item("kind", error.kind.code()) {
                return error;
            }
            "workflow_unavailable"
        }
        ExplorerError::NoServer { .. } => "model_unavailable",
        ExplorerError::Short { step, .. } => {
            if let Err(error) = data.set_item("step", step) {
                return error;
            }
            "too_few_tasks"
        }
        ExplorerError::TrainerFailed(_) => "trainer_failed",
        ExplorerError::NoWeights { step, at_least, .. } => {
            let set =
                data.set_item("step", step).and_then(|()| data.set_item("at_least", at_least));
            if let Err(error) = set {
                return error;
            }
            "no_weights"
        }
        ExplorerError::Stale { .. }
        | ExplorerError::LostWeights { .. }
        | ExplorerError::Weights(_) => "weights",
        _ => "explorer",
    };
    raise(py, code, &error.to_string(), &data)
}

/// Returns everything that is wrong with a configuration as one exception.
pub(crate) fn config(py: Python<'_>, error: &ConfigError) -> PyErr {
    let data = PyDict::new(py);
    let problems: Vec<String> = error.problems().iter().map(ToString::to_string).collect();
    let keys: Vec<&str> = error.problems().iter().map(|problem| &*problem.key).collect();
    match data.set_item("problems", problems).and_then(|()| data.set_item("keys", keys)) {
        Ok(()) => raise(py, "config", &error.to_string(), &data),
        Err(error) => error,
    }
}

/// Returns what is wrong with a payload as an exception.
pub(crate) fn payload(py: Python<'_>, error: &PayloadError) -> PyErr {
    plain(py, "invalid_payload", &error.to_string())
}
