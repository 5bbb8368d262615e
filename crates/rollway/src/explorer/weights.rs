//! Weights: waits for them, loads them into the servers, and never lets a server serve old ones
//! without a word.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rollway_config::{EngineType, SyncStyle};
use rollway_core::explore::{PlanInput, SyncResult};
use rollway_core::sync::{TensorSpec, TransferGroup};
use rollway_gateway::models::{
    InFlightPolicy, ServerState, ServerUpdateOutcome, ServerUpdateReport, ServerView, WeightSource,
    WeightUpdate, WeightUpdateReport,
};
use rollway_sync::tensor_files::{NamedTensor, read};
use rollway_sync::{
    PublishedWeights, WeightLocation, WeightRequest, WeightWaitResult, weight_folder,
};

use super::embedded::InitialWeights;
use super::resources::{ExplorerHandles, ExplorerResources};
use super::run_loop::ExplorerLoop;
use super::{ExplorerError, JobEvent, Result};

/// How often servers are asked to load weights before they are given up.
const MAX_LOAD_ATTEMPTS: u32 = 3;

/// The name of the group over which weights are sent.
const GROUP: &str = "rollway";

/// Where the weights of the servers are from.
#[derive(Debug, Default)]
pub(super) struct LoadedWeights {
    /// The folder; none: those that the servers started with, or sent over a group.
    folder: Option<PathBuf>,
    /// The group that was set up.
    group: Option<TransferGroup>,
    /// The group that the servers have joined.
    joined: Option<(String, u16, String)>,
}

impl LoadedWeights {
    pub(super) fn new(start: InitialWeights) -> Self {
        Self { folder: start.map(|(_, folder)| folder), ..Self::default() }
    }
}

/// What is wanted of an exchange.
#[derive(Clone, Copy, Debug)]
pub(super) struct SyncRequest {
    pub(super) step: u64,
    pub(super) have: u64,
    pub(super) at_least: u64,
    pub(super) demand: bool,
}

/// What came of an exchange, how long it was waited for, and how long the servers took.
type Exchanged = Result<(SyncResult, Duration, Duration)>;

/// Returns the folder of a version of a job, as servers load it; none if it is not there.
pub(super) fn checkpoint(job_dir: &Path, version: u64) -> Option<PathBuf> {
    // What was pushed is as good as what was kept.
    in_folder(job_dir, version).or_else(|| in_folder(&weight_folder::memory(job_dir), version))
}

fn in_folder(root: &Path, version: u64) -> Option<PathBuf> {
    Some(weight_folder::weights(root, version)).filter(|path| path.is_dir())
}

/// Returns the weights that an embedded model starts with: those that the job was at, or else the
/// newest.
pub(super) fn start(job_dir: &Path, version: Option<u64>) -> Result<InitialWeights> {
    if version == Some(0) {
        return Ok(None);
    }
    let exact = version.and_then(|version| Some((version, checkpoint(job_dir, version)?)));
    if exact.is_some() {
        return Ok(exact);
    }
    let newest = weight_folder::latest(job_dir)
        .map_err(|error| ExplorerError::Weights(error.to_string()))?;
    Ok(newest.filter(|it| *it > 0).and_then(|it| Some((it, checkpoint(job_dir, it)?))))
}

/// Returns the newest weights of a job, for an embedded model to start with.
pub(crate) fn newest(job_dir: &Path) -> Result<InitialWeights> {
    start(job_dir, None)
}

/// Waits for weights and loads them.
pub(super) async fn sync(hands: &ExplorerHandles, asked: &SyncRequest) -> Exchanged {
    let (waited, took) = hands.wait(asked).await?;
    match waited {
        WeightWaitResult::New(published) => {
            let (version, loading) = hands.load_or_newer(published).await?;
            Ok((SyncResult::Version(version), took, loading))
        }
        WeightWaitResult::NothingNew => Ok((SyncResult::NothingNew, took, Duration::ZERO)),
        WeightWaitResult::TrainerDone(published) => hands.last(published, asked.have, took).await,
        WeightWaitResult::TrainerFailed(why) => Err(ExplorerError::TrainerFailed(why)),
        WeightWaitResult::TimedOut(who) => {
            let SyncRequest { step, at_least, .. } = *asked;
            Err(ExplorerError::NoWeights { step, at_least, waited: took, who })
        }
    }
}

