//! Calls of models, for code in Python: one request to the gateway, waited for like everything
//! else. Whoever stops waiting ends the request.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Request};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use tokio::task::JoinHandle;

use crate::pending::Pending;
use crate::{errors, runtime};

/// The largest answer, in bytes; the gateway itself keeps less of a run.
const ANSWER_MAX: usize = 1 << 30;

/// How long connecting to the gateway may take. It is on this machine.
const CONNECT: Duration = Duration::from_secs(10);

/// How many idle connections are kept.
const IDLE_MAX: usize = 64;

/// A client of one gateway. Connections are shared by all runs of the process.
#[pyclass(frozen, module = "rollway._rollway")]
pub(crate) struct ModelClient {
    url: String,
    client: Client<HttpConnector, Full<Bytes>>,
    runtime: tokio::runtime::Handle,
}

/// What came back: the status, the version of the model, the number of turns, and the body.
type Answer = (u16, Option<u64>, Option<u64>, Bytes);

#[pymethods]
impl ModelClient {
    /// Returns a client of the gateway at an address without `/v1`. Nothing is connected yet.
    #[new]
    fn new(py: Python<'_>, url: String) -> PyResult<Self> {
        let runtime = runtime::handle(py)?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT));
        let client =
            Client::builder(TokioExecutor::new()).pool_max_idle_per_host(IDLE_MAX).build(connector);
        Ok(Self { url, client, runtime })
    }

    /// Posts a body to a path, or gets the path if there is none, with a key. The answer is the
    /// status, the version of the model, the number of turns and the body.
    fn call(
        &self,
        py: Python<'_>,
        path: &str,
        key: &str,
        body: Option<PyBackedBytes>,
    ) -> PyResult<Pending> {
        let wrong = |error: String| PyValueError::new_err(format!("{}{path}: {error}", self.url));
        let method = if body.is_some() { Method::POST } else { Method::GET };
        let body = body.map(Bytes::from_owner).unwrap_or_default();
        let mut key = HeaderValue::from_str(&format!("Bearer {key}"))
            .map_err(|error| wrong(error.to_string()))?;
        key.set_sensitive(true);
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header(AUTHORIZATION, key)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| wrong(error.to_string()))?;
        let asking = ask(self.client.clone(), request, self.url.clone());
        // One wake of Python for the whole answer, however many pieces it comes in.
        let task = Task(self.runtime.spawn(asking));
        let raise = |py: Python<'_>, words: String| errors::plain(py, "model_unavailable", &words);
        Pending::with_errors(
            py,
            task.join(),
            raise,
            |py, (status, version, turns, body): Answer| {
                Ok((status, version, turns, PyBytes::new(py, &body).unbind()))
            },
        )
    }
}

async fn ask(
    client: Client<HttpConnector, Full<Bytes>>,
    request: Request<Full<Bytes>>,
    url: String,
) -> Result<Answer, String> {
    let response = client.request(request).await;
    let response = response.map_err(|error| format!("{url} does not answer: {}", words(&error)))?;
    let (head, body) = response.into_parts();
    let body = Limited::new(body, ANSWER_MAX).collect().await;
    let body = body.map_err(|error| format!("{url} broke off: {}", words(&*error)))?.to_bytes();
    let number = |name: &str| number(&head.headers, name);
    let (version, turns) = (number("x-rollway-model-version"), number("x-rollway-turns"));
    Ok((head.status.as_u16(), version, turns, body))
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// Returns an error with its causes.
fn words(error: &(dyn std::error::Error + 'static)) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words
}

/// A request under way that ends when nobody waits for it any more.
struct Task(JoinHandle<Result<Answer, String>>);

impl Task {
    async fn join(mut self) -> Result<Answer, String> {
        let joined = (&mut self.0).await;
        joined.unwrap_or_else(|error| Err(format!("the call was given up: {error}")))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
