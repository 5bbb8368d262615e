//! An attempt, as a worker in Python sees it.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rollway_base::Secret;
use rollway_protocol::StartAttempt;

use crate::batch_id::PyBatchId;

/// An attempt to execute.
#[pyclass(frozen, name = "Start", module = "rollway._rollway")]
pub(crate) struct PyAttempt(StartAttempt);

impl PyAttempt {
    pub(super) fn new(start: StartAttempt) -> Self {
        Self(start)
    }
}

#[pymethods]
impl PyAttempt {
    /// Identity of the attempt: runner, incarnation, attempt id.
    #[getter]
    fn name(&self) -> (u32, u32, u64) {
        (self.0.runner.0, self.0.incarnation.0, self.0.attempt.0)
    }

    #[getter]
    fn batch_id(&self) -> PyBatchId {
        PyBatchId(self.0.batch.clone())
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
        self.0.kind == rollway_core::BatchType::Eval
    }

    #[getter]
    fn task<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.task)
    }

    /// Id of the workflow definition on this connection.
    #[getter]
    fn definition_id(&self) -> u64 {
        self.0.definition.id.0
    }

    /// Encoding of the task: `json`, `pickle` or as agreed.
    #[getter]
    fn task_encoding(&self) -> &str {
        &self.0.definition.task_encoding
    }

    /// The workflow: its name, its encoding and its body.
    #[getter]
    fn definition<'py>(&self, py: Python<'py>) -> (String, String, Bound<'py, PyBytes>) {
        let definition = &self.0.definition;
        let body = PyBytes::new(py, &definition.body);
        (definition.name.to_string(), definition.encoding.to_string(), body)
    }

    #[getter]
    fn suspected_losses(&self) -> u32 {
        self.0.suspected_losses
    }

    /// Run keys for the model gateway, one for each run in order. Empty: no gateway.
    #[getter]
    fn model_keys(&self) -> Vec<&str> {
        self.0.model_keys.iter().map(Secret::reveal).collect()
    }
}
