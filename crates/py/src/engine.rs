//! The scheduler and the coordinator, with their runners in Python processes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{IntoPyDict, PyBytes, PyDict, PyList};
use rollway::cluster::{self, ClusterError};
use rollway::events::{RunObserver, RunObservers};
use rollway::job::FailureTally;
use rollway::{
    BatchResults, CollectOptions, PipelineSink, RestoreReport, RolloutCoordinator, RunnerBackend,
    Scheduler, Sink, Task, WithModelAccess, WithOutputCheck, WorkerPool, WorkerPoolOptions,
    WorkflowDefinition,
};
use rollway_core::metrics::{EVAL_STATS, EvalDetail, Metrics};
use rollway_core::{
    BatchResult, BatchType, CoreConfig, RunId, RunnerId, Status, StopReport, TaskId,
    UnresponsivePolicy,
};

use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::batch_id::PyBatchId;
use crate::convert::seconds;
use crate::gateway::PyGateway;
use crate::pending::PyPending;
use crate::sink::PySink;
use crate::status::status_row;
use crate::task_done::TaskDoneObserver;
use crate::{config, errors, gateway, metrics, runner_status, runtime, sink, task_snapshot};

/// Interval of worker heartbeats.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(1);

/// Interval of the Ctrl-C check while a cluster is joined.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// An encoded task: workflow name, its definition, number of runs, whether it is an eval, body.
type PackedTask = (String, Option<(String, PyBackedBytes)>, u32, bool, PyBackedBytes);

/// Command that starts a worker: program, arguments, environment.
pub(crate) type SpawnCommand = (PathBuf, Vec<String>, Vec<(String, String)>);

/// A scheduler.
#[pyclass(frozen, name = "Scheduler", module = "rollway._rollway")]
pub(crate) struct PyScheduler {
    scheduler: Scheduler,
    /// Logs failures of runs.
    failures: Arc<FailureTally>,
}

#[pymethods]
impl PyScheduler {
    /// Creates a scheduler for a number of runners; none is started yet.
    #[new]
    fn new(
        py: Python<'_>,
        config_json: &str,
        runners: u32,
        spawn: SpawnCommand,
        gateway: Option<&Bound<'_, PyGateway>>,
        on_task_done: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let (core, workers) = parts(py, config_json, runners, spawn, gateway)?;
        let _guard = runtime::handle(py)?.enter();
        let scheduler = Scheduler::new(core, workers);
        let failures = failure_log(py, config_json)?;
        let scheduler = scheduler.observed(observers(&failures, on_task_done));
        Ok(Self { scheduler, failures })
    }

    /// Calls a function for every task that ends from now on.
    fn observe_tasks(&self, py: Python<'_>, on_task_done: Py<PyAny>) -> PyResult<PyPending> {
        let scheduler = self.scheduler.clone();
        let observers = observers(&self.failures, Some(on_task_done));
        PyPending::new(py, async move { scheduler.replace_observers(observers).await }, |_, ()| {
            Ok(())
        })
    }

    fn start(&self, py: Python<'_>) -> PyResult<PyPending> {
        let scheduler = self.scheduler.clone();
        PyPending::new(py, async move { scheduler.start().await }, |_, counts| Ok(counts))
    }

    fn stop(&self, py: Python<'_>, timeout: f64) -> PyResult<PyPending> {
        let (scheduler, timeout) = (self.scheduler.clone(), seconds(timeout)?);
        PyPending::new(py, async move { scheduler.stop(timeout).await }, stop_report)
    }

    fn schedule(
        &self,
        py: Python<'_>,
        tasks: Vec<PackedTask>,
        batch_id: PyBatchId,
    ) -> PyResult<PyPending> {
        let (scheduler, tasks) = (self.scheduler.clone(), unpack(tasks));
        PyPending::new(py, async move { scheduler.schedule(tasks, batch_id.0).await }, |_, ()| {
            Ok(())
        })
    }

