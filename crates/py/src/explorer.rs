//! The explorer for Python. Its operations run as tasks of the runtime; a cancelled wait requests a
//! clean stop instead of dropping the operation halfway.

mod event;
mod prepared;

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Mutex as PlainMutex, MutexGuard as PlainGuard};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{IntoPyDict, PyBytes, PyDict, PyList};
use rollway::config::{Config, Mode, ResolvedConfig};
use rollway::explorer::{
    BenchResult, Explorer, ExplorerError, JobObserver, JobObservers, LiveStats, StatsSample,
    StopHandle,
};
use rollway::job::JobError;
use rollway::serve::{ServeJob, ServeJobError, served_weights};
use rollway::workflow_runtime::{TASK_ENCODING, WorkflowRuntime, WorkflowSetupError};
use rollway::{WorkerPoolOptions, WorkflowDefinition};
use rollway_core::sync::TensorSpec;
use rollway_core::{RunId, TaskId};
use rollway_data::pipeline::OperatorRegistry;
use tokio::sync::Mutex;
use tokio::task::{AbortHandle, JoinHandle};
use tokio_util::sync::CancellationToken;

use self::event::EventCallback;
use self::prepared::PreparedExplorer;
use crate::batch_id::PyBatchId;
use crate::convert::seconds;
use crate::engine::{HEARTBEAT, SpawnCommand, ray_launcher};
use crate::pending::PyPending;
use crate::{config, errors, metrics, operator, runner_status, runtime};

/// A workflow that workers get by value: its name, the encoding, and the bytes.
type Carried = (String, String, PyBackedBytes);

/// A tensor that will be sent: its name, type and shape.
type Sent = (String, String, Vec<u64>);

/// An explorer.
#[pyclass(frozen, name = "Explorer", module = "rollway._rollway")]
pub(crate) struct PyExplorer {
    config: Config,
    workflow_runtime: WorkflowRuntime,
    observers: JobObservers,
    operators: Arc<OperatorRegistry>,
    stage: Arc<Mutex<ExplorerPhase>>,
    ends: Arc<ExplorerEnd>,
}

/// Lifecycle of an explorer object.
enum ExplorerPhase {
    New,
    Ready(Box<PreparedExplorer>),
    Serving(Box<ServeJob>),
    Over,
}

impl ExplorerPhase {
    fn ready(&mut self) -> Result<&mut Explorer, PyExplorerError> {
        Ok(&mut self.prepared()?.explorer)
    }

    fn prepared(&mut self) -> Result<&mut PreparedExplorer, PyExplorerError> {
        match self {
            Self::Ready(ready) => Ok(ready),
            Self::Serving(_) => Err(PyExplorerError::Serves),
            Self::New => Err(PyExplorerError::NotPrepared),
            Self::Over => Err(PyExplorerError::Over),
        }
    }
}

/// Handles that reach the explorer while an operation holds its lock.
#[derive(Default)]
struct ExplorerEnd {
    stop: CancellationToken,
    /// Clean stop of a prepared explorer.
    stopper: PlainMutex<Option<StopHandle>>,
    live_stats: PlainMutex<Option<LiveStats>>,
    /// URL of the dashboard, with its token.
    dashboard: PlainMutex<Option<String>>,
    /// Aborts the current operation if the clean stop does not end it.
    task: PlainMutex<Option<AbortHandle>>,
}

impl ExplorerEnd {
    fn stop(&self) {
        self.stop.cancel();
        if let Some(stopper) = &*locked(&self.stopper) {
            stopper.stop();
        }
    }
}

fn locked<T>(mutex: &PlainMutex<T>) -> PlainGuard<'_, T> {
    mutex.lock()
}

enum PyExplorerError {
    Explorer(ExplorerError),
    Job(JobError),
    Serve(ServeJobError),
    NotPrepared,
    Serves,
    DoesNotServe,
    Over,
    Aborted,
}

