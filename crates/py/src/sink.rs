//! Sinks for experiences: the configured pipeline, or a Python function that takes payloads and
//! returns metrics.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use rollway::config::Config;
use rollway::{BatchDelivery, DeliveryResult, PipelineSink, Sink};
use rollway_core::metrics::Metrics;

use crate::batch_id::PyBatchId;
use crate::{errors, metrics, operator};

/// Makes the sink of a configuration; its operators in Python are made here too.
pub(crate) fn pipeline(
    py: Python<'_>,
    config: &Config,
    names: Vec<String>,
    make: Py<PyAny>,
) -> PyResult<PipelineSink> {
    let refused = |message: String| errors::plain(py, "config", &message);
    let (registry, exception) =
        operator::registry(config, names, make).map_err(|error| refused(error.to_string()))?;
    PipelineSink::new(config, &registry).map_err(|error| {
        let refused = refused(error.to_string());
        refused.set_cause(py, exception.take());
        refused
    })
}

/// Hands payloads to a Python function `(batch_id, incarnation, payloads) -> metrics or None`.
pub(crate) struct PySink {
    deliver: Arc<Py<PyAny>>,
}

impl PySink {
    pub(crate) fn new(deliver: Py<PyAny>) -> Self {
        Self { deliver: Arc::new(deliver) }
    }

    async fn call(&self, batch: Option<(PyBatchId, u64)>, payloads: Vec<Bytes>) -> DeliveryResult {
        let deliver = Arc::clone(&self.deliver);
        // A thread that may block: threads of the runtime never wait for the interpreter.
        let called = tokio::task::spawn_blocking(move || {
            Python::try_attach(|py| {
                call(py, &deliver, batch, &payloads).map_err(|error| error.to_string())
            })
            .unwrap_or_else(|| Err("the interpreter has ended".to_owned()))
        });
        called.await.unwrap_or_else(|error| Err(error.to_string()))
    }
}

fn call(
    py: Python<'_>,
    deliver: &Py<PyAny>,
    batch: Option<(PyBatchId, u64)>,
    payloads: &[Bytes],
) -> PyResult<Metrics> {
    let (batch, incarnation) = batch.unzip();
    let payloads = PyList::new(py, payloads.iter().map(|payload| PyBytes::new(py, payload)))?;
    let answer = deliver.call1(py, (batch, incarnation, payloads))?;
    let answer = answer.bind(py);
    if answer.is_none() { Ok(Metrics::new()) } else { metrics::from_dict(answer.cast::<PyDict>()?) }
}

impl Sink for PySink {
    fn deliver(
        &self,
        delivery: BatchDelivery,
    ) -> Pin<Box<dyn Future<Output = DeliveryResult> + Send + '_>> {
        let BatchDelivery { batch, key, results } = delivery;
        let payloads = results.into_iter().flat_map(|result| result.payloads).collect();
        Box::pin(self.call(Some((PyBatchId(batch), key.0)), payloads))
    }

    fn process(
        &self,
        payloads: Vec<Bytes>,
    ) -> Pin<Box<dyn Future<Output = DeliveryResult> + Send + '_>> {
        Box::pin(self.call(None, payloads))
    }
}