    fn collect(
        &self,
        py: Python<'_>,
        batch_id: PyBatchId,
        min_num: Option<u32>,
        timeout: Option<f64>,
        clear_timeout_tasks: bool,
        return_partial_tasks: bool,
    ) -> PyResult<PyPending> {
        let timeout = timeout.map(seconds).transpose()?;
        let how = CollectOptions { min_num, timeout, clear_timeout_tasks, return_partial_tasks };
        let scheduler = self.scheduler.clone();
        let future = async move {
            let kind = batch_kind(&scheduler, &batch_id).await?;
            Ok((kind, scheduler.get_payload_results(batch_id.0, how).await?))
        };
        PyPending::new(py, future, collected)
    }

    fn drain(&self, py: Python<'_>, batch_id: PyBatchId) -> PyResult<PyPending> {
        let scheduler = self.scheduler.clone();
        let future = async move {
            let kind = batch_kind(&scheduler, &batch_id).await?;
            Ok((kind, scheduler.drain_batch_payload_results(batch_id.0).await?))
        };
        PyPending::new(py, future, collected)
    }

    fn discard(&self, py: Python<'_>, batch_id: PyBatchId) -> PyResult<PyPending> {
        let scheduler = self.scheduler.clone();
        let future = async move { scheduler.discard_completed_results(batch_id.0).await };
        PyPending::new(py, future, |_, ()| Ok(()))
    }

    fn abort(
        &self,
        py: Python<'_>,
        batch_id: PyBatchId,
        return_partial_tasks: bool,
        restart_runners: bool,
    ) -> PyResult<PyPending> {
        let scheduler = self.scheduler.clone();
        let how =
            if restart_runners { UnresponsivePolicy::Replace } else { UnresponsivePolicy::Wait };
        let future =
            async move { scheduler.abort_batch(batch_id.0, return_partial_tasks, how).await };
        PyPending::new(py, future, |_, ()| Ok(()))
    }

    fn has_step(&self, py: Python<'_>, batch_id: PyBatchId) -> PyResult<PyPending> {
        let scheduler = self.scheduler.clone();
        PyPending::new(py, async move { scheduler.has_step(batch_id.0).await }, |_, has| Ok(has))
    }

    fn wait_all(&self, py: Python<'_>, timeout: Option<f64>, clear: bool) -> PyResult<PyPending> {
        let (scheduler, timeout) = (self.scheduler.clone(), timeout.map(seconds).transpose()?);
        let future = async move { scheduler.wait_all(timeout, clear).await };
        PyPending::new(py, future, |_, ()| Ok(()))
    }

