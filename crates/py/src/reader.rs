//! Buffers for trainers: a reader of any of them, and the server that offers one to others.
//!
//! Buffers block, so they are asked in threads of their own. What was read is kept here until the
//! very step in which Python gets it: an abandoned call leaves it for the next one.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};
use rollway::explorer::log_while;
use rollway_base::tls::{TlsMode, TlsOptions};
use rollway_base::{Secret, human};
use rollway_data::buffer::{self, Buffer, BufferError, ReadEnd, ReadRequest, ReadResult};
use rollway_data::reader::{self, ReaderServer, ReaderServerOptions, ReaderTarget};
use rollway_data::{Sample, WriteBatch, arrow};
use rollway_experience::{PayloadError, deserialize_many, payload};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::engine::PyCoordinator;
use crate::errors;
use crate::pending::PyPending;

/// A failure that is raised as a Python exception later.
enum PyReaderError {
    Buffer(BufferError),
    Payload(String),
    Address(String),
    Closed,
    Thread(String),
}

impl From<BufferError> for PyReaderError {
    fn from(error: BufferError) -> Self {
        Self::Buffer(error)
    }
}

impl PyReaderError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let error = match self {
            Self::Buffer(error) => error,
            Self::Payload(message) => return errors::plain(py, "invalid_payload", &message),
            Self::Address(message) => return PyValueError::new_err(message),
            Self::Closed => return errors::plain(py, "closed", "the reader is closed"),
            Self::Thread(message) => return errors::plain(py, "buffer", &message),
        };
        let message = error.to_string();
        let (code, storage) = match error {
            BufferError::Unavailable { storage, .. } => ("buffer_unavailable", storage),
            BufferError::Full { storage, .. } => ("buffer_full", storage),
            BufferError::Damaged { storage, .. } => ("buffer_damaged", storage),
            BufferError::Unsupported { storage, .. } | BufferError::Content { storage, .. } => {
                ("buffer_unsupported", storage)
            }
            BufferError::Closed(storage) => ("closed", storage),
            BufferError::Payload(error) => return errors::payload(py, &error),
        };
        let data = PyDict::new(py);
        match data.set_item("storage", storage) {
            Ok(()) => errors::raise(py, code, &message, &data),
            Err(error) => error,
        }
    }
}

/// Does what blocks, and makes a Python object of what comes of it.
fn blocking<T: Send + 'static, O>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, PyReaderError> + Send + 'static,
    convert: impl FnOnce(Python<'_>, T) -> PyResult<O> + Send + 'static,
) -> PyResult<PyPending>
where
    O: for<'py> IntoPyObject<'py, Error: Into<PyErr>>,
{
    let future = async move {
        let done = spawn_blocking(work).await;
        Ok(done.unwrap_or_else(|error| Err(PyReaderError::Thread(error.to_string()))))
    };
    let convert = |py: Python<'_>, done: Result<T, PyReaderError>| {
        convert(py, done.map_err(|fault| fault.raise(py))?)
    };
    PyPending::new(py, future, convert)
}

/// A reader of a buffer.
#[pyclass(frozen, module = "rollway._rollway", name = "Reader")]
pub(crate) struct PyReader {
    state: Arc<AsyncMutex<PyReaderState>>,
    /// Position after the last batch that Python received.
    position: Arc<Mutex<String>>,
}

struct PyReaderState {
    /// `None`: closed.
    reader: Option<Box<dyn buffer::ExperienceReader>>,
    /// Samples read but not received by Python yet.
    buffered: ReadResult,
    /// Length of the valid prefix of these samples, verified without holding the interpreter.
    complete: usize,
}

/// Source of experiences: an address, or a coordinator of this process.
#[derive(FromPyObject)]
pub(crate) enum PyReaderSource<'py> {
    Coordinator(PyRef<'py, PyCoordinator>),
    Address(String),
}

/// [`PyReaderSource`] for another thread.
enum ReaderSource {
    Buffer(Arc<dyn Buffer>),
    Address(String),
}

