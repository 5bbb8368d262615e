//! Operators of the experience pipeline in Python.
//!
//! An operator is an object of `rollway.operators`, which stands before the user's class: payload
//! in, payload and counts out. The interpreter is taken once for every call, in the thread of the
//! pipeline.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};
use rollway::config::Config;
use rollway_core::metrics::{Metrics, PassRate, PassRates};
use rollway_data::pipeline::{
    ArgumentError, Operator, OperatorError, OperatorOutput, OperatorRegistry, OperatorRegistryError,
};
use rollway_experience::{Experience, deserialize_many, serialize_many};
use serde_json::Value;

use crate::metrics;

/// The exception behind a configuration that was refused.
#[derive(Clone, Default)]
pub(crate) struct OperatorException(Arc<Mutex<Option<PyErr>>>);

impl OperatorException {
    fn set(&self, error: PyErr) {
        *self.0.lock() = Some(error);
    }

    pub(crate) fn take(&self) -> Option<PyErr> {
        self.0.lock().take()
    }
}

/// Returns the operators that a configuration can name: those in Rust, those that were registered
/// in Python, and those that it names as `package.module:Name`. `make` makes one of the latter, of
/// a name and its arguments as JSON.
pub(crate) fn registry(
    config: &Config,
    registered: Vec<String>,
    make: Py<PyAny>,
) -> Result<(OperatorRegistry, OperatorException), OperatorRegistryError> {
    let listed = config.data_processor.experience_pipeline.operators.iter().map(|one| &one.name);
    let named = listed.chain(&config.algorithm.advantage_fn).filter(|name| name.contains(':'));
    let mut names: Vec<String> = named.cloned().chain(registered).collect();
    names.sort_unstable();
    names.dedup();
    let (mut registry, exception, make) =
        (OperatorRegistry::built_in(), OperatorException::default(), Arc::new(make));
    for name in names {
        let (operator, exception, make) = (name.clone(), exception.clone(), Arc::clone(&make));
        registry
            .register(&name, move |args| PyOperator::make(&operator, args, &make, &exception))?;
    }
    Ok((registry, exception))
}

struct PyOperator {
    name: String,
    adapter: Py<PyAny>,
}

impl PyOperator {
    fn make(
        name: &str,
        args: &Value,
        make: &Py<PyAny>,
        exception: &OperatorException,
    ) -> Result<Box<dyn Operator>, ArgumentError> {
        let made = attached(|py| make.call1(py, (name, args.to_string())));
        let adapter = made.map_err(|error| {
            let problem = match error {
                OperatorFailed::Raised(error) => {
                    let problem = error.to_string();
                    exception.set(error);
                    problem
                }
                OperatorFailed::Ended => OperatorFailed::ENDED.to_owned(),
            };
            ArgumentError { operator: name.to_owned(), key: "cannot be made".to_owned(), problem }
        })?;
        let short = name.rsplit([':', '.']).next().unwrap_or(name);
        Ok(Box::new(Self { name: short.to_owned(), adapter }))
    }
}

/// Result of a call: experiences, metrics, dropped counts by reason, pass rates.
type OperatorReply = (PyBackedBytes, Metrics, BTreeMap<String, usize>, Vec<(u64, u64, f64, usize)>);

impl Operator for PyOperator {
    fn name(&self) -> &str {
        &self.name
    }

    fn prepare(&mut self) -> Result<(), OperatorError> {
        attached(|py| self.adapter.call_method0(py, "prepare"))
            .map(drop)
            .map_err(OperatorFailed::into_error)
    }

    fn process(&mut self, experiences: Vec<Experience>) -> Result<OperatorOutput, OperatorError> {
        let payload = serialize_many(&experiences).map_err(OperatorError::new)?;
        let call = |py: Python<'_>| -> PyResult<OperatorReply> {
            let answer =
                self.adapter.bind(py).call_method1("process", (PyBytes::new(py, &payload),))?;
            let (payload, numbers, dropped, rates): (_, Bound<'_, PyDict>, _, _) =
                answer.extract()?;
            Ok((payload, metrics::from_dict(&numbers)?, dropped, rates))
        };
        let (payload, metrics, dropped, rates) =
            attached(call).map_err(OperatorFailed::into_error)?;
        let mut returned =
            deserialize_many(Bytes::from_owner(payload)).map_err(OperatorError::new)?;
        restore(&mut returned, experiences);
        let rate = |(taskset_id, index, value, count)| PassRate { taskset_id, index, value, count };
        let selector: PassRates = rates.into_iter().map(rate).collect();
        let dropped =
            dropped.into_iter().map(|(reason, count)| (Cow::Owned(reason), count)).collect();
        Ok(OperatorOutput { experiences: returned, metrics, dropped, selector })
    }

    fn close(&mut self) {
        if let Err(error) = attached(|py| self.adapter.call_method0(py, "close")) {
            tracing::error!(operator = self.name, error = error.message(), "did not close");
        }
    }
}

/// Gives experiences back what Python does not know of.
fn restore(returned: &mut [Experience], input: Vec<Experience>) {
    let mut hidden: HashMap<String, Experience> = input
        .into_iter()
        .filter(|one| one.model_versions.is_some() || !one.custom_fields.is_empty())
        .map(|one| (one.eid.uid(), one))
        .collect();
    for one in returned {
        if let Some(input) = hidden.remove(&one.eid.uid()) {
            let same = input.response_length() == one.response_length();
            let fields = input.into_fields();
            if same {
                one.model_versions = fields.model_versions;
            }
            one.custom_fields = fields.custom_fields;
        }
    }
}

/// Reason for a missing result from Python.
enum OperatorFailed {
    Raised(PyErr),
    Ended,
}

impl OperatorFailed {
    const ENDED: &'static str = "the interpreter has ended";

    /// Returns the error and, below it, where it came from.
    fn message(&self) -> String {
        let Self::Raised(error) = self else { return Self::ENDED.to_owned() };
        let trace = Python::try_attach(|py| error.traceback(py).map(|trace| trace.format()));
        match trace.flatten() {
            Some(Ok(trace)) => format!("{error}\n{}", trace.trim_end()),
            _ => error.to_string(),
        }
    }

    fn into_error(self) -> OperatorError {
        OperatorError::new(self.message())
    }
}

fn attached<T>(call: impl FnOnce(Python<'_>) -> PyResult<T>) -> Result<T, OperatorFailed> {
    Python::try_attach(call)
        .map_or(Err(OperatorFailed::Ended), |answer| answer.map_err(OperatorFailed::Raised))
}