    fn dynamic_timeout(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<PyPending> {
        let (scheduler, timeout) = (self.scheduler.clone(), timeout.map(seconds).transpose()?);
        let future = async move { scheduler.dynamic_timeout(timeout).await };
        PyPending::new(py, future, |_, timeout| Ok(timeout.as_secs_f64()))
    }

    fn cancel_run(
        &self,
        py: Python<'_>,
        batch_id: PyBatchId,
        task: u32,
        run: u32,
        reason: String,
    ) -> PyResult<PyPending> {
        let (scheduler, task, run) = (self.scheduler.clone(), TaskId(task), RunId(run));
        let future = async move { scheduler.cancel_run(batch_id.0, task, run, &reason).await };
        PyPending::new(py, future, |_, cancelled| Ok(cancelled))
    }

    /// Returns the tasks of a batch whose results were not taken.
    fn tasks(&self, py: Python<'_>, batch_id: PyBatchId) -> PyResult<PyPending> {
        let scheduler = self.scheduler.clone();
        let future = async move { scheduler.tasks(batch_id.0).await };
        PyPending::new(py, future, |py, tasks| task_snapshot::list(py, &tasks))
    }

    /// Returns the task of every busy runner.
    fn running_tasks(&self, py: Python<'_>) -> PyResult<PyPending> {
        let scheduler = self.scheduler.clone();
        let future = async move { scheduler.running_tasks().await };
        PyPending::new(py, future, |py, tasks| task_snapshot::running(py, &tasks))
    }

    /// Replaces one runner; returns whether there was one to replace.
    fn restart_runner(&self, py: Python<'_>, runner: u32) -> PyResult<PyPending> {
        let scheduler = self.scheduler.clone();
        let future = async move { scheduler.restart_runner(RunnerId(runner)).await };
        PyPending::new(py, future, |_, restarted| Ok(restarted))
    }

    /// Returns the status and the labels of every runner.
    fn runners(&self, py: Python<'_>) -> PyResult<PyPending> {
        let scheduler = self.scheduler.clone();
        runner_status::pending(py, async move { scheduler.runner_states().await })
    }
}

/// A coordinator.
#[pyclass(frozen, name = "Coordinator", module = "rollway._rollway")]
pub(crate) struct PyCoordinator {
    coordinator: RolloutCoordinator,
    /// `None`: experiences go to a sink in Python, or are not delivered.
    pipeline: Option<Arc<PipelineSink>>,
    failures: Arc<FailureTally>,
    restored: RestoreReport,
    detailed: bool,
}

impl PyCoordinator {
    /// Returns the buffer of its experiences, once it is open. `None`: they go to no buffer.
    pub(crate) fn buffer(&self) -> Option<Arc<dyn rollway_data::buffer::Buffer>> {
        self.pipeline.as_ref().and_then(|pipeline| pipeline.buffer())
    }
}

#[pymethods]
impl PyCoordinator {
    /// Creates a coordinator for a number of runners; none is started yet. Experiences go to
    /// `sink`, which is called with a batch id, its key and payloads and returns metrics, or
    /// through the pipeline of the configuration; `operators` has the names of its operators in
    /// Python and the function that creates one. With neither the coordinator only evaluates. Runs
    /// get keys to the models of `gateway`.
    #[new]
    fn new(
        py: Python<'_>,
        config_json: &str,
        runners: u32,
        spawn: SpawnCommand,
        sink: Option<Py<PyAny>>,
        operators: Option<(Vec<String>, Py<PyAny>)>,
        gateway: Option<&Bound<'_, PyGateway>>,
    ) -> PyResult<Self> {
        let config = config::parse(py, config_json)?;
        let pipeline = match operators {
            Some((names, make)) => Some(Arc::new(sink::pipeline(py, &config, names, make)?)),
            None => None,
        };
        let sink = match (sink, &pipeline) {
            (Some(deliver), _) => Some(Arc::new(PySink::new(deliver)) as Arc<dyn Sink>),
            (None, Some(pipeline)) => Some(Arc::clone(pipeline) as Arc<dyn Sink>),
            (None, None) => None,
        };
        let (core, workers) = parts(py, config_json, runners, spawn, gateway)?;
        let runtime = runtime::handle(py)?;
        // A sink in Python is not durable, so that a ledger before it has no benefit.
        let ledger = pipeline.as_ref().and_then(|_| rollway::ledger_options(&config));
        let (coordinator, restored) = match ledger {
            Some((folder, options)) => {
                let opening =
                    RolloutCoordinator::with_ledger(core, workers, sink, &folder, options);
                let opened = py.detach(|| runtime.block_on(opening));
                opened.map_err(|error| errors::engine(py, &error))?
            }
            None => {
                let _guard = runtime.enter();
                (RolloutCoordinator::new(core, workers, sink), RestoreReport::default())
            }
        };
        let failures = failure_log(py, config_json)?;
        let coordinator = coordinator.with_observers(observers(&failures, None));
        let detailed = config.monitor.detailed_stats;
        Ok(Self { coordinator, pipeline, failures, restored, detailed })
    }

    /// State restored from the ledger: unfinished batches as `(batch_id, type, tasks, ended runs)`,
    /// the ids of ended batches, and the newest model version.
    #[getter]
    #[expect(clippy::type_complexity, reason = "Python takes it apart at once")]
    fn restored(&self) -> (Vec<(PyBatchId, String, usize, usize)>, Vec<PyBatchId>, u64) {
        let batches = self.restored.batches.iter().map(|batch| {
            (PyBatchId(batch.batch.clone()), batch.kind.to_string(), batch.tasks, batch.ended_runs)
        });
        let ended = self.restored.results.iter().map(|result| PyBatchId(result.batch.clone()));
        (batches.collect(), ended.collect(), self.restored.version)
    }

