//! The synchronizer for trainers in Python, and weights that are put into a folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pyo3::prelude::*;
use rollway::synchronizer::{
    Membership, NewWeightsMessage, SyncError, Synchronizer, SynchronizerOptions, TrainMetrics,
    TrainerProgress, WeightLocation, retention, tensor_files, weight_folder,
};
use rollway_base::Secret;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::convert::seconds;
use crate::errors;
use crate::pending::PyPending;

/// The code of everything that goes wrong with it.
const CODE: &str = "synchronizer";

/// The synchronizer of a job, which another process hosts.
#[pyclass(frozen, module = "rollway._rollway", name = "Synchronizer")]
pub(crate) struct PySynchronizer {
    synchronizer: Synchronizer,
    /// Membership of the trainer. `None`: it has not joined, or has left.
    membership: Arc<Mutex<Option<Membership>>>,
}

/// Returns a call that raises refusals of the synchronizer.
fn pending<T: Send + 'static, O>(
    py: Python<'_>,
    future: impl Future<Output = Result<T, SyncError>> + Send + 'static,
    convert: impl FnOnce(Python<'_>, T) -> PyResult<O> + Send + 'static,
) -> PyResult<PyPending>
where
    O: for<'py> IntoPyObject<'py, Error: Into<PyErr>>,
{
    let raise = |py: Python<'_>, error: SyncError| errors::plain(py, CODE, &error.to_string());
    PyPending::with_errors(py, future, raise, convert)
}

#[pymethods]
impl PySynchronizer {
    /// Joins the synchronizer at an address or of the job in a folder.
    #[staticmethod]
    fn open(
        py: Python<'_>,
        target: String,
        secret: Option<String>,
        timeout: f64,
    ) -> PyResult<PyPending> {
        let lookup_timeout = seconds(timeout)?;
        let secret = secret.map(Secret::new).transpose();
        let secret = secret.map_err(|error| errors::plain(py, CODE, &error.to_string()))?;
        let is_address = target.contains("://");
        let folder = if is_address { PathBuf::from(".") } else { PathBuf::from(&target) };
        let options = SynchronizerOptions {
            address: is_address.then_some(target),
            may_host: false,
            secret,
            lookup_timeout,
            ..SynchronizerOptions::new(folder)
        };
        let membership = Arc::new(Mutex::new(None));
        pending(py, Synchronizer::open_with(options), move |_, synchronizer| {
            Ok(Self { synchronizer, membership })
        })
    }

    /// Its address.
    #[getter]
    fn url(&self) -> String {
        self.synchronizer.url()
    }

    /// The way that weights take.
    #[getter]
    fn method(&self) -> String {
        self.synchronizer.method().name()
    }

    /// Registers the trainer as a member.
    fn join(&self, py: Python<'_>, name: String) -> PyResult<PyPending> {
        let (synchronizer, membership) = (self.synchronizer.clone(), Arc::clone(&self.membership));
        let entering = async move {
            let joined = synchronizer.join_trainer(&name).await?;
            *membership.lock().await = Some(joined);
            Ok(())
        };
        pending(py, entering, |_, ()| Ok(()))
    }

    /// Ends the membership: done, or with an error. Without one it does nothing.
    #[pyo3(signature = (error=None))]
    fn leave(&self, py: Python<'_>, error: Option<String>) -> PyResult<PyPending> {
        let membership = Arc::clone(&self.membership);
        let leaving = async move {
            let Some(membership) = membership.lock().await.take() else { return Ok(()) };
            match error {
                None => membership.done().await,
                Some(error) => membership.failed(&error).await,
            }
        };
        pending(py, leaving, |_, ()| Ok(()))
    }

    /// Publishes the content of a safetensors file.
    fn publish_bytes(&self, py: Python<'_>, version: u64, content: &[u8]) -> PyResult<PyPending> {
        self.publish(py, version, NewWeightsMessage::Bytes(Bytes::copy_from_slice(content)))
    }

    /// Publishes weights in a folder.
    fn publish_folder(&self, py: Python<'_>, version: u64, path: PathBuf) -> PyResult<PyPending> {
        self.publish(py, version, WeightLocation::Folder(path).into())
    }

    /// Publishes a group, as JSON, over which the trainer sends weights.
    fn publish_group(&self, py: Python<'_>, version: u64, group: &str) -> PyResult<PyPending> {
        let group = NewWeightsMessage::group(group)
            .map_err(|error| pyo3::exceptions::PyValueError::new_err(error.to_string()))?;
        self.publish(py, version, group)
    }

    /// Returns the number of the last wait that began.
    fn last_wait(&self, py: Python<'_>) -> PyResult<PyPending> {
        let synchronizer = self.synchronizer.clone();
        let status = async move { synchronizer.wait_status(None, Duration::ZERO).await };
        pending(py, status, |_, status| Ok(status.wait))
    }