impl PyReaderSource<'_> {
    fn source_of(self, py: Python<'_>) -> PyResult<ReaderSource> {
        match self {
            Self::Address(address) => Ok(ReaderSource::Address(address)),
            Self::Coordinator(coordinator) => {
                coordinator.buffer().map(ReaderSource::Buffer).ok_or_else(|| {
                    errors::plain(
                        py,
                        "no_pipeline",
                        "the coordinator has no buffer, or not yet: prepare it",
                    )
                })
            }
        }
    }
}

/// A batch as Python receives it.
struct PyExperienceBatch {
    payload: Bytes,
    versions: Vec<u64>,
    stale: usize,
    end: &'static str,
}

#[pymethods]
impl PyReader {
    /// Opens a reader.
    #[staticmethod]
    fn open(
        py: Python<'_>,
        source: PyReaderSource<'_>,
        name: String,
        secret: Option<String>,
        table: Option<String>,
    ) -> PyResult<PyPending> {
        let source_of = source.source_of(py)?;
        let work = move || match source_of {
            ReaderSource::Buffer(buffer) => Ok(buffer.reader(&name)?),
            ReaderSource::Address(url) => {
                let target = target(
                    &table.map_or_else(|| url.clone(), |table| reader::with_table(&url, &table)),
                )?;
                let secret = secret.map(secret_of).transpose()?;
                Ok(reader::open(&target, &name, secret)?)
            }
        };
        blocking(py, work, |_, reader| {
            let position = Arc::new(Mutex::new(reader.position()));
            let state = PyReaderState { reader: Some(reader), buffered: empty_read(), complete: 0 };
            Ok(Self { state: Arc::new(AsyncMutex::new(state)), position })
        })
    }

    /// Reads: `(payload, versions, stale, end)`.
    fn read(
        &self,
        py: Python<'_>,
        count: usize,
        timeout: Option<f64>,
        min_model_version: u64,
        keep: bool,
    ) -> PyResult<PyPending> {
        let timeout = match timeout.map(Duration::try_from_secs_f64) {
            None => Duration::MAX,
            Some(Ok(timeout)) => timeout,
            Some(Err(error)) => return Err(PyValueError::new_err(format!("timeout: {error}"))),
        };
        let request = ReadRequest { count, timeout, min_model_version, keep };
        let (state, position) = (Arc::clone(&self.state), Arc::clone(&self.position));
        let future = async move {
            let aborted = CancellationToken::new();
            let _guard = aborted.clone().drop_guard();
            let mut locked = Arc::clone(&state).lock_owned().await;
            let (count, reading) = (request.count, aborted.clone());
            let read = spawn_blocking(move || fill(&mut locked, request, &reading));
            let read = log_while(read, |waited| Some(wait_message(count, timeout, waited))).await;
            let read = read.unwrap_or_else(|error| Err(PyReaderError::Thread(error.to_string())));
            // Nothing is awaited after this: what is taken is Python's.
            let mut locked = state.lock_owned().await;
            Ok(take_batch(&mut locked, count, read, &position))
        };
        PyPending::new(py, future, |py, batch: Result<PyExperienceBatch, PyReaderError>| {
            let batch = batch.map_err(|fault| fault.raise(py))?;
            let payload = PyBytes::new(py, &batch.payload).unbind();
            Ok((payload, batch.versions, batch.stale, batch.end))
        })
    }

    /// Position of the reader.
    #[getter]
    fn position(&self) -> String {
        self.position.lock().clone()
    }

    /// Goes to a position.
    fn seek(&self, py: Python<'_>, to: String) -> PyResult<PyPending> {
        let (state, position) = (Arc::clone(&self.state), Arc::clone(&self.position));
        let work = move || {
            let mut state = state.blocking_lock();
            let reader = state.reader.as_mut().ok_or(PyReaderError::Closed)?;
            reader.seek(&to)?;
            *position.lock() = reader.position();
            state.buffered = empty_read();
            Ok(())
        };
        blocking(py, work, |_, ()| Ok(()))
    }

    /// Lets the buffer go. What was not acknowledged is given back, where the buffer can.
    fn close(&self, py: Python<'_>) -> PyResult<PyPending> {
        let state = Arc::clone(&self.state);
        let work = move || {
            let mut state = state.blocking_lock();
            state.buffered = empty_read();
            drop(state.reader.take());
            Ok(())
        };
        blocking(py, work, |_, ()| Ok(()))
    }
}