/// Tells the trainer that no more comes, waits for its last weights, and loads them.
pub(super) async fn close(hands: &ExplorerHandles, step: u64, have: u64) -> Exchanged {
    if let Some(sink) = &hands.sink {
        sink.close().await.map_err(ExplorerError::Pipeline)?;
    }
    // No version is enough but the last.
    let asked = SyncRequest { step, have, at_least: u64::MAX, demand: true };
    let (began, mut newest) = (Instant::now(), have);
    loop {
        let (waited, _) = hands.wait(&asked).await?;
        let took = began.elapsed();
        match waited {
            WeightWaitResult::New(published) => {
                let (version, loading) = hands.load_or_newer(published).await?;
                return Ok((SyncResult::Version(version), took, loading));
            }
            WeightWaitResult::NothingNew => {
                return Ok((SyncResult::NothingNew, took, Duration::ZERO));
            }
            WeightWaitResult::TrainerDone(published) => {
                return hands.last(published, have, took).await;
            }
            WeightWaitResult::TrainerFailed(why) => return Err(ExplorerError::TrainerFailed(why)),
            // A trainer that goes on, or that others still feed, is not late.
            WeightWaitResult::TimedOut(_) if hands.is_going_on(&mut newest).await => {}
            WeightWaitResult::TimedOut(who) => {
                let at_least = have + 1;
                return Err(ExplorerError::NoWeights { step, at_least, waited: took, who });
            }
        }
    }
}

/// Loads the newest weights. Returns the version that the servers have then.
pub(super) async fn load_newest(hands: &ExplorerHandles, have: u64) -> Result<(u64, Duration)> {
    let newest = match &hands.synchronizer {
        Some(synchronizer) => synchronizer.newest().await,
        None => None,
    };
    if newest.is_none_or(|newest| newest.version <= have) {
        return Ok((have, Duration::ZERO));
    }
    // Whoever has waited for weights is known to load them: they are not removed meanwhile.
    let asked = SyncRequest { step: 0, have, at_least: 0, demand: false };
    match hands.wait(&asked).await?.0 {
        WeightWaitResult::New(newest) | WeightWaitResult::TrainerDone(Some(newest)) => {
            hands.load_or_newer(newest).await
        }
        WeightWaitResult::TrainerFailed(why) => Err(ExplorerError::TrainerFailed(why)),
        WeightWaitResult::NothingNew
        | WeightWaitResult::TrainerDone(None)
        | WeightWaitResult::TimedOut(_) => Ok((have, Duration::ZERO)),
    }
}

impl ExplorerHandles {
    async fn wait(&self, asked: &SyncRequest) -> Result<(WeightWaitResult, Duration)> {
        let Some(synchronizer) = &self.synchronizer else {
            let what = "mode `bench` has no trainer to wait for".to_owned();
            return Err(ExplorerError::NotNow(what));
        };
        let began = Instant::now();
        let want = WeightRequest {
            explorer: self.config.explorer.name.clone(),
            have: asked.have,
            at_least: asked.at_least,
            demand: asked.demand,
            timeout: self.config.synchronizer.sync_timeout.into(),
        };
        let waited = synchronizer.wait(want).await;
        Ok((waited, began.elapsed()))
    }

    /// Takes the last weights of a trainer that is done.
    async fn last(&self, last: Option<PublishedWeights>, have: u64, waited: Duration) -> Exchanged {
        match last.filter(|last| last.version > have) {
            Some(last) => {
                let (version, loading) = self.load_or_newer(last).await?;
                Ok((SyncResult::TrainerDone(version), waited, loading))
            }
            None => Ok((SyncResult::TrainerDone(have), waited, Duration::ZERO)),
        }
    }

    /// Tells whether the trainer has published something since, or another explorer is at work.
    async fn is_going_on(&self, newest: &mut u64) -> bool {
        let Some(synchronizer) = &self.synchronizer else { return false };
        let view = synchronizer.view().await;
        let (own, version) = (&self.config.explorer.name, view.newest.map(|it| it.version));
        let is_newer = version.is_some_and(|version| version > *newest);
        *newest = version.unwrap_or(*newest);
        is_newer || view.explorers.iter().any(|it| it.name != *own && it.state == "here")
    }

    /// Gives all servers weights, or newer ones if those are gone before they are loaded: a trainer
    /// keeps the last few only. Returns which, and how long it took.
    async fn load_or_newer(&self, mut published: PublishedWeights) -> Result<(u64, Duration)> {
        let began = Instant::now();
        loop {
            let Err(error) = self.load(&published).await else {
                return Ok((published.version, began.elapsed()));
            };
            let newest = match (&published.location, &self.synchronizer) {
                (WeightLocation::Folder(folder), Some(synchronizer)) if !folder.exists() => {
                    synchronizer.newest().await
                }
                _ => None,
            };
            match newest.filter(|newest| newest.version > published.version) {
                Some(newest) => published = newest,
                None => return Err(error),
            }
        }
    }

