//! Opens and closes the parts of an explorer.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rollway_config::{Config, Mode, TrainerType};
use rollway_data::pipeline::OperatorRegistry;
use rollway_engine::{JobReaderServer, PipelineSink, RestoreReport, RolloutCoordinator, Sink};
use rollway_gateway::gateway::Gateway;
use rollway_gateway::models::{Models, RouteNeeds, ServerView};
use rollway_sync::{Membership, SyncError, Synchronizer};
use rollway_tasksets::TasksetOpener;
use tokio::sync::Mutex as AsyncMutex;

use super::checkpoint::{CheckpointFile, ExplorerCheckpoint};
use super::embedded::EmbeddedServers;
use super::model_stack::ModelStack;
use super::restored::RestoredBatches;
use super::run_loop::{ExplorerLoop, JobTasksets};
use super::weights::{self, LoadedWeights};
use super::{
    ExplorerError, ExplorerOptions, JobEvent, JobObservers, JobWaits, Result, WaitLimit, WaitReason,
};
use crate::gateway_file::GatewayAddressFile;
use crate::gateway_options::trained_model;
use crate::workflow_runtime::WorkflowRuntime;

/// Maximum wait for a usable server of the trained model.
const SERVER_START_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum time for attempts and deliveries to end at a shutdown. Short, because the next start
/// repeats them.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Handles for the actions of the plan. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub(super) struct ExplorerHandles {
    pub(super) config: Arc<Config>,
    pub(super) runtime: WorkflowRuntime,
    pub(super) watchers: JobObservers,
    pub(super) waits: JobWaits,
    pub(super) coordinator: RolloutCoordinator,
    pub(super) restored: Arc<RestoredBatches>,
    pub(super) sink: Option<Arc<PipelineSink>>,
    pub(super) models: Models,
    pub(super) synchronizer: Option<Synchronizer>,
    membership: Arc<AsyncMutex<Option<Membership>>>,
    loaded: Arc<Mutex<LoadedWeights>>,
    pub(super) runners: u32,
}

#[derive(Debug)]
pub(super) struct ExplorerResources {
    handles: ExplorerHandles,
    pub(super) parts: OpenParts,
}

impl Deref for ExplorerResources {
    type Target = ExplorerHandles;

    fn deref(&self) -> &ExplorerHandles {
        &self.handles
    }
}

/// Parts that have to be closed.
#[derive(Debug, Default)]
pub(super) struct OpenParts {
    embedded: Option<EmbeddedServers>,
    pub(super) gateway: Option<Gateway>,
    /// For `rollway servers`.
    gateway_file: Option<GatewayAddressFile>,
    sink: Option<Arc<PipelineSink>>,
    coordinator: Option<RolloutCoordinator>,
    reader_server: Option<JobReaderServer>,
}

/// Opens all parts, or closes those that are open if one cannot be opened.
pub(super) async fn open(
    config: &Config,
    options: ExplorerOptions,
) -> Result<(ExplorerResources, ExplorerLoop)> {
    let mut parts = OpenParts::default();
    let (handles, mut state) = match Box::pin(parts.open(config, options)).await {
        Ok(open) => open,
        Err(error) => {
            // The first error is the cause.
            let _ = parts.close().await;
            return Err(error);
        }
    };
    let mut resources = ExplorerResources { handles, parts };
    match state.load_initial_weights(&resources).await {
        // Missing weights are waited for when they are needed: the trainer starts later.
        Ok(_) => Ok((resources, state)),
        Err(error) => {
            resources.failed(&error.to_string()).await;
            let _ = resources.close().await;
            Err(error)
        }
    }
}