    /// Notes the version of the model in the ledger.
    fn note_version(&self, py: Python<'_>, version: u64) -> PyResult<PyPending> {
        let coordinator = self.coordinator.clone();
        let future = async move { coordinator.note_version(version).await };
        PyPending::new(py, future, |_, ()| Ok(()))
    }

    /// Has the servers of the trained model load weights, and notes the version if one has it.
    fn update_weights(
        &self,
        py: Python<'_>,
        gateway: &Bound<'_, PyGateway>,
        path: PathBuf,
        version: u64,
        in_flight: &str,
    ) -> PyResult<PyPending> {
        let coordinator = self.coordinator.clone();
        let updating = gateway.get().updating(path, version, in_flight)?;
        let future = async move {
            let report = updating.await;
            if report.servers.iter().any(gateway::has_it) {
                coordinator.note_version(version).await?;
            }
            Ok(report)
        };
        PyPending::new(py, future, |py, report| gateway::update_report(py, &report))
    }

    /// Returns the scheduler of this coordinator's runners.
    fn scheduler(&self) -> PyScheduler {
        let failures = Arc::clone(&self.failures);
        PyScheduler { scheduler: self.coordinator.scheduler(), failures }
    }

    /// Returns the batches that are neither finalized nor aborted.
    fn pending_batches(&self, py: Python<'_>) -> PyResult<PyPending> {
        let coordinator = self.coordinator.clone();
        let future = async move { coordinator.pending_batches().await };
        PyPending::new(py, future, |py, batches| task_snapshot::batches(py, &batches))
    }

    /// Opens the pipeline without starting runners (mode `serve`).
    fn prepare_pipeline(&self, py: Python<'_>) -> PyResult<PyPending> {
        let pipeline = self.pipeline.clone();
        let future = async move {
            match pipeline {
                Some(pipeline) => pipeline.prepare().await.map_err(rollway::Error::Pipeline),
                None => Ok(()),
            }
        };
        PyPending::new(py, future, |_, ()| Ok((0, 0)))
    }

    /// Gets the pipeline ready, then the runners.
    fn prepare(&self, py: Python<'_>) -> PyResult<PyPending> {
        let (coordinator, pipeline) = (self.coordinator.clone(), self.pipeline.clone());
        let future = async move {
            if let Some(pipeline) = pipeline {
                pipeline.prepare().await.map_err(rollway::Error::Pipeline)?;
            }
            coordinator.prepare().await
        };
        PyPending::new(py, future, |_, counts| Ok(counts))
    }

    /// Stops, then closes the pipeline. What is wrong with that is part of the report: everything
    /// else has ended.
    fn shutdown(&self, py: Python<'_>, timeout: f64) -> PyResult<PyPending> {
        let (coordinator, timeout) = (self.coordinator.clone(), seconds(timeout)?);
        let pipeline = self.pipeline.clone();
        let future = async move {
            let report = coordinator.shutdown(timeout).await?;
            let closed = match pipeline {
                Some(pipeline) => tokio::time::timeout(timeout, pipeline.stop()).await,
                None => Ok(Ok(())),
            };
            let close_timed_out = |_| Err(format!("it did not close in {timeout:?}"));
            Ok((report, closed.unwrap_or_else(close_timed_out).err()))
        };
        PyPending::new(py, future, |py, (report, problem)| {
            let dict = stop_report(py, report)?;
            dict.bind(py).set_item("pipeline_error", problem)?;
            Ok(dict)
        })
    }

    /// Returns what the selectors of tasks should learn since the last time.
    fn take_feedback<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let feedback = self.pipeline.as_ref().map(|pipeline| pipeline.take_feedback());
        let calls = feedback.unwrap_or_default();
        let calls = calls.iter().map(|metric| {
            let tasksets = PyDict::new(py);
            for (taskset, (indices, values)) in metric.by_taskset() {
                let learned = PyDict::new(py);
                learned.set_item("indices", indices)?;
                learned.set_item("values", values)?;
                tasksets.set_item(taskset, learned)?;
            }
            Ok(tasksets)
        });
        PyList::new(py, calls.collect::<PyResult<Vec<_>>>()?)
    }