    /// Gives all servers weights, and notes their version. What does not work is tried again;
    /// servers that are not there are brought up to them by the gateway before they are used.
    pub(super) async fn load(&self, published: &PublishedWeights) -> Result<Duration> {
        let began = Instant::now();
        let timeout: Duration = self.config.synchronizer.sync_timeout.into();
        let version = published.version;
        let weights = match &published.location {
            WeightLocation::Folder(folder) => WeightSource::Path(folder.clone()),
            WeightLocation::Group(group) => WeightSource::Group(self.group(group)),
        };
        // What is under way was asked of the old weights, and is finished by them.
        let in_flight = InFlightPolicy::Drain { timeout, then_abort: false };
        let update = WeightUpdate { version, weights, in_flight, timeout };
        let mut report = self.models.update(update.clone()).await;
        for _ in 1..MAX_LOAD_ATTEMPTS {
            if self.is_loaded(version) {
                break;
            }
            tracing::warn!(version, servers = report_message(&report), "weights are loaded again");
            report = self.models.update(update.clone()).await;
        }
        if !self.is_loaded(version) {
            let servers = report_message(&report);
            let place = match &published.location {
                WeightLocation::Folder(folder) => folder.display().to_string(),
                WeightLocation::Group(group) => {
                    format!("{}:{}", group.master_address, group.master_port)
                }
            };
            return Err(ExplorerError::Stale { version, servers, place });
        }
        if !report.is_complete() {
            let note = format!(
                "weights of version {version}: {}; it is not used before it has them",
                report_message(&report)
            );
            self.watchers.emit(&JobEvent::Info(note));
        }
        self.remember(&update.weights);
        if self.known.is_news(version) {
            self.coordinator.note_version(version).await?;
        }
        Ok(began.elapsed())
    }

    /// Tells whether every server that can be used has a version, and there is one.
    fn is_loaded(&self, version: u64) -> bool {
        let usable = self.usable();
        !usable.is_empty() && usable.iter().all(|server| server.version == Some(version))
    }

    /// Returns the servers of the trained model that can be used.
    fn usable(&self) -> Vec<ServerView> {
        let models = self.models.view().into_iter().filter(|model| model.trained);
        let servers = models.flat_map(|model| model.servers);
        servers.filter(|server| server.state == ServerState::Running).collect()
    }

    /// Returns the version that all servers have; none if they differ or do not tell.
    pub(super) fn served_version(&self) -> Option<u64> {
        let usable = self.usable();
        let first = usable.first()?.version;
        usable.iter().all(|server| server.version == first).then_some(first).flatten()
    }

    /// Returns a group as the servers are told it.
    fn group(&self, group: &TransferGroup) -> TransferGroup {
        let loaded = self.loaded();
        let own = loaded.group.clone().filter(|_| group.tensors.is_empty());
        let mut group = own.unwrap_or_else(|| group.clone());
        group.join = loaded.joined.as_ref() != Some(&identity(&group));
        group
    }

    fn remember(&self, weights: &WeightSource) {
        let mut loaded = self.loaded();
        match weights {
            WeightSource::Path(folder) => loaded.folder = Some(folder.clone()),
            WeightSource::Group(group) => {
                loaded.joined = Some(identity(group));
                loaded.folder = None;
            }
        }
    }

    /// Returns a weight by its name, from where the servers have it.
    pub(super) async fn weight(&self, name: &str) -> Result<NamedTensor> {
        let model = &self.config.explorer.rollout_model;
        let given = || model.model_path.as_ref().map(PathBuf::from).filter(|path| path.is_dir());
        let Some(folder) = self.loaded().folder.clone().or_else(given) else {
            if model.engine_type == EngineType::Tiny {
                return built_in(name);
            }
            let what = "nobody here knows where the servers have their weights from\nhint: set \
                        `explorer.rollout_model.model_path` to the folder of the model";
            return Err(ExplorerError::NotNow(what.to_owned()));
        };
        let name = name.to_owned();
        let read = tokio::task::spawn_blocking(move || read(&folder, &name)).await;
        let read = read.map_err(|error| ExplorerError::Weights(error.to_string()))?;
        read.map_err(|error| ExplorerError::Weights(error.to_string()))
    }

    pub(super) fn set_up_group(
        &self,
        master_address: &str,
        master_port: u16,
        tensors: Vec<TensorSpec>,
    ) -> Result<u32> {
        let model = &self.config.explorer.rollout_model;
        let ranks_per_server = model.tensor_parallel_size;
        let world_size = 1 + model.engines() * ranks_per_server;
        if tensors.is_empty() {
            let what = "a group without tensors sends nothing: name them, in the order in which \
                        the trainer sends them";
            return Err(ExplorerError::NotNow(what.to_owned()));
        }
        self.loaded().group = Some(TransferGroup {
            master_address: master_address.to_owned(),
            master_port,
            world_size,
            ranks_per_server,
            name: GROUP.to_owned(),
            backend: "nccl".to_owned(),
            join: true,
            tensors,
        });
        Ok(world_size)
    }
}