impl From<ExplorerError> for PyExplorerError {
    fn from(error: ExplorerError) -> Self {
        Self::Explorer(error)
    }
}

impl From<JobError> for PyExplorerError {
    fn from(error: JobError) -> Self {
        match error {
            JobError::Explorer(error) => Self::Explorer(error),
            error => Self::Job(error),
        }
    }
}

impl From<WorkflowSetupError> for PyExplorerError {
    fn from(error: WorkflowSetupError) -> Self {
        Self::Explorer(error.into())
    }
}

impl From<ServeJobError> for PyExplorerError {
    fn from(error: ServeJobError) -> Self {
        Self::Serve(error)
    }
}

/// An operation in the runtime. Dropping it before its end stops the explorer.
struct StoppableTask<T> {
    task: JoinHandle<Result<T, PyExplorerError>>,
    ends: Arc<ExplorerEnd>,
    is_over: bool,
}

impl<T> StoppableTask<T> {
    async fn join(mut self) -> Result<T, PyExplorerError> {
        let joined = (&mut self.task).await;
        self.is_over = true;
        joined.unwrap_or(Err(PyExplorerError::Aborted))
    }
}

impl<T> Drop for StoppableTask<T> {
    fn drop(&mut self) {
        if !self.is_over {
            self.ends.stop();
        }
    }
}

impl PyExplorer {
    /// Starts an operation that stops cleanly if the wait for it is cancelled.
    fn work<T: Send + 'static, O>(
        &self,
        py: Python<'_>,
        future: impl Future<Output = Result<T, PyExplorerError>> + Send + 'static,
        convert: impl FnOnce(Python<'_>, T) -> PyResult<O> + Send + 'static,
    ) -> PyResult<PyPending>
    where
        O: for<'py> IntoPyObject<'py, Error: Into<PyErr>>,
    {
        let task = runtime::handle(py)?.spawn(future);
        *locked(&self.ends.task) = Some(task.abort_handle());
        let work = StoppableTask { task, ends: Arc::clone(&self.ends), is_over: false };
        PyPending::with_errors(py, work.join(), raise, convert)
    }

    /// Waits for a quick operation; a cancelled wait drops it.
    fn call<T: Send + 'static, O>(
        py: Python<'_>,
        future: impl Future<Output = Result<T, PyExplorerError>> + Send + 'static,
        convert: impl FnOnce(Python<'_>, T) -> PyResult<O> + Send + 'static,
    ) -> PyResult<PyPending>
    where
        O: for<'py> IntoPyObject<'py, Error: Into<PyErr>>,
    {
        PyPending::with_errors(py, future, raise, convert)
    }
}

#[pymethods]
impl PyExplorer {
    /// Makes an explorer of a configuration, which was read from a file in `folder`; nothing is
    /// opened yet. Runners are those that fit what the configuration names, or started like
    /// `spawn`, with these workflows by value. `on_event` is called with every job event.
    /// `operators` are the names of those that were registered, and what makes one.
    #[new]
    fn new(
        py: Python<'_>,
        config_json: &str,
        folder: Option<PathBuf>,
        spawn: Option<SpawnCommand>,
        workflows: Vec<Carried>,
        on_event: Option<Py<PyAny>>,
        operators: (Vec<String>, Py<PyAny>),
    ) -> PyResult<Self> {
        let config = config::parse(py, config_json)?.in_folder(folder);
        let ResolvedConfig { config, warnings } =
            config.resolve().map_err(|error| errors::config(py, &error))?;
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        let config = config.named();
        let mut workflow_runtime = match spawn {
            None => {
                WorkflowRuntime::from_config(&config).map_err(|error| raise(py, error.into()))?
            }
            Some((program, args, env)) => WorkflowRuntime::processes(WorkerPoolOptions {
                args,
                env,
                heartbeat: HEARTBEAT,
                runners_per_worker: config.explorer.runner_per_worker,
                ray_launcher: Some(ray_launcher(py)?),
                ..WorkerPoolOptions::new(program)
            }),
        };
        for (name, encoding, body) in workflows {
            let (encoding, body) = (encoding.into(), Bytes::from_owner(body));
            let task_encoding = TASK_ENCODING.into();
            workflow_runtime =
                workflow_runtime.define(name, WorkflowDefinition { encoding, task_encoding, body });
        }
        let (names, make) = operators;
        let (operators, _) = operator::registry(&config, names, make)
            .map_err(|error| errors::plain(py, "config", &error.to_string()))?;
        let operators = Arc::new(operators);
        let callback =
            on_event.map(|function| Arc::new(EventCallback::new(function)) as Arc<dyn JobObserver>);
        let observers = JobObservers::new(callback.into_iter().collect());
        let stage = Arc::new(Mutex::new(ExplorerPhase::New));
        Ok(Self { config, workflow_runtime, observers, operators, stage, ends: Arc::default() })
    }

