//! Batch ids: an `int` or a `str` in Python.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyString};
use rollway_core::{BatchId, BatchStep};

/// A batch id on its way in or out.
pub(crate) struct PyBatchId(pub(crate) BatchId);

impl<'a, 'py> FromPyObject<'a, 'py> for PyBatchId {
    type Error = PyErr;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = value.cast::<PyString>() {
            return Ok(Self(BatchId::Text(text.to_str()?.into())));
        }
        // What counts as an index counts as a number: NumPy's integers do, 1.5 does not.
        let index = value.getattr("__index__").and_then(|index| index.call0()).map_err(|_| {
            let kind = value.get_type();
            PyTypeError::new_err(format!("a batch id is an int or a str, not {kind}"))
        })?;
        index.cast::<PyInt>()?.extract().map(|number| Self(BatchId::Number(number))).map_err(|_| {
            PyValueError::new_err(format!("batch id {index} does not fit into 64 bits"))
        })
    }
}

impl<'py> IntoPyObject<'py> for PyBatchId {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self.0 {
            BatchId::Number(number) => number.into_pyobject(py)?.into_any(),
            BatchId::Text(text) => PyString::new(py, &text).into_any(),
        })
    }
}

/// Returns the sort key of a batch id; see `rollway.sort_batch_id`.
#[pyfunction]
pub(crate) fn sort_batch_id(py: Python<'_>, batch_id: PyBatchId) -> PyResult<(Py<PyAny>, u8)> {
    let priority = batch_id.0.priority();
    let step = match priority.step {
        BatchStep::At(number) => number.into_pyobject(py)?.into_any(),
        BatchStep::Last => f64::INFINITY.into_pyobject(py)?.into_any(),
    };
    Ok((step.unbind(), priority.text.into()))
}
