//! Calls of models, for code in Python: one request to the gateway, waited for like everything
//! else. A cancelled wait aborts the request.

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use rollway::{Answer, Client};
use rollway_net::tls::split_url;
use tokio::task::JoinHandle;

use crate::pending::PyPending;
use crate::{errors, runtime};

/// A client of one gateway. Connections are shared by all runs of the process.
#[pyclass(frozen, module = "rollway._rollway")]
pub(crate) struct ModelClient {
    url: String,
    client: Client,
    runtime: tokio::runtime::Handle,
}

#[pymethods]
impl ModelClient {
    /// Returns a client of the gateway at an address without `/v1`, which may have the fingerprint
    /// of a certificate: `https://HOST:PORT#FINGERPRINT`. Nothing is connected yet.
    #[new]
    fn new(py: Python<'_>, url: String) -> PyResult<Self> {
        let runtime = runtime::handle(py)?;
        let wrong = |error: String| errors::plain(py, "model_unavailable", &error);
        // Without a fingerprint: a worker makes the certificate a root of its process.
        let (url, fingerprint) = split_url(&url).map_err(|error| wrong(error.to_string()))?;
        let client = Client::of(url, fingerprint).map_err(wrong)?;
        let url = url.to_owned();
        Ok(Self { url, client, runtime })
    }

    /// Posts a body to a path, or gets the path if there is none, with a key. The answer is the
    /// status, the version of the model, the number of turns and the body.
    fn call(
        &self,
        py: Python<'_>,
        path: &str,
        key: String,
        body: Option<PyBackedBytes>,
    ) -> PyResult<PyPending> {
        let (client, url) = (self.client.clone(), format!("{}{path}", self.url));
        let body = body.map(Bytes::from_owner);
        let asking = async move { client.call(&url, &key, body).await };
        // One wake of Python for the whole answer, however many pieces it comes in.
        let task = PyTask(self.runtime.spawn(asking));
        let raise =
            |py: Python<'_>, message: String| errors::plain(py, "model_unavailable", &message);
        PyPending::with_errors(py, task.join(), raise, |py, answer: Answer| {
            let Answer { status, version, turns, body } = answer;
            Ok((status, version, turns, PyBytes::new(py, &body).unbind()))
        })
    }
}

/// A request in progress. Dropping it aborts the request.
struct PyTask(JoinHandle<Result<Answer, String>>);

impl PyTask {
    async fn join(mut self) -> Result<Answer, String> {
        let joined = (&mut self.0).await;
        joined.unwrap_or_else(|error| Err(format!("the call was cancelled: {error}")))
    }
}

impl Drop for PyTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}