/// Returns a weight of the model that comes with the program.
fn built_in(name: &str) -> Result<NamedTensor> {
    let (weights, _) = rollway_tiny_model::arithmetic();
    let Some((shape, numbers)) = weights.tensor(name) else {
        let names: Vec<&str> = weights.names().collect();
        let what = format!("the tiny model has no tensor {name:?}: it has {}", names.join(", "));
        return Err(ExplorerError::Weights(what));
    };
    Ok(NamedTensor {
        name: name.to_owned(),
        dtype: "F32".to_owned(),
        shape: shape.to_vec(),
        bytes: numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
    })
}

fn identity(group: &TransferGroup) -> (String, u16, String) {
    (group.master_address.clone(), group.master_port, group.name.clone())
}

/// Says what became of each server.
fn report_message(report: &WeightUpdateReport) -> String {
    let word = |it: &ServerUpdateReport| match &it.outcome {
        ServerUpdateOutcome::Updated | ServerUpdateOutcome::AlreadyCurrent => {
            format!("{} has them", it.url)
        }
        ServerUpdateOutcome::RolledBack(why) => format!("{} keeps its old ones: {why}", it.url),
        ServerUpdateOutcome::Broken(why) => format!("{} failed: {why}", it.url),
        ServerUpdateOutcome::Skipped(why) => format!("{} was left out: {why}", it.url),
    };
    let servers: Vec<String> = report.servers.iter().map(word).collect();
    if servers.is_empty() { "no server could be asked".to_owned() } else { servers.join("; ") }
}

impl ExplorerLoop {
    /// Gives the servers the weights that the job is at, before anything is asked of them. Tells
    /// whether they have them: if nobody has them now, the trainer may once it is there.
    pub(super) async fn bring_up(&mut self, world: &ExplorerHandles) -> Result<bool> {
        let Some(synchronizer) = &world.synchronizer else { return Ok(true) };
        let progress = self.plan.progress();
        let (want, job_dir) = (progress.version, world.config.job_dir());
        let is_new = progress.begun == 0 && progress.evaluated.is_none();
        let (have, newest) = (world.served_version(), synchronizer.newest().await);
        let is_there = have == Some(want) || (want == 0 && have.is_none());
        let exact = || {
            let location = WeightLocation::Folder(checkpoint(&job_dir, want).filter(|_| want > 0)?);
            Some(PublishedWeights { version: want, location })
        };
        let newer = |newest: &PublishedWeights| newest.version >= want.max(1);
        let target = match newest {
            newest if is_new => newest.filter(newer),
            _ if is_there => return Ok(true),
            newest => exact().or_else(|| newest.filter(newer)),
        };
        let Some(target) = target else { return Ok(is_there || is_new) };
        let mut version = target.version;
        if have != Some(version) {
            (version, _) = world.load_or_newer(target).await?;
        }
        self.plan.apply(PlanInput::Loaded(version));
        self.keep().await?;
        Ok(true)
    }

    /// Waits for the weights that the job is at, which only the trainer can have.
    pub(super) async fn recover_weights(&mut self, world: &ExplorerHandles) -> Result<()> {
        if self.bring_up(world).await? {
            return Ok(());
        }
        let (step, version) = (self.plan.progress().finalized, self.version());
        let note = format!(
            "the servers do not have version {version} of the weights, with which the job goes \
             on: waiting for the trainer to publish it, or a later one"
        );
        world.watchers.emit(&JobEvent::Info(note));
        let asked = SyncRequest { step, have: version - 1, at_least: version, demand: true };
        let (exchange, ..) = sync(world, &asked).await?;
        match exchange {
            SyncResult::Version(found) | SyncResult::TrainerDone(found) if found >= version => {
                self.plan.apply(PlanInput::Loaded(found));
                self.keep().await
            }
            SyncResult::Version(_) | SyncResult::TrainerDone(_) | SyncResult::NothingNew => {
                let found = match world.served_version() {
                    Some(have) => format!("the servers have version {have}"),
                    None => "nobody knows which version the servers have".to_owned(),
                };
                let folder = world.config.job_dir();
                Err(ExplorerError::LostWeights { version, found, folder })
            }
        }
    }

    pub(super) async fn sync_now(&mut self, world: &ExplorerResources) -> Result<u64> {
        let progress = self.plan.progress();
        let (step, have) = (progress.finalized, progress.version);
        let demand = world.config.synchronizer.sync_style == SyncStyle::ExplorerDriven;
        let asked = SyncRequest { step, have, at_least: 0, demand };
        let (exchange, waited, loading) = sync(world, &asked).await?;
        if let SyncResult::Version(version) | SyncResult::TrainerDone(version) = exchange {
            self.plan.apply(PlanInput::Loaded(version));
            self.keep().await?;
        }
        let version = self.version();
        world.watchers.emit(&JobEvent::Synced { step, version, waited, loading });
        Ok(version)
    }
}