    fn submit(
        &self,
        py: Python<'_>,
        batch_id: PyBatchId,
        tasks: Vec<PackedTask>,
        batch_type: &str,
        min_wait_num: Option<u32>,
    ) -> PyResult<PyPending> {
        let (coordinator, tasks, kind) =
            (self.coordinator.clone(), unpack(tasks), kind(batch_type)?);
        let future =
            async move { coordinator.submit_batch(batch_id.0, tasks, kind, min_wait_num).await };
        PyPending::new(py, future, |_, ()| Ok(()))
    }

    fn finalize(
        &self,
        py: Python<'_>,
        batch_id: PyBatchId,
        batch_type: &str,
        timeout: Option<f64>,
    ) -> PyResult<PyPending> {
        let (coordinator, detailed) = (self.coordinator.clone(), self.detailed);
        let (kind, timeout) = (kind(batch_type)?, timeout.map(seconds).transpose()?);
        let future = async move {
            match kind {
                BatchType::Train => coordinator.finalize_train_batch(batch_id.0, timeout).await,
                BatchType::Eval => coordinator.finalize_eval_batch(batch_id.0, timeout).await,
            }
        };
        PyPending::new(py, future, move |py, result| batch_result(py, &result, detailed))
    }

    fn abort(
        &self,
        py: Python<'_>,
        batch_id: PyBatchId,
        reason: String,
        keep_partial_results: bool,
    ) -> PyResult<PyPending> {
        let (coordinator, detailed) = (self.coordinator.clone(), self.detailed);
        let future =
            async move { coordinator.abort_batch(batch_id.0, &reason, keep_partial_results).await };
        PyPending::new(py, future, move |py, result| {
            result.map(|result| batch_result(py, &result, detailed)).transpose()
        })
    }

    fn cancel_run(
        &self,
        py: Python<'_>,
        batch_id: PyBatchId,
        task: u32,
        run: u32,
        reason: String,
    ) -> PyResult<PyPending> {
        let (coordinator, task, run) = (self.coordinator.clone(), TaskId(task), RunId(run));
        let future = async move { coordinator.cancel_run(batch_id.0, task, run, &reason).await };
        PyPending::new(py, future, |_, cancelled| Ok(cancelled))
    }

    /// Returns the status and the labels of every runner.
    fn runners(&self, py: Python<'_>) -> PyResult<PyPending> {
        let coordinator = self.coordinator.clone();
        runner_status::pending(py, async move { coordinator.runner_states().await })
    }

    fn process(&self, py: Python<'_>, payloads: Vec<PyBackedBytes>) -> PyResult<PyPending> {
        let coordinator = self.coordinator.clone();
        let payloads = payloads.into_iter().map(Bytes::from_owner).collect();
        let future = async move { coordinator.process_experiences(payloads).await };
        PyPending::new(py, future, |py, stored| Ok(metrics::to_dict(py, &stored)?.unbind()))
    }

    fn batch_state(&self, py: Python<'_>, batch_id: PyBatchId) -> PyResult<PyPending> {
        let coordinator = self.coordinator.clone();
        let future = async move { coordinator.batch_state(batch_id.0).await };
        PyPending::new(py, future, |_, state| Ok(state.map(|state| state.to_string())))
    }
}

/// Returns what an engine is made of: what the core has to know, and a place for the workers.
fn parts(
    py: Python<'_>,
    config_json: &str,
    runners: u32,
    spawn: SpawnCommand,
    gateway: Option<&Bound<'_, PyGateway>>,
) -> PyResult<(CoreConfig, Box<dyn RunnerBackend>)> {
    let config = config::parse(py, config_json)?;
    let core = config.to_core(runners);
    let (program, args, mut env) = spawn;
    if let Some(gateway) = gateway {
        env.push((rollway_protocol::env::GATEWAY_URL.to_owned(), gateway.get().base_url()));
        if let Some(certificate) = gateway.get().certificate() {
            let name = rollway_protocol::env::GATEWAY_CERTIFICATE.to_owned();
            env.push((name, certificate.to_owned()));
        }
    }
    let options = WorkerPoolOptions {
        args,
        env,
        heartbeat: HEARTBEAT,
        runners_per_worker: config.explorer.runner_per_worker,
        ray_launcher: Some(ray_launcher(py)?),
        ..WorkerPoolOptions::new(program)
    };
    let runtime = runtime::handle(py)?;
    let children = listen(py, &runtime, cluster::worker_pool(&config, options))?;
    let name_bytes = config.explorer.limits.metric_name_bytes as usize;
    let workers: Box<dyn RunnerBackend> = match gateway {
        Some(gateway) => {
            let keys = gateway.get().keys();
            let recorded = keys.recorded_versions();
            let workers = WithOutputCheck::new(WithModelAccess::new(children, keys));
            Box::new(workers.metric_name_bytes(name_bytes).recorded_versions(recorded))
        }
        None => Box::new(WithOutputCheck::new(children).metric_name_bytes(name_bytes)),
    };
    Ok((core, workers))
}

