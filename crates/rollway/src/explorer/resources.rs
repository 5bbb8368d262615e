//! Opens everything that an explorer works with, and closes it again.

use std::ops::Deref;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollway_config::{Config, Mode, TrainerType};
use rollway_data::pipeline::OperatorRegistry;
use rollway_engine::events::RunObservers;
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
use super::{ExplorerError, ExplorerOptions, JobObservers, Result};
use crate::gateway_options::trained_model;
use crate::workflow_runtime::WorkflowRuntime;

/// How long a server of the trained model may take to be there.
const SERVER_START_TIMEOUT: Duration = Duration::from_secs(60);

/// How long attempts and deliveries under way have to end when an explorer is shut down. Not long:
/// what is cut is run, or delivered, when the job goes on.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// What orders are carried out with. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct ExplorerHandles {
    pub(super) config: Arc<Config>,
    pub(super) fleet: WorkflowRuntime,
    pub(super) watchers: JobObservers,
    pub(super) coordinator: RolloutCoordinator,
    pub(super) known: Arc<RestoredBatches>,
    pub(super) sink: Option<Arc<PipelineSink>>,
    pub(super) models: Models,
    pub(super) synchronizer: Option<Synchronizer>,
    seat: Arc<AsyncMutex<Option<Membership>>>,
    loaded: Arc<Mutex<LoadedWeights>>,
    pub(super) runners: u32,
}

/// Everything that is open.
#[derive(Debug)]
pub(super) struct ExplorerResources {
    hands: ExplorerHandles,
    pub(super) gateway: Option<Gateway>,
    embedded: Option<EmbeddedServers>,
    offer: Option<JobReaderServer>,
    is_open: bool,
}

impl Deref for ExplorerResources {
    type Target = ExplorerHandles;

    fn deref(&self) -> &ExplorerHandles {
        &self.hands
    }
}

/// What is open so far.
#[derive(Debug, Default)]
struct ResourceBuilder {
    embedded: Option<EmbeddedServers>,
    gateway: Option<Gateway>,
    sink: Option<Arc<PipelineSink>>,
    coordinator: Option<RolloutCoordinator>,
    offer: Option<JobReaderServer>,
}

/// Opens everything. What was opened is closed again if the rest cannot be.
pub(super) async fn open(
    config: &Config,
    options: ExplorerOptions,
) -> Result<(ExplorerResources, ExplorerLoop)> {
    let mut opened = ResourceBuilder::default();
    let (hands, mut state) = match opened.all(config, options).await {
        Ok(open) => open,
        Err(error) => {
            opened.close().await;
            return Err(error);
        }
    };
    let ResourceBuilder { embedded, gateway, offer, .. } = opened;
    let mut world = ExplorerResources { hands, gateway, embedded, offer, is_open: true };
    match state.bring_up(&world).await {
        // What is still missing is waited for when it is needed: the trainer comes later.
        Ok(_) => Ok((world, state)),
        Err(error) => {
            world.failed(&error.to_string()).await;
            // The first error is the one to tell.
            let _ = world.close().await;
            Err(error)
        }
    }
}

impl ResourceBuilder {
    async fn all(
        &mut self,
        config: &Config,
        options: ExplorerOptions,
    ) -> Result<(ExplorerHandles, ExplorerLoop)> {
        let config = Arc::new(config.clone());
        let explores = config.mode != Mode::Bench;
        let fleet = options.fleet.map_or_else(|| WorkflowRuntime::from_config(&config), Ok)?;
        let place = explores.then(|| CheckpointFile::of(&config));
        let (sets, saved) = read(Arc::clone(&config), place.clone(), fleet.needs_prompts()).await?;
        let version = saved.as_ref().map(|saved| saved.progress().version);
        let start = if explores { weights::start(&config.job_dir(), version)? } else { None };
        self.serve(&config, &start, &options.observers).await?;
        let Some(gateway) = &self.gateway else {
            return Err(ExplorerError::NotNow("there is no gateway".to_owned()));
        };
        let models = gateway.handle().models().clone();
        wait_for_server(&config, &models).await?;
        let synchronizer = match options.synchronizer {
            None if explores => Some(Synchronizer::open(&config).await?),
            given => given.filter(|_| explores),
        };
        if explores {
            let sink = pipeline(Arc::clone(&config), options.operators).await?;
            self.sink = Some(Arc::clone(&sink));
            sink.prepare().await.map_err(ExplorerError::Pipeline)?;
        }
        let workers = fleet.start_backend(&config, gateway).await?;
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
        let coordinator = coordinator.with_observers(options.observers);
        self.coordinator = Some(coordinator.clone());
        if let (0, wanted) = coordinator.prepare().await? {
            return Err(ExplorerError::NoRunner { wanted });
        }
        let seat = match &synchronizer {
            Some(synchronizer) => Some(synchronizer.enter_explorer(&config.explorer.name).await?),
            None => None,
        };
        // The embedded trainer reads it where it is.
        let is_read_elsewhere =
            config.mode == Mode::Explore || config.trainer.trainer_type == TrainerType::Command;
        if let Some(sink) = self.sink.as_ref().filter(|_| is_read_elsewhere) {
            self.offer = JobReaderServer::of(&config, sink).await?;
        }
        let hands = ExplorerHandles {
            watchers: options.watchers,
            known: Arc::new(RestoredBatches::new(restored)),
            sink: self.sink.clone(),
            seat: Arc::new(AsyncMutex::new(seat)),
            loaded: Arc::new(Mutex::new(LoadedWeights::new(start))),
            config,
            fleet,
            coordinator,
            models,
            synchronizer,
            runners,
        };
        let state = ExplorerLoop::new(&hands.config, place, sets, saved);
        Ok((hands, state))
    }

