//! The embedded model's server in this process.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};
use rollway::tiny::{GenerationCounts, ModelWeights, TinyServer, TinyServerOptions, arithmetic};
use rollway_base::Secret;
use tokio::runtime::Handle;

use crate::pending::PyPending;
use crate::{errors, runtime};

/// A server of the embedded model. It ends with the last reference to it, or when it is stopped.
#[pyclass(frozen, name = "TinyServer", module = "rollway._rollway")]
pub(crate) struct PyTinyServer {
    server: Mutex<Option<TinyServer>>,
    url: String,
    key: Secret,
    runtime: Handle,
}

impl PyTinyServer {
    fn server(&self) -> MutexGuard<'_, Option<TinyServer>> {
        self.server.lock()
    }
}

#[pymethods]
impl PyTinyServer {
    /// Starts a server on the loopback, at any port, with a random key and with the weights in a
    /// file, or those that came with the program.
    #[new]
    fn new(
        py: Python<'_>,
        model: String,
        weights: Option<PathBuf>,
        version: u64,
        seed: u64,
    ) -> PyResult<Self> {
        let key = Secret::random()?;
        let api_key = Some(key.clone());
        let mut options =
            TinyServerOptions { model, version, seed, api_key, ..TinyServerOptions::default() };
        if let Some(path) = weights {
            let loaded = py.detach(|| ModelWeights::load(&path));
            let loaded =
                loaded.map_err(|error| errors::plain(py, "weights", &error.to_string()))?;
            options.weights = Arc::new(loaded);
        }
        let runtime = runtime::handle(py)?;
        let _guard = runtime.enter();
        let server = TinyServer::start(options)?;
        let url = server.url();
        Ok(Self { server: Mutex::new(Some(server)), url, key, runtime: runtime.clone() })
    }

    /// Writes the weights that came with the program to a file.
    #[staticmethod]
    fn export(py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let written = py.detach(|| arithmetic().0.save(&path));
        written.map_err(|error| errors::plain(py, "weights", &error.to_string()))
    }

    /// Base URL without `/v1`.
    #[getter]
    fn url(&self) -> &str {
        &self.url
    }

    /// Key of all requests but health checks.
    #[getter]
    fn api_key(&self) -> &str {
        self.key.reveal()
    }

    /// Version of the weights. `None`: stopped.
    #[getter]
    fn version(&self) -> Option<String> {
        self.server().as_ref().map(|server| server.version().to_string())
    }

    /// Request counters; all zero if stopped.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.server().as_ref().map(TinyServer::counts).unwrap_or_default();
        named(&counts).into_py_dict(py)
    }

    /// Stops the server; running requests fail.
    fn stop(&self, py: Python<'_>) -> PyResult<PyPending> {
        let server = self.server().take();
        let future = async move {
            if let Some(server) = server {
                server.stop().await;
            }
            Ok(())
        };
        PyPending::new(py, future, |_, ()| Ok(()))
    }
}

impl Drop for PyTinyServer {
    fn drop(&mut self) {
        // What it does when it ends belongs to the runtime.
        let _guard = self.runtime.enter();
        drop(self.server().take());
    }
}

const fn named(counts: &GenerationCounts) -> [(&'static str, u64); 8] {
    [
        ("requests", counts.requests),
        ("answered", counts.answered),
        ("aborted", counts.aborted),
        ("left", counts.left),
        ("refused", counts.refused),
        ("tokens", counts.tokens),
        ("steps", counts.steps),
        ("updates", counts.updates),
    ]
}
