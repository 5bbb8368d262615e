//! Pending results: Python's interface to asynchronous operations of the engine.
//!
//! ```text
//! poll(wake) ──► ready: returns the result
//!     │
//!     └────────► not yet: wake() will be called once; poll again
//! close() ─────► abandoned: the request is withdrawn, and no result was taken
//! ```
//!
//! A result leaves the engine in the step in which Python receives it. A wait that is cancelled
//! earlier, by task cancellation or Ctrl-C, leaves the result with the engine. Python waits on a
//! future of its event loop or on a lock; both react to signals and release the interpreter.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;
use pyo3::BoundObject;
use pyo3::prelude::*;
use tokio::runtime::Handle;

use crate::{errors, runtime};

/// Converts a result into a Python object when Python takes it.
type Converted = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;
type PendingFuture = Pin<Box<dyn Future<Output = Converted> + Send>>;

/// A call without a result yet.
#[pyclass(frozen, name = "Pending", module = "rollway._rollway")]
pub(crate) struct PyPending {
    runtime: Handle,
    work: Mutex<Option<PendingFuture>>,
}

impl PyPending {
    /// Returns a call of the engine; `convert` makes a Python object of its result.
    pub(crate) fn new<T: Send + 'static, O>(
        py: Python<'_>,
        future: impl Future<Output = rollway::Result<T>> + Send + 'static,
        convert: impl FnOnce(Python<'_>, T) -> PyResult<O> + Send + 'static,
    ) -> PyResult<Self>
    where
        O: for<'py> IntoPyObject<'py, Error: Into<PyErr>>,
    {
        Self::with_errors(py, future, |py, error| errors::engine(py, &error), convert)
    }

    /// Returns a call that fails in its own way; `raise` makes an exception of that.
    pub(crate) fn with_errors<T: Send + 'static, E: Send + 'static, O>(
        py: Python<'_>,
        future: impl Future<Output = Result<T, E>> + Send + 'static,
        raise: impl FnOnce(Python<'_>, E) -> PyErr + Send + 'static,
        convert: impl FnOnce(Python<'_>, T) -> PyResult<O> + Send + 'static,
    ) -> PyResult<Self>
    where
        O: for<'py> IntoPyObject<'py, Error: Into<PyErr>>,
    {
        let work = async move {
            let result = future.await;
            let convert = move |py: Python<'_>| {
                let value = result.map_err(|error| raise(py, error))?;
                let object = convert(py, value)?.into_pyobject(py).map_err(Into::into)?;
                Ok(object.into_any().unbind())
            };
            Box::new(convert) as Converted
        };
        Ok(Self { runtime: runtime::handle(py)?, work: Mutex::new(Some(Box::pin(work))) })
    }
}

#[pymethods]
impl PyPending {
    /// Returns the result in a tuple. `None`: `wake` is called in another thread when the call
    /// should be polled again.
    fn poll(&self, py: Python<'_>, wake: Py<PyAny>) -> PyResult<Option<(Py<PyAny>,)>> {
        let waker = Waker::from(Arc::new(PythonWaker(Mutex::new(Some(wake)))));
        let result = {
            let mut slot = self.work.lock();
            let Some(work) = &mut *slot else {
                return Err(errors::plain(py, "closed", "the call was abandoned"));
            };
            let _guard = self.runtime.enter();
            match work.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Pending => return Ok(None),
                Poll::Ready(result) => {
                    *slot = None;
                    result
                }
            }
        };
        result(py).map(|value| Some((value,)))
    }

    /// Abandons the call.
    fn close(&self) {
        let work = self.work.lock().take();
        let _guard = self.runtime.enter();
        drop(work);
    }
}

/// Calls a Python function once, from a thread that may.
struct PythonWaker(Mutex<Option<Py<PyAny>>>);

impl Wake for PythonWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(wake) = self.0.lock().take() {
            runtime::in_python(move |py| {
                // A loop that was closed meanwhile has no waiters left.
                let _ = wake.call0(py);
            });
        }
    }
}
