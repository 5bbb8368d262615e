//! The model gateway in this process, for schedulers, coordinators and runners in Python.

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use rollway::GatewayRunKeys;
use rollway_base::Secret;
use rollway_base::ServerKind;
use rollway_gateway::gateway::{Gateway, GatewayHandle};
use rollway_gateway::models::{
    InFlightPolicy, ModelView, ServerId, ServerSpec, ServerUpdateOutcome, ServerUpdateReport,
    ServerView, WeightSource, WeightUpdate, WeightUpdateReport,
};
use tokio::runtime;

use crate::pending::PyPending;
use crate::{config, errors};

/// A server as Python describes it: the model's name, whether it is trained, the kind of server,
/// its address, its key, and what it calls the model itself.
type Server = (String, bool, String, String, Option<String>, Option<String>);

/// Default time for calls in progress to finish when the gateway stops.
const NO_TIME: Duration = Duration::ZERO;

/// A gateway that is running. It ends with the last reference to it, or when it is stopped.
#[pyclass(frozen, name = "Gateway", module = "rollway._rollway")]
pub(crate) struct PyGateway {
    gateway: Mutex<Option<Gateway>>,
    handle: GatewayHandle,
    keys: GatewayRunKeys,
    url: String,
    address: String,
    /// PEM. `None`: clear text.
    certificate: Option<String>,
    admin_key: Secret,
    /// Maximum time for a server to drain its requests and load weights.
    update_timeout: Duration,
    runtime: runtime::Handle,
}

impl PyGateway {
    /// Returns the issuer of run keys.
    pub(crate) fn keys(&self) -> GatewayRunKeys {
        self.keys.clone()
    }

    /// Base URL with `/v1`.
    pub(crate) fn base_url(&self) -> String {
        format!("{}/v1", self.url)
    }

    /// Returns the certificate with its chain, as PEM. `None`: clear text.
    pub(crate) fn certificate(&self) -> Option<&str> {
        self.certificate.as_deref()
    }

    /// Makes the servers of the trained model load weights. A cancelled wait does not stop the
    /// update, so that no server is left halfway.
    pub(crate) fn updating(
        &self,
        path: PathBuf,
        version: u64,
        in_flight: &str,
    ) -> PyResult<impl Future<Output = WeightUpdateReport> + Send + 'static> {
        let timeout = self.update_timeout;
        let in_flight = match in_flight {
            "drain" => InFlightPolicy::Drain { timeout, then_abort: false },
            "keep" => InFlightPolicy::Keep,
            "abort" => InFlightPolicy::Abort,
            other => {
                let message = format!("in_flight is `drain`, `keep` or `abort`, not `{other}`");
                return Err(PyValueError::new_err(message));
            }
        };
        let update =
            WeightUpdate { version, weights: WeightSource::Path(path), in_flight, timeout };
        let models = self.handle.models().clone();
        Ok(async move { models.update(update).await })
    }

    fn take(&self) -> Option<Gateway> {
        self.gateway.lock().take()
    }
}

#[pymethods]
impl PyGateway {
    /// Starts a gateway on the loopback, at any port, before these servers.
    #[new]
    fn new(py: Python<'_>, config_json: &str, servers: Vec<Server>) -> PyResult<Self> {
        let config = config::parse(py, config_json)?;
        let servers = servers.into_iter().map(spec).collect::<PyResult<Vec<_>>>()?;
        let (options, _) = rollway::gateway_options::options(&config)
            .map_err(|error| errors::config(py, &error))?;
        let admin_key = options.admin_key.clone();
        let runtime = crate::runtime::handle(py)?;
        let started = py.detach(|| runtime.block_on(Gateway::start(options, servers)));
        let gateway =
            started.map_err(|error| errors::plain(py, "model_unavailable", &error.to_string()))?;
        let (handle, keys) = (gateway.handle(), GatewayRunKeys::new(&gateway));
        let url = gateway.url().to_owned();
        let certificate = gateway.identity().map(|identity| identity.certificate().to_owned());
        let address = match gateway.identity() {
            Some(identity) => format!("{url}#{}", identity.fingerprint()),
            None => url.clone(),
        };
        let update_timeout = config.synchronizer.sync_timeout.into();
        let gateway = Mutex::new(Some(gateway));
        Ok(Self {
            gateway,
            handle,
            keys,
            url,
            address,
            certificate,
            admin_key,
            update_timeout,
            runtime,
        })
    }

    /// Base URL without `/v1`.
    #[getter]
    fn url(&self) -> &str {
        &self.url
    }

    /// Base URL without `/v1`, with the fingerprint of the certificate if there is one.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// The key for what belongs to no run.
    #[getter]
    fn admin_key(&self) -> &str {
        self.admin_key.reveal()
    }

    /// Lets the runs of an attempt in; returns their keys.
    fn open(&self, attempt: u64, first_run: u32, runs: u32) -> Vec<String> {
        self.handle.open(attempt, first_run, runs)
    }

    /// Closes the runs of an attempt and aborts their calls in flight.
    fn close(&self, attempt: u64) {
        self.handle.close(attempt);
    }