    /// The folder of the job.
    #[getter]
    fn job_dir(&self) -> PathBuf {
        self.config.job_dir()
    }

    /// URL of the dashboard, with its token. `None`: no dashboard.
    #[getter]
    fn dashboard_url(&self) -> Option<String> {
        locked(&self.ends.dashboard).clone()
    }

    /// Opens everything; in mode `serve`, serves.
    fn prepare(&self, py: Python<'_>) -> PyResult<PyPending> {
        let (config, workflow_runtime) = (self.config.clone(), self.workflow_runtime.clone());
        let (stage, ends) = (Arc::clone(&self.stage), Arc::clone(&self.ends));
        let (observers, operators) = (self.observers.clone(), Arc::clone(&self.operators));
        let future = async move {
            let mut stage = stage.lock_owned().await;
            match &*stage {
                ExplorerPhase::New => {}
                ExplorerPhase::Ready(_) | ExplorerPhase::Serving(_) => return Ok(()),
                ExplorerPhase::Over => return Err(PyExplorerError::Over),
            }
            if config.mode == Mode::Serve {
                let weights = served_weights(&config);
                let server = ServeJob::start(&config, weights, &operators).await?;
                *stage = ExplorerPhase::Serving(Box::new(server));
                return Ok(());
            }
            workflow_runtime.check(&config).await?;
            let ready = Box::pin(PreparedExplorer::open(
                &config,
                workflow_runtime,
                observers,
                operators,
                &ends.stop,
            ))
            .await?;
            *locked(&ends.stopper) = Some(ready.explorer.stopper());
            *locked(&ends.live_stats) = Some(ready.explorer.live_stats());
            *locked(&ends.dashboard) = ready.telemetry.dashboard();
            *stage = ExplorerPhase::Ready(Box::new(ready));
            Ok(())
        };
        // Nothing was acknowledged yet, so that a cancelled wait may drop it.
        Self::call(py, future, |_, ()| Ok(()))
    }

    /// Explores, beside the trainer of mode `both`; returns the explorer's name.
    fn explore(&self, py: Python<'_>) -> PyResult<PyPending> {
        let (stage, name) = (Arc::clone(&self.stage), self.config.explorer.name.clone());
        let stop = self.ends.stop.clone();
        let future = async move {
            let mut stage = stage.lock_owned().await;
            Box::pin(stage.prepared()?.explore(&stop)).await?;
            Ok(name)
        };
        self.work(py, future, |_, name| Ok(name))
    }

    /// Evaluates the weights of now.
    fn eval(&self, py: Python<'_>) -> PyResult<PyPending> {
        let stage = Arc::clone(&self.stage);
        let future = async move { Ok(stage.lock_owned().await.ready()?.eval().await?) };
        self.work(py, future, |py, scores| benched(py, &scores))
    }

    /// Evaluates checkpoints.
    fn benchmark(&self, py: Python<'_>) -> PyResult<PyPending> {
        let (stage, stop) = (Arc::clone(&self.stage), self.ends.stop.clone());
        let future = async move {
            let mut stage = stage.lock_owned().await;
            Ok(Box::pin(stage.prepared()?.benchmark(&stop)).await?)
        };
        self.work(py, future, |py, scores| benched(py, &scores))
    }