/// Waits until workers can come. Joining a cluster takes a while; Ctrl-C is heard.
fn listen(
    py: Python<'_>,
    runtime: &Handle,
    opening: impl Future<Output = Result<WorkerPool, ClusterError>> + Send,
) -> PyResult<WorkerPool> {
    let mut opening = Box::pin(opening);
    loop {
        let opened =
            py.detach(|| runtime.block_on(async { timeout(POLL_INTERVAL, &mut opening).await }));
        match opened {
            Ok(Ok(children)) => return Ok(children),
            Ok(Err(error)) => return Err(errors::plain(py, "cluster", &error.to_string())),
            Err(_) => py.check_signals()?,
        }
    }
}

/// Returns the interpreter arguments that start the Ray launcher.
pub(crate) fn ray_launcher(py: Python<'_>) -> PyResult<Vec<String>> {
    py.import("rollway.client._launch")?.getattr("RAY_LAUNCHER")?.extract()
}

fn unpack(tasks: Vec<PackedTask>) -> Vec<Task> {
    // Tasks of one workflow share its definition.
    let mut last: Option<(Arc<str>, Arc<WorkflowDefinition>)> = None;
    let mut shared = |name: String, definition: Option<(String, PyBackedBytes)>| {
        let (encoding, body) = match definition {
            Some((encoding, body)) => (encoding, Bytes::from_owner(body)),
            None => ("name".to_owned(), Bytes::new()),
        };
        match &last {
            Some((workflow, one)) if **workflow == *name => (Arc::clone(workflow), Arc::clone(one)),
            _ => {
                let (encoding, task_encoding) = (encoding.into(), "pickle".into());
                let one = Arc::new(WorkflowDefinition { encoding, task_encoding, body });
                let workflow: Arc<str> = name.into();
                last = Some((Arc::clone(&workflow), Arc::clone(&one)));
                (workflow, one)
            }
        }
    };
    tasks
        .into_iter()
        .map(|(name, definition, repeat_times, is_eval, body)| {
            let (workflow, definition) = shared(name, definition);
            let (definition, body) = (Some(definition), Bytes::from_owner(body));
            Task { workflow, definition, repeat_times, is_eval, body }
        })
        .collect()
}

/// Returns the observer that logs the first failure of each kind.
fn failure_log(py: Python<'_>, config_json: &str) -> PyResult<Arc<FailureTally>> {
    let groups = config::parse(py, config_json)?.log.failure_groups;
    Ok(Arc::new(FailureTally::new(groups, Vec::new())))
}

/// Returns the observers of runs: one of failures and, if a function is given, one of ended tasks.
fn observers(failures: &Arc<FailureTally>, callback: Option<Py<PyAny>>) -> RunObservers {
    let mut observers: Vec<Arc<dyn RunObserver>> = vec![Arc::clone(failures) as _];
    observers.extend(callback.map(|callback| Arc::new(TaskDoneObserver::new(callback)) as _));
    RunObservers::new(observers)
}

/// Returns how the metrics of a batch are to be worked out.
async fn batch_kind(scheduler: &Scheduler, batch: &PyBatchId) -> rollway::Result<BatchType> {
    let found = scheduler.batch(batch.0.clone()).await?;
    Ok(found.map_or(BatchType::Train, |view| view.kind))
}