    /// Has the servers of the trained model load weights; returns how each of them fared.
    fn update_weights(
        &self,
        py: Python<'_>,
        path: PathBuf,
        version: u64,
        in_flight: &str,
    ) -> PyResult<PyPending> {
        let updating = self.updating(path, version, in_flight)?;
        PyPending::new(py, async move { Ok(updating.await) }, |py, report| {
            update_report(py, &report)
        })
    }

    /// Returns the servers of all models and their states.
    fn servers<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let models = self.handle.models().view();
        let servers =
            models.iter().flat_map(|model| model.servers.iter().map(move |it| (model, it)));
        servers.map(|(model, server)| server_state(py, model, server)).collect()
    }

    /// Adds a server; returns its id.
    fn add_server(&self, server: Server) -> PyResult<u64> {
        let spec = spec(server)?;
        // Its health checks are tasks of the runtime.
        let _runtime = self.runtime.enter();
        let added = self.handle.models().add(spec);
        added.map(|id| id.0).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Removes a server: its calls get this many seconds to end. Returns how many were aborted.
    fn remove_server(&self, py: Python<'_>, id: u64, timeout: f64) -> PyResult<PyPending> {
        let deadline = crate::convert::seconds(timeout)?;
        let models = self.handle.models().clone();
        let future = async move {
            models.remove(ServerId(id), deadline).await.map_err(|error| error.to_string())
        };
        PyPending::new(py, async move { Ok(future.await) }, |_, removed| {
            removed.map(|report| report.aborted).map_err(PyValueError::new_err)
        })
    }

    /// Stops after at most this many seconds for calls in flight.
    fn stop(&self, py: Python<'_>, timeout: f64) -> PyResult<PyPending> {
        let deadline = crate::convert::seconds(timeout)?;
        let gateway = self.take();
        let future = async move {
            if let Some(gateway) = gateway {
                gateway.stop(deadline).await;
            }
            Ok(())
        };
        PyPending::new(py, future, |_, ()| Ok(()))
    }
}

impl Drop for PyGateway {
    fn drop(&mut self) {
        if let Some(gateway) = self.take() {
            self.runtime.spawn(gateway.stop(NO_TIME));
        }
    }
}

/// Returns all kinds of inference servers: name, whether they return token ids, and whether they
/// update weights.
#[pyfunction]
pub(crate) fn server_kinds() -> Vec<(&'static str, bool, bool)> {
    ServerKind::ALL.map(|kind| (kind.name(), kind.has_tokens(), kind.updates_weights())).into()
}

fn spec((model, trained, engine, url, api_key, server_model): Server) -> PyResult<ServerSpec> {
    let engine = engine.parse::<ServerKind>();
    let engine = engine.map_err(|error| PyValueError::new_err(error.to_string()))?;
    let api_key = api_key.map(Secret::new).transpose();
    let api_key = api_key.map_err(|error| PyValueError::new_err(format!("{url}: {error}")))?;
    Ok(ServerSpec { model, trained, engine, url, api_key, server_model })
}

/// Returns the state of a server, for Python.
fn server_state<'py>(
    py: Python<'py>,
    model: &ModelView,
    server: &ServerView,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("id", server.id.0)?;
    dict.set_item("model", &model.name)?;
    dict.set_item("trained", model.trained)?;
    dict.set_item("engine", server.engine.name())?;
    dict.set_item("url", &server.url)?;
    dict.set_item("state", server.state.name())?;
    dict.set_item("message", server.state.to_string())?;
    dict.set_item("in_flight", server.in_flight)?;
    dict.set_item("version", server.version)?;
    dict.set_item("loaded_version", server.loaded)?;
    dict.set_item("missing", server.capabilities.describe_missing())?;
    Ok(dict)
}

/// Converts the report of an update to a dictionary.
pub(crate) fn update_report(py: Python<'_>, report: &WeightUpdateReport) -> PyResult<Py<PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("version", report.version)?;
    dict.set_item("complete", report.is_complete())?;
    dict.set_item("superseded_by", report.superseded_by)?;
    let servers = report.servers.iter().map(|server| server_report(py, server));
    dict.set_item("servers", PyList::new(py, servers.collect::<PyResult<Vec<_>>>()?)?)?;
    Ok(dict.unbind())
}

fn server_report<'py>(
    py: Python<'py>,
    server: &ServerUpdateReport,
) -> PyResult<Bound<'py, PyDict>> {
    let (outcome, message) = match &server.outcome {
        ServerUpdateOutcome::Updated => ("updated", None),
        ServerUpdateOutcome::AlreadyCurrent => ("already_current", None),
        ServerUpdateOutcome::RolledBack(reason) => ("rolled_back", Some(reason)),
        ServerUpdateOutcome::Broken(reason) => ("broken", Some(reason)),
        ServerUpdateOutcome::Skipped(reason) => ("skipped", Some(reason)),
    };
    let dict = PyDict::new(py);
    dict.set_item("url", &server.url)?;
    dict.set_item("outcome", outcome)?;
    dict.set_item("message", message)?;
    dict.set_item("seconds", server.took.as_secs_f64())?;
    dict.set_item("in_flight", server.in_flight)?;
    dict.set_item("aborted", server.aborted)?;
    Ok(dict)
}

/// Returns `true` if a server has the new weights.
pub(crate) fn has_it(server: &ServerUpdateReport) -> bool {
    matches!(server.outcome, ServerUpdateOutcome::Updated | ServerUpdateOutcome::AlreadyCurrent)
}