impl OpenParts {
    async fn open(
        &mut self,
        config: &Config,
        options: ExplorerOptions,
    ) -> Result<(ExplorerHandles, ExplorerLoop)> {
        create_folder(config)?;
        let config = Arc::new(config.clone());
        let explores = config.mode != Mode::Bench;
        let runtime = options.runtime.map_or_else(|| WorkflowRuntime::from_config(&config), Ok)?;
        let checkpoint = explores.then(|| CheckpointFile::of(&config));
        let (sets, saved) =
            read(Arc::clone(&config), checkpoint.clone(), runtime.needs_prompts()).await?;
        let version = saved.as_ref().map(|saved| saved.progress().version);
        let start = if explores { weights::start(&config.job_dir(), version)? } else { None };
        let stack = ModelStack::start(&config, &start, &options.observers).await?;
        self.gateway_file = write_address(&config, &stack);
        let (embedded, gateway) = stack.into_parts();
        self.embedded = Some(embedded);
        let gateway = &*self.gateway.insert(gateway);
        let models = gateway.handle().models().clone();
        let waits = JobWaits::new(options.watchers.clone());
        wait_for_server(&config, &models, &waits).await?;
        let synchronizer = match options.synchronizer {
            None if explores => Some(Synchronizer::open(&config).await?),
            given => given.filter(|_| explores),
        };
        if explores {
            let sink = pipeline(Arc::clone(&config), options.operators).await?;
            self.sink = Some(Arc::clone(&sink));
            sink.prepare().await.map_err(ExplorerError::Pipeline)?;
        }
        let workers = runtime.start_backend(&config, gateway).await?;
        let runners = config.explorer.rollout_model.engines() * config.explorer.runner_per_model;
        let core = config.to_core(runners);
        let sink = self.sink.clone().map(|sink| sink as Arc<dyn Sink>);
        let (coordinator, restored) =
            match rollway_engine::ledger_options(&config).filter(|_| explores) {
                Some((folder, options)) => {
                    RolloutCoordinator::with_ledger(core, workers, sink, &folder, options).await?
                }
                None => (RolloutCoordinator::new(core, workers, sink), RestoreReport::default()),
            };
        check_begun(checkpoint.as_ref().filter(|_| saved.is_none()), &restored)?;
        let coordinator = coordinator.with_observers(options.observers);
        self.coordinator = Some(coordinator.clone());
        start_runners(&coordinator, &waits).await?;
        let membership = match &synchronizer {
            Some(synchronizer) => Some(synchronizer.join_explorer(&config.explorer.name).await?),
            None => None,
        };
        // The embedded trainer reads the buffer in this process.
        let is_read_remotely =
            config.mode == Mode::Explore || config.trainer.trainer_type == TrainerType::Command;
        if let Some(sink) = self.sink.as_ref().filter(|_| is_read_remotely) {
            self.reader_server = JobReaderServer::of(&config, sink).await?;
        }
        let handles = ExplorerHandles {
            watchers: options.watchers,
            waits,
            restored: Arc::new(RestoredBatches::new(restored)),
            sink: self.sink.clone(),
            membership: Arc::new(AsyncMutex::new(membership)),
            loaded: Arc::new(Mutex::new(LoadedWeights::new(start))),
            config,
            runtime,
            coordinator,
            models,
            synchronizer,
            runners,
        };
        let state = ExplorerLoop::new(&handles.config, checkpoint, sets, saved);
        Ok((handles, state))
    }

    /// Closes the parts in the order of their dependencies. Returns the first error.
    async fn close(&mut self) -> Result<()> {
        let stopped = match self.coordinator.take() {
            Some(coordinator) => coordinator.shutdown(SHUTDOWN_TIMEOUT).await.map(drop),
            None => Ok(()),
        };
        if let Some(reader_server) = self.reader_server.take() {
            reader_server.withdraw().await;
        }
        let closed = match self.sink.take() {
            Some(sink) => sink.stop().await.map_err(ExplorerError::Pipeline),
            None => Ok(()),
        };
        self.gateway_file = None;
        if let Some(gateway) = self.gateway.take() {
            gateway.stop(Duration::ZERO).await;
        }
        if let Some(embedded) = self.embedded.take() {
            embedded.stop().await;
        }
        stopped?;
        closed
    }
}

/// Waits for the first runners. The coordinator logs this wait.
async fn start_runners(coordinator: &RolloutCoordinator, waits: &JobWaits) -> Result<()> {
    let _wait = waits.begin(WaitReason::Start { message: None }, None);
    match coordinator.prepare().await? {
        (0, wanted) => Err(ExplorerError::NoRunner { wanted }),
        _ => Ok(()),
    }
}

impl ExplorerHandles {
    pub(super) fn loaded(&self) -> MutexGuard<'_, LoadedWeights> {
        self.loaded.lock()
    }

    pub(super) fn emit_began(&self, done_steps: u64, total_steps: u64, tasks_per_step: u32) {
        self.watchers.emit(&JobEvent::Began {
            mode: self.config.mode,
            job_dir: self.config.job_dir(),
            done_steps,
            total_steps: Some(total_steps),
            tasks_per_step: tasks_per_step.into(),
            runners: self.runners,
        });
    }

    /// Leaves the synchronizer: all steps are done.
    pub(super) async fn done(&self) {
        if let Some(membership) = self.membership.lock().await.take() {
            log_sync_error(membership.done().await);
        }
    }

    /// Leaves the synchronizer with an error.
    pub(super) async fn failed(&self, message: &str) {
        if let Some(membership) = self.membership.lock().await.take() {
            log_sync_error(membership.failed(message).await);
        }
    }
}

impl ExplorerResources {
    pub(super) fn handles(&self) -> ExplorerHandles {
        self.handles.clone()
    }

    pub(super) fn reader_server(&self) -> Option<(String, &Path)> {
        self.parts
            .reader_server
            .as_ref()
            .map(|reader_server| (reader_server.url(), reader_server.secret_file()))
    }