    /// Waits until an explorer demands weights that version `step` satisfies.
    fn wait_for_demand(&self, py: Python<'_>, step: u64, timeout: f64) -> PyResult<PyPending> {
        let (synchronizer, timeout) = (self.synchronizer.clone(), seconds(timeout)?);
        let demand = async move { Ok(synchronizer.wait_for_demand(step, timeout).await) };
        pending(py, demand, |_, is_demanded| Ok(is_demanded))
    }

    /// Reports that the trainer waits for experiences (`seen`) or makes a step (`None`).
    #[pyo3(signature = (seen=None))]
    fn set_state(&self, py: Python<'_>, seen: Option<u64>) -> PyResult<PyPending> {
        let state = seen.map_or(TrainerProgress::Training, |seen| TrainerProgress::Idle { seen });
        let synchronizer = self.synchronizer.clone();
        let reporting = async move {
            synchronizer.trainer_state(state).await;
            Ok(())
        };
        pending(py, reporting, |_, ()| Ok(()))
    }

    /// Reports the metrics of a train step.
    fn report_metrics(
        &self,
        py: Python<'_>,
        step: u64,
        metrics: BTreeMap<String, f64>,
    ) -> PyResult<PyPending> {
        let synchronizer = self.synchronizer.clone();
        let report = TrainMetrics { step, metrics };
        let reporting = async move { synchronizer.report_metrics(report).await };
        pending(py, reporting, |_, ()| Ok(()))
    }

    /// Waits until all explorers that ever came have left.
    fn explorers_left(&self, py: Python<'_>, timeout: f64) -> PyResult<PyPending> {
        let (synchronizer, timeout) = (self.synchronizer.clone(), seconds(timeout)?);
        let asking = async move { Ok(synchronizer.explorers_left(timeout).await) };
        pending(py, asking, |_, have_left| Ok(have_left))
    }

    /// Returns all members as JSON.
    fn status(&self, py: Python<'_>) -> PyResult<PyPending> {
        let synchronizer = self.synchronizer.clone();
        let asking = async move { Ok(synchronizer.view().await) };
        pending(py, asking, |_, view| {
            serde_json::to_string(&view)
                .map_err(|error| pyo3::exceptions::PyValueError::new_err(error.to_string()))
        })
    }
}

impl PySynchronizer {
    fn publish(&self, py: Python<'_>, version: u64, new: NewWeightsMessage) -> PyResult<PyPending> {
        let synchronizer = self.synchronizer.clone();
        let publishing = async move { synchronizer.publish(version, new).await };
        pending(py, publishing, |_, ()| Ok(()))
    }
}

/// Creates an empty, unpublished folder for weights and returns its path.
#[pyfunction]
pub(crate) fn draft_weights(py: Python<'_>, target: PathBuf, version: u64) -> PyResult<PyPending> {
    let begin = move || {
        refuse_older(&target, version)?;
        let draft = weight_folder::WeightDraft::begin(&target, version).map_err(file)?;
        Ok(draft.path().to_owned())
    };
    pending(py, run_blocking(begin), |_, path| Ok(path))
}

/// Makes what was put into that folder the newest weights, and returns where they are.
#[pyfunction]
pub(crate) fn finish_weights(py: Python<'_>, target: PathBuf, version: u64) -> PyResult<PyPending> {
    let finish = move || {
        refuse_older(&target, version)?;
        let draft = weight_folder::WeightDraft::resume(&target, version);
        tensor_files::check(draft.path()).map_err(|error| SyncError::Weights(error.to_string()))?;
        let is_permanent = retention(&target)?.is_permanent(version);
        let published = draft.finish_published(is_permanent).map_err(file)?;
        weight_folder::announce(&target, version).map_err(file)?;
        Ok(published)
    };
    pending(py, run_blocking(finish), |_, path| Ok(path))
}

fn refuse_older(target: &Path, version: u64) -> Result<(), SyncError> {
    match weight_folder::latest(target).map_err(file)? {
        Some(latest) if version < latest => Err(SyncError::Refused(format!(
            "{} has weights of version {latest}, which {version} is older than: versions never go \
             backwards; a resumed trainer begins at `rw.latest_version(job)`",
            target.display()
        ))),
        _ => Ok(()),
    }
}

fn file(error: weight_folder::WeightFolderError) -> SyncError {
    SyncError::File { path: error.path, problem: error.source.to_string() }
}

/// Does what blocks.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SyncError> + Send + 'static,
) -> Result<T, SyncError> {
    let done = spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(SyncError::Refused(error.to_string())))
}
