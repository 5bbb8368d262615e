//! The simulated inference server in this process: to try workflows without a GPU, and for tests.

use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyList};
use rollway_base::ServerKind;
use rollway_mock_server::{
    CompletionLengths, MockControl, MockCounts, MockFault, MockServer, MockServerOptions,
    RecordedRequest, ScriptedTurn,
};

use crate::pending::PyPending;
use crate::runtime;

/// A simulated server. It ends with the last reference to it, or when it is stopped.
#[pyclass(frozen, name = "MockServer", module = "rollway._rollway")]
pub(crate) struct PyMockServer {
    server: Mutex<Option<MockServer>>,
    inside: MockControl,
    url: String,
}

#[pymethods]
impl PyMockServer {
    /// Starts a server of a kind on the loopback, at any port.
    #[new]
    #[expect(clippy::too_many_arguments, reason = "one argument for every property")]
    fn new(
        py: Python<'_>,
        engine: &str,
        model: String,
        seed: u64,
        first_token: f64,
        tokens_per_second: f64,
        lengths: (u32, u32),
        version: u64,
        fail_rate: f64,
        tool_call_rate: f64,
        api_key: Option<String>,
        turns: Vec<(Option<String>, String)>,
    ) -> PyResult<Self> {
        let kind = engine.parse::<ServerKind>();
        let kind = kind.map_err(|error| PyValueError::new_err(error.to_string()))?;
        let first_token = crate::convert::seconds(first_token)?;
        let lengths = CompletionLengths::Uniform(lengths.0, lengths.1);
        let options = MockServerOptions {
            model,
            seed,
            first_token,
            tokens_per_second,
            lengths,
            version,
            // Without an update the server has no version.
            version_name: (version > 0).then(|| version.to_string()),
            fail_rate,
            tool_call_rate,
            api_key,
            turns: turns.into_iter().map(turn).collect(),
            ..MockServerOptions::new(kind)
        };
        let runtime = runtime::handle(py)?;
        let _guard = runtime.enter();
        let server = MockServer::start(options)?;
        let (inside, url) = (server.control(), server.url());
        Ok(Self { server: Mutex::new(Some(server)), inside, url })
    }

    /// Base URL without `/v1`.
    #[getter]
    fn url(&self) -> &str {
        &self.url
    }

    /// The version of its weights.
    #[getter]
    fn version(&self) -> u64 {
        self.inside.version()
    }

    /// Request counters.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        named(&self.inside.counts()).into_py_dict(py)
    }

    /// Waits until one of the numbers is at least so high.
    fn wait_for(&self, py: Python<'_>, name: String, least: u64) -> PyResult<PyPending> {
        if !named(&MockCounts::default()).iter().any(|(known, _)| *known == name) {
            return Err(PyValueError::new_err(format!("unknown counter `{name}`")));
        }
        let inside = self.inside.clone();
        let future = async move {
            let enough = |counts: &MockCounts| {
                named(counts).iter().any(|(known, number)| *known == name && *number >= least)
            };
            Ok(inside.wait_for(enough).await)
        };
        PyPending::new(py, future, |py, counts| Ok(named(&counts).into_py_dict(py)?.unbind()))
    }

    /// Returns every request with its response: its path, its body as JSON, the tokens of
    /// its prompt, its choices as lists of `(token, log-probability, version)`, and how it ended.
    fn records<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let records = self.inside.records();
        PyList::new(py, records.into_iter().map(record).collect::<Vec<_>>())
    }

    /// Limits the tokens of every response. `None`: no limit.
    fn hold(&self, tokens: Option<u32>) {
        match tokens {
            Some(tokens) => self.inside.hold(tokens),
            None => self.inside.release(),
        }
    }

    /// Lets the next requests fail: with a status, or by losing the connection if that is 0.
    fn fail(&self, status: u16, times: u64) {
        let fault = if status == 0 { MockFault::Cut } else { MockFault::Status(status) };
        self.inside.inject(fault, times);
    }

    /// Lets the next answers lack token ids, although they were asked for.
    fn omit_token_ids(&self, times: u64) {
        self.inside.inject(MockFault::NoTokenIds, times);
    }

    /// Ends it like a crash does.
    fn stop(&self, py: Python<'_>) -> PyResult<PyPending> {
        let server = self.server.lock().take();
        let future = async move {
            if let Some(server) = server {
                server.stop().await;
            }
            Ok(())
        };
        PyPending::new(py, future, |_, ()| Ok(()))
    }
}

/// A turn: the name of a tool with its arguments, or a text.
fn turn((name, text): (Option<String>, String)) -> ScriptedTurn {
    match name {
        Some(name) => ScriptedTurn::ToolCall { name, arguments: text },
        None => ScriptedTurn::Text(text),
    }
}

type Row = (&'static str, String, Vec<i32>, Vec<Vec<(i32, f32, u64)>>, Option<String>);

fn record(record: RecordedRequest) -> Row {
    let choices = record.choices.iter().map(|choice| {
        choice.tokens.iter().map(|token| (token.id, token.logprob, token.version)).collect()
    });
    let end = record.end.map(|end| format!("{end:?}").to_lowercase());
    let prompt = record.prompts.first().cloned().unwrap_or_default();
    (record.path, record.body.to_string(), prompt, choices.collect(), end)
}

fn named(counts: &MockCounts) -> [(&'static str, u64); 10] {
    [
        ("requests", counts.requests),
        ("waiting", counts.waiting),
        ("running", counts.running),
        ("frozen", counts.frozen),
        ("completed", counts.completed),
        ("aborted", counts.aborted),
        ("left", counts.left),
        // Which of the two comes first is a matter of chance.
        ("given_up", counts.aborted + counts.left),
        ("failed", counts.failed),
        ("updates", counts.updates),
    ]
}