    /// Closes all parts. A second call does nothing.
    pub(super) async fn close(&mut self) -> Result<()> {
        if self.parts.coordinator.is_none() {
            return Ok(());
        }
        self.failed("stopped; resumes when it is started again").await;
        self.parts.close().await
    }
}

/// Writes the address of the gateway into the job's folder; the job also works without it.
fn write_address(config: &Config, stack: &ModelStack) -> Option<GatewayAddressFile> {
    let written = GatewayAddressFile::write(config.job_dir(), stack.gateway(), stack.key());
    written.inspect_err(|error| tracing::warn!(%error, "`rollway servers` cannot be used")).ok()
}

/// Logs that the synchronizer is gone; its members notice the end of this explorer by themselves.
fn log_sync_error(reported: std::result::Result<(), SyncError>) {
    if let Err(error) = reported {
        tracing::warn!(%error, "synchronizer unreachable; the end of this explorer was \
         not reported");
    }
}

/// Creates the sink, on a thread for blocking calls: operators may be user code.
async fn pipeline(
    config: Arc<Config>,
    operators: Option<Arc<OperatorRegistry>>,
) -> Result<Arc<PipelineSink>> {
    let make = move || {
        let operators = operators.unwrap_or_else(|| Arc::new(OperatorRegistry::built_in()));
        PipelineSink::new(&config, &operators)
    };
    let made = tokio::task::spawn_blocking(make).await;
    let made = made.map_err(|error| ExplorerError::Pipeline(error.to_string()))?;
    Ok(Arc::new(made?))
}

fn create_folder(config: &Config) -> Result<()> {
    let created = config.create_job_dir().map(drop);
    created.map_err(|error| ExplorerError::State {
        path: config.job_dir(),
        message: error.to_string(),
        hint: "set `checkpoint_root_dir` or `name` to another folder".to_owned(),
    })
}

/// Refuses batches of the ledger without a checkpoint, which is written before the first batch.
fn check_begun(without: Option<&CheckpointFile>, restored: &RestoreReport) -> Result<()> {
    let is_new = restored.batches.is_empty() && restored.results.is_empty();
    match without {
        Some(file) if !is_new => Err(file.missing()),
        _ => Ok(()),
    }
}

/// Opens the tasksets and restores their state.
async fn read(
    config: Arc<Config>,
    checkpoint: Option<CheckpointFile>,
    needs_prompts: bool,
) -> Result<(JobTasksets, Option<ExplorerCheckpoint>)> {
    let read = move || {
        let saved = checkpoint.as_ref().map(CheckpointFile::load).transpose()?.flatten();
        let mut opener = TasksetOpener::new(&config.buffer);
        if !needs_prompts {
            opener = opener.without_prompts();
        }
        let mut train = checkpoint.is_some().then(|| opener.train()).transpose()?;
        if let (Some(tasks), Some(saved)) = (&mut train, &saved) {
            tasks.restore(&saved.tasks)?;
        }
        Ok((JobTasksets::new(train, opener.evals()?, config.buffer.batch_size), saved))
    };
    let read = tokio::task::spawn_blocking(read).await;
    read.unwrap_or_else(|error| Err(ExplorerError::NotNow(error.to_string())))
}

/// Checks that the checkpoint of an earlier process, if there is one, can be resumed with the
/// tasksets of the configuration.
pub(crate) async fn check_checkpoint(config: &Config) -> Result<()> {
    let checkpoint = CheckpointFile::of(config);
    if checkpoint.load()?.is_none() {
        return Ok(());
    }
    let needs_prompts = WorkflowRuntime::from_config(config)?.needs_prompts();
    read(Arc::new(config.clone()), Some(checkpoint), needs_prompts).await.map(drop)
}

async fn wait_for_server(config: &Config, models: &Models, waits: &JobWaits) -> Result<()> {
    let timeout: Duration = config.synchronizer.sync_timeout.into();
    let waited = SERVER_START_TIMEOUT.min(timeout);
    let limit =
        (timeout == waited).then_some(WaitLimit { key: "synchronizer.sync_timeout", timeout });
    let servers = trained_servers(models);
    let reason = WaitReason::Server { model: trained_model(config), servers };
    let picked = tokio::time::timeout(waited, models.pick(RouteNeeds::default()));
    if let Ok(Ok(_)) = waits.log_during(reason, limit, picked).await {
        return Ok(());
    }
    let (model, servers) = (trained_model(config), trained_servers(models));
    Err(ExplorerError::NoServer { model, servers, waited })
}

/// Returns the states of the servers of the trained model.
fn trained_servers(models: &Models) -> String {
    let view = models.view();
    let servers = view.iter().filter(|model| model.trained).flat_map(|model| &model.servers);
    let state = |server: &ServerView| format!("{} is {}", server.url, server.state);
    servers.map(state).collect::<Vec<_>>().join("; ")
}