    /// Starts the embedded models and the gateway.
    async fn serve(
        &mut self,
        config: &Config,
        start: &super::embedded::InitialWeights,
        observers: &RunObservers,
    ) -> Result<()> {
        let served = ModelStack::start(config, start, observers).await?;
        let (embedded, gateway) = served.into_parts();
        self.embedded = Some(embedded);
        self.gateway = Some(gateway);
        Ok(())
    }

    async fn close(&mut self) {
        if let Some(coordinator) = self.coordinator.take() {
            let _ = coordinator.shutdown(SHUTDOWN_TIMEOUT).await;
        }
        if let Some(offer) = self.offer.take() {
            offer.withdraw().await;
        }
        if let Some(sink) = self.sink.take() {
            let _ = sink.close().await;
        }
        if let Some(gateway) = self.gateway.take() {
            gateway.stop(Duration::ZERO).await;
        }
        if let Some(embedded) = self.embedded.take() {
            embedded.stop().await;
        }
    }
}

impl ExplorerHandles {
    pub(super) fn loaded(&self) -> MutexGuard<'_, LoadedWeights> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells everybody that this explorer is done.
    pub(super) async fn done(&self) {
        if let Some(seat) = self.seat.lock().await.take() {
            log_sync_error(seat.done().await);
        }
    }

    /// Tells everybody that this explorer ends with an error.
    pub(super) async fn failed(&self, words: &str) {
        if let Some(seat) = self.seat.lock().await.take() {
            log_sync_error(seat.failed(words).await);
        }
    }
}

impl ExplorerResources {
    pub(super) fn hands(&self) -> ExplorerHandles {
        self.hands.clone()
    }

    pub(super) fn offered(&self) -> Option<(String, &Path)> {
        self.offer.as_ref().map(|offer| (offer.url(), offer.secret_file()))
    }

    /// Closes everything, in the order in which the parts need each other.
    pub(super) async fn close(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.is_open) {
            return Ok(());
        }
        self.failed("it was stopped, and goes on when it is started again").await;
        let stopped = self.coordinator.shutdown(SHUTDOWN_TIMEOUT).await.map(drop);
        if let Some(offer) = self.offer.take() {
            offer.withdraw().await;
        }
        let closed = match &self.sink {
            Some(sink) => sink.close().await.map_err(ExplorerError::Pipeline),
            None => Ok(()),
        };
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

/// Nobody listens any more: who waits for this explorer finds out by itself.
fn log_sync_error(heard: std::result::Result<(), SyncError>) {
    if let Err(error) = heard {
        tracing::warn!(%error, "the synchronizer does not hear that this explorer ends");
    }
}

/// Makes the sink of a configuration. Operators may be anybody's code, and take their time.
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

/// Opens the tasks, and has them go on where they were.
async fn read(
    config: Arc<Config>,
    place: Option<CheckpointFile>,
    needs_prompts: bool,
) -> Result<(JobTasksets, Option<ExplorerCheckpoint>)> {
    let read = move || {
        let saved = place.as_ref().map(CheckpointFile::load).transpose()?.flatten();
        let mut opener = TasksetOpener::new(&config.buffer);
        if !needs_prompts {
            opener = opener.without_prompts();
        }
        let mut train = place.is_some().then(|| opener.train()).transpose()?;
        if let (Some(tasks), Some(saved)) = (&mut train, &saved) {
            tasks.restore(&saved.tasks)?;
        }
        Ok((JobTasksets::new(train, opener.evals()?, config.buffer.batch_size), saved))
    };
    let read = tokio::task::spawn_blocking(read).await;
    read.unwrap_or_else(|error| Err(ExplorerError::NotNow(error.to_string())))
}

/// Waits until a server of the trained model can be used.
async fn wait_for_server(config: &Config, models: &Models) -> Result<()> {
    let waited = SERVER_START_TIMEOUT.min(config.synchronizer.sync_timeout.into());
    if let Ok(Ok(_)) = tokio::time::timeout(waited, models.pick(RouteNeeds::default())).await {
        return Ok(());
    }
    let view = models.view();
    let servers = view.iter().filter(|model| model.trained).flat_map(|model| &model.servers);
    let state = |server: &ServerView| format!("{} is {}", server.url, server.state);
    let servers: Vec<String> = servers.map(state).collect();
    let (model, servers) = (trained_model(config), servers.join("; "));
    Err(ExplorerError::NoServer { model, servers, waited })
}