fn empty_read() -> ReadResult {
    ReadResult { samples: Vec::new(), stale: 0, end: ReadEnd::TimedOut }
}

/// Reads into the kept samples until the request is satisfied or cancelled.
fn fill(
    state: &mut OwnedMutexGuard<PyReaderState>,
    request: ReadRequest,
    aborted: &CancellationToken,
) -> Result<(), PyReaderError> {
    let PyReaderState { reader, buffered, complete } = &mut **state;
    let reader = reader.as_mut().ok_or(PyReaderError::Closed)?;
    let count = request.count;
    let mut read = Ok(());
    if count == 0 || buffered.samples.len() < count {
        // What did not get to Python must not be acknowledged.
        let request = ReadRequest { keep: request.keep || !buffered.samples.is_empty(), ..request };
        read = reader::read_until(&mut **reader, &request, buffered, &|| aborted.is_cancelled());
    }
    let is_complete = |sample: &&Sample| payload::verify(&sample.payload).is_ok();
    *complete = buffered.samples.iter().take(count).take_while(is_complete).count();
    Ok(read?)
}

/// Takes a batch out of what is kept: whole experiences only.
fn take_batch(
    state: &mut PyReaderState,
    count: usize,
    read: Result<(), PyReaderError>,
    position: &Mutex<String>,
) -> Result<PyExperienceBatch, PyReaderError> {
    if state.buffered.samples.is_empty() {
        read?;
    }
    let PyReaderState { reader, buffered, complete } = state;
    let ready = *complete;
    if ready == 0 && count > 0 && !buffered.samples.is_empty() {
        let sample = buffered.samples.remove(0);
        let reason = payload::verify(&sample.payload).err().map(|error| error.to_string());
        let message = format!(
            "experience {} is damaged and was skipped: {}",
            sample.id,
            reason.unwrap_or_default()
        );
        return Err(PyReaderError::Payload(message));
    }
    let full = ready == count;
    let samples: Vec<Sample> = buffered.samples.drain(..ready).collect();
    let stale = std::mem::take(&mut buffered.stale);
    if buffered.samples.is_empty()
        && let Some(reader) = reader
    {
        *position.lock() = reader.position();
    }
    let end = match buffered.end {
        _ if full => "full",
        ReadEnd::Finished if buffered.samples.is_empty() => "finished",
        _ => "timed_out",
    };
    let payloads: Vec<&Bytes> = samples.iter().map(|sample| &sample.payload).collect();
    let payload =
        payload::concat(&payloads).map_err(|error| PyReaderError::Payload(error.to_string()))?;
    let versions = samples.iter().map(|sample| sample.model_version).collect();
    Ok(PyExperienceBatch { payload, versions, stale, end })
}

fn target(url: &str) -> Result<ReaderTarget, PyReaderError> {
    url.parse()
        .map_err(|error: buffer::BufferAddressError| PyReaderError::Address(error.to_string()))
}

fn local(url: &str) -> Result<Arc<dyn Buffer>, PyReaderError> {
    match target(url)? {
        ReaderTarget::Local(address, table) => Ok(reader::storage(&address, table.as_deref())?),
        ReaderTarget::Remote(_) => {
            Err(PyReaderError::Address(format!("`{url}` is already the address of a server")))
        }
    }
}

fn secret_of(text: String) -> Result<Secret, PyReaderError> {
    Secret::new(text).map_err(|error| PyReaderError::Address(error.to_string()))
}

/// Offers a buffer to readers in other processes and on other machines.
#[pyclass(frozen, module = "rollway._rollway", name = "ReaderServer")]
pub(crate) struct PyReaderServer {
    served: Arc<Mutex<Option<ReaderServer>>>,
    url: String,
    secret: String,
}