fn kind(name: &str) -> PyResult<BatchType> {
    match name {
        "train" => Ok(BatchType::Train),
        "eval" => Ok(BatchType::Eval),
        _ => Err(PyValueError::new_err(format!("batch_type is `train` or `eval`, not `{name}`"))),
    }
}

fn statuses(
    py: Python<'_>,
    kind: BatchType,
    all: &[(TaskId, Arc<Status>)],
) -> PyResult<Py<PyList>> {
    let metrics: Vec<Metrics> =
        py.detach(|| all.iter().map(|(_, status)| status.metrics(kind)).collect());
    let rows =
        all.iter().zip(&metrics).map(|((task, one), metrics)| status_row(py, *task, one, metrics));
    Ok(PyList::new(py, rows.collect::<PyResult<Vec<_>>>()?)?.unbind())
}

fn collected(
    py: Python<'_>,
    (kind, collected): (BatchType, BatchResults),
) -> PyResult<(Py<PyList>, Py<PyList>)> {
    let statuses = statuses(py, kind, &collected.statuses)?;
    let payloads = collected.payloads.iter().map(|payload| PyBytes::new(py, payload));
    Ok((statuses, PyList::new(py, payloads.collect::<Vec<_>>())?.unbind()))
}

fn batch_result(py: Python<'_>, result: &BatchResult, detailed: bool) -> PyResult<Py<PyDict>> {
    let detail = if detailed { EvalDetail::Stats(&EVAL_STATS) } else { EvalDetail::Mean };
    let metrics = py.detach(|| result.metrics(detail));
    let dict = PyDict::new(py);
    dict.set_item("batch_id", PyBatchId(result.batch.clone()))?;
    dict.set_item("batch_type", result.kind.to_string())?;
    dict.set_item("state", result.state.to_string())?;
    dict.set_item("reason", result.reason.as_deref())?;
    dict.set_item("finished_task_count", result.finished())?;
    dict.set_item("expected_task_count", result.tasks.total())?;
    dict.set_item("complete", result.complete())?;
    dict.set_item("ok_task_count", result.tasks.ok)?;
    dict.set_item("partial_task_count", result.tasks.partial)?;
    dict.set_item("failed_task_count", result.tasks.failed)?;
    dict.set_item("cancelled_task_count", result.tasks.cancelled)?;
    let failed = result.runs.failed.nonzero().map(|(kind, count)| (kind.name(), count));
    dict.set_item("failed_run_count", failed.into_py_dict(py)?)?;
    let cancelled = result.runs.cancelled.nonzero().map(|(reason, count)| (reason.name(), count));
    dict.set_item("cancelled_run_count", cancelled.into_py_dict(py)?)?;
    dict.set_item("delivered_payload_count", result.delivered)?;
    let dropped = result.dropped.nonzero().map(|(reason, count)| (reason.name(), count));
    dict.set_item("dropped_payload_count", dropped.into_py_dict(py)?)?;
    dict.set_item("uncertain_payload_count", result.uncertain)?;
    dict.set_item("metrics", metrics::to_dict(py, &metrics)?)?;
    dict.set_item("statuses", statuses(py, result.kind, &result.statuses)?)?;
    Ok(dict.unbind())
}

fn stop_report(py: Python<'_>, report: StopReport) -> PyResult<Py<PyDict>> {
    let StopReport { pending_runs, running_runs, undelivered, batches } = report;
    let dict = PyDict::new(py);
    dict.set_item("pending_runs", pending_runs)?;
    dict.set_item("running_runs", running_runs)?;
    dict.set_item("undelivered_payloads", undelivered)?;
    dict.set_item("batches", batches.into_iter().map(PyBatchId).collect::<Vec<_>>())?;
    Ok(dict.unbind())
}

/// Returns the variables in which a worker finds its engine: address, secret, token.
#[pyfunction]
pub(crate) fn worker_variables() -> [&'static str; 5] {
    use rollway_protocol::env::{ADDRESS, EXECUTION_MARKS, RUNNERS, SECRET, TOKEN};
    [ADDRESS, SECRET, TOKEN, RUNNERS, EXECUTION_MARKS]
}