    /// Serves until it is stopped; returns the explorer's name.
    fn serve(&self, py: Python<'_>) -> PyResult<PyPending> {
        let (stage, ends) = (Arc::clone(&self.stage), Arc::clone(&self.ends));
        let name = self.config.explorer.name.clone();
        let future = async move {
            match &*stage.lock().await {
                ExplorerPhase::Serving(_) => {}
                ExplorerPhase::Ready(_) => return Err(PyExplorerError::DoesNotServe),
                ExplorerPhase::New => return Err(PyExplorerError::NotPrepared),
                ExplorerPhase::Over => return Err(PyExplorerError::Over),
            }
            ends.stop.cancelled().await;
            Ok(name)
        };
        Self::call(py, future, |_, name| Ok(name))
    }

    /// Takes newer weights; returns the version.
    fn sync_weight(&self, py: Python<'_>) -> PyResult<PyPending> {
        let stage = Arc::clone(&self.stage);
        let future = async move { Ok(stage.lock_owned().await.ready()?.sync_weight().await?) };
        self.work(py, future, |_, version| Ok(version))
    }

    fn save_checkpoint(&self, py: Python<'_>) -> PyResult<PyPending> {
        let stage = Arc::clone(&self.stage);
        let future = async move { Ok(stage.lock_owned().await.ready()?.save_checkpoint().await?) };
        self.work(py, future, |_, ()| Ok(()))
    }

    /// Has the servers join a group; returns how many members it has.
    fn setup_weight_sync_group(
        &self,
        py: Python<'_>,
        master_address: String,
        master_port: u16,
        tensors: Vec<Sent>,
    ) -> PyResult<PyPending> {
        let stage = Arc::clone(&self.stage);
        let tensor = |(name, dtype, shape)| TensorSpec { name, dtype, shape };
        let tensors: Vec<TensorSpec> = tensors.into_iter().map(tensor).collect();
        let future = async move {
            let mut stage = stage.lock_owned().await;
            let explorer = stage.ready()?;
            Ok(explorer.setup_weight_sync_group(&master_address, master_port, tensors).await?)
        };
        self.work(py, future, |_, members| Ok(members))
    }

    /// Returns a tensor: its type, its shape, and its bytes.
    fn get_weight(&self, py: Python<'_>, name: String) -> PyResult<PyPending> {
        let stage = Arc::clone(&self.stage);
        let future = async move { Ok(stage.lock_owned().await.ready()?.get_weight(&name).await?) };
        Self::call(py, future, |py, found| {
            Ok((found.dtype, found.shape, PyBytes::new(py, &found.bytes).unbind()))
        })
    }

    /// Returns the live statistics.
    fn live_stats(&self, py: Python<'_>) -> PyResult<PyPending> {
        let live_stats = locked(&self.ends.live_stats).clone();
        let future = async move {
            let live_stats = live_stats.ok_or(PyExplorerError::NotPrepared)?;
            Ok(live_stats.sample().await)
        };
        Self::call(py, future, |py, sample| Ok(numbers(&sample).into_py_dict(py)?.unbind()))
    }

    /// Returns the status and the labels of every runner.
    fn runners(&self, py: Python<'_>) -> PyResult<PyPending> {
        let live_stats = locked(&self.ends.live_stats).clone();
        let future =
            async move { Ok(live_stats.ok_or(PyExplorerError::NotPrepared)?.runners().await) };
        Self::call(py, future, |py, runners| runner_status::list(py, &runners))
    }

    /// Cancels one run. Returns false if there was none to cancel.
    fn cancel_run(
        &self,
        py: Python<'_>,
        batch_id: PyBatchId,
        task: u32,
        run: u32,
        reason: String,
    ) -> PyResult<PyPending> {
        let (live_stats, task, run) =
            (locked(&self.ends.live_stats).clone(), TaskId(task), RunId(run));
        let future = async move {
            let live_stats = live_stats.ok_or(PyExplorerError::NotPrepared)?;
            Ok(live_stats.cancel_run(batch_id.0, task, run, &reason).await)
        };
        Self::call(py, future, |_, cancelled| Ok(cancelled))
    }