#[pymethods]
impl PyReaderServer {
    /// Begins to offer a buffer.
    #[staticmethod]
    fn start(
        py: Python<'_>,
        source: PyReaderSource<'_>,
        address: String,
        secret: Option<String>,
    ) -> PyResult<PyPending> {
        let source_of = source.source_of(py)?;
        let work = move || {
            let buffer = match source_of {
                ReaderSource::Buffer(buffer) => buffer,
                ReaderSource::Address(url) => local(&url)?,
            };
            let Ok(ReaderTarget::Remote(address)) = address.parse() else {
                let message =
                    format!("`{address}` is neither rollway://HOST:PORT nor rollway+unix:PATH");
                return Err(PyReaderError::Address(message));
            };
            let secret = secret.map(secret_of).transpose()?;
            // It is not part of a job, whose folder could keep a certificate.
            let tls = TlsOptions { mode: TlsMode::Auto, ..TlsOptions::off() };
            let defaults = ReaderServerOptions::default();
            let options = ReaderServerOptions { address, secret, tls, ..defaults };
            let storage = options.address.to_string();
            reader::serve(buffer, options).map_err(|error| {
                PyReaderError::Buffer(BufferError::Unavailable {
                    storage,
                    message: error.to_string(),
                })
            })
        };
        blocking(py, work, |_, served| {
            let (url, secret) = (served.url(), served.secret().reveal().to_owned());
            Ok(Self { served: Arc::new(Mutex::new(Some(served))), url, secret })
        })
    }

    #[getter]
    fn url(&self) -> &str {
        &self.url
    }

    #[getter]
    fn secret(&self) -> &str {
        &self.secret
    }

    /// Number of refused peers by reason.
    fn refused(&self) -> Vec<(&'static str, u64)> {
        let served = self.served.lock();
        let refused = served.as_ref().map(ReaderServer::refused).unwrap_or_default();
        refused.into_iter().map(|(code, count)| (code.name(), count)).collect()
    }

    /// Stops the server and disconnects all peers.
    fn stop(&self, py: Python<'_>) -> PyResult<PyPending> {
        let served = Arc::clone(&self.served);
        let work = move || {
            drop(served.lock().take());
            Ok(())
        };
        blocking(py, work, |_, ()| Ok(()))
    }
}

/// Makes an Arrow IPC stream of a payload.
#[pyfunction]
pub(crate) fn payload_to_arrow<'py>(
    py: Python<'py>,
    payload: PyBackedBytes,
) -> PyResult<Bound<'py, PyBytes>> {
    let columns = py.detach(|| {
        let experiences = deserialize_many(Bytes::from_owner(payload))
            .map_err(|error: PayloadError| PyReaderError::Payload(error.to_string()))?;
        arrow::to_ipc(&experiences).map_err(|error| PyReaderError::Payload(error.to_string()))
    });
    Ok(PyBytes::new(py, &columns.map_err(|fault| fault.raise(py))?))
}

/// Writes the experiences of a payload into a buffer as one write batch; returns the number of new
/// ones.
#[pyfunction]
pub(crate) fn write_batch(
    py: Python<'_>,
    url: String,
    writer: String,
    key: String,
    payload: PyBackedBytes,
) -> PyResult<PyPending> {
    let work = move || {
        let experiences = deserialize_many(Bytes::from_owner(payload));
        let samples = experiences.and_then(|all| all.iter().map(Sample::new).collect());
        let samples = samples.map_err(|error| PyReaderError::Payload(error.to_string()))?;
        let lot = WriteBatch { key: key.into(), samples };
        Ok(local(&url)?.writer(&writer)?.write(&lot)?.stored)
    };
    blocking(py, work, |_, stored| Ok(stored))
}

/// Closes a writer: it adds no more samples.
#[pyfunction]
pub(crate) fn close_writer(py: Python<'_>, url: String, writer: String) -> PyResult<PyPending> {
    let work = move || Ok(local(&url)?.writer(&writer)?.close()?);
    blocking(py, work, |_, ()| Ok(()))
}

/// Message of a read that waits.
fn wait_message(count: usize, timeout: Duration, waited: Duration) -> String {
    let (lasts, left) = (human::duration(waited), timeout.saturating_sub(waited));
    let until = if timeout == Duration::MAX {
        "without a timeout (`timeout` of the reader)".to_owned()
    } else {
        format!("at most {} more (`timeout`)", human::duration(left))
    };
    format!(
        "the reader waits for {count} experiences; for {lasts}, {until}\nhint: check that the \
         explorer runs and finalizes its batches, and that `batch_size` is not larger than what \
         they deliver"
    )
}