    /// Requests a graceful stop of the running operation.
    fn stop(&self) {
        self.ends.stop();
    }

    /// Closes everything. Operations that do not end in time are aborted.
    fn shutdown(&self, py: Python<'_>, timeout: f64) -> PyResult<PyPending> {
        let timeout = seconds(timeout)?;
        let (stage, ends) = (Arc::clone(&self.stage), Arc::clone(&self.ends));
        ends.stop();
        let future = async move {
            let mut stage = match tokio::time::timeout(timeout, stage.lock()).await {
                Ok(stage) => stage,
                Err(_) => {
                    if let Some(task) = locked(&ends.task).take() {
                        task.abort();
                    }
                    stage.lock().await
                }
            };
            match std::mem::replace(&mut *stage, ExplorerPhase::Over) {
                ExplorerPhase::Ready(ready) => ready.close().await?,
                ExplorerPhase::Serving(server) => server.stop().await?,
                ExplorerPhase::New | ExplorerPhase::Over => {}
            }
            Ok(())
        };
        // Continues after a cancelled wait.
        let task = runtime::handle(py)?.spawn(future);
        let joined = async move { task.await.unwrap_or(Err(PyExplorerError::Aborted)) };
        Self::call(py, joined, |_, ()| Ok(()))
    }
}

fn numbers(sample: &StatsSample) -> [(&'static str, u64); 10] {
    [
        ("pending", sample.pending),
        ("running", sample.running),
        ("done", sample.done),
        ("failed", sample.failed),
        ("cancelled", sample.cancelled),
        ("retried", sample.retried),
        ("runners", sample.runners.into()),
        ("busy", sample.busy.into()),
        ("prompt_tokens", sample.prompt_tokens),
        ("completion_tokens", sample.answer_tokens),
    ]
}

/// Returns scores as Python has them.
fn benched(py: Python<'_>, scores: &[BenchResult]) -> PyResult<Py<PyList>> {
    let rows = scores.iter().map(|score| {
        let dict = PyDict::new(py);
        dict.set_item("step", score.step)?;
        dict.set_item("set", &*score.set)?;
        dict.set_item("score", score.score)?;
        dict.set_item("tasks", score.tasks)?;
        dict.set_item("failed", score.failed)?;
        dict.set_item("metrics", metrics::to_dict(py, &score.metrics)?)?;
        Ok(dict)
    });
    Ok(PyList::new(py, rows.collect::<PyResult<Vec<_>>>()?)?.unbind())
}

/// Returns what went wrong as an exception.
fn raise(py: Python<'_>, error: PyExplorerError) -> PyErr {
    let plain = |code, message: &str| errors::plain(py, code, message);
    match error {
        PyExplorerError::Explorer(error) => errors::explorer(py, &error),
        PyExplorerError::Job(error @ JobError::Trainer(_)) => {
            plain("trainer_failed", &error.to_string())
        }
        PyExplorerError::Job(error) => plain("explorer", &error.to_string()),
        PyExplorerError::Serve(ServeJobError::Config(error)) => errors::config(py, &error),
        PyExplorerError::Serve(error) => plain("explorer", &error.to_string()),
        PyExplorerError::NotPrepared => {
            plain("not_started", "not prepared: prepare() must be called first")
        }
        PyExplorerError::Over => plain("stopped", "the explorer is shut down: create a new one"),
        PyExplorerError::Serves => plain("explorer", "in mode `serve` there is only serve()"),
        PyExplorerError::DoesNotServe => plain("explorer", "serve() needs `mode: serve`"),
        PyExplorerError::Aborted => {
            plain("stopped", "the call was cancelled: the explorer was shut down")
        }
    }
}
