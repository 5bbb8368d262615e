//! Weight sync of the explorer: waits for weights, loads them into the servers, and reports servers
//! that keep old ones.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rollway_config::{EngineType, Mode, SyncStyle};
use rollway_core::explore::{PlanInput, SyncResult};
use rollway_core::sync::{TensorSpec, TransferGroup};
use rollway_gateway::models::{
    ServerState, ServerUpdateOutcome, ServerUpdateReport, ServerView, WeightSource, WeightUpdate,
    WeightUpdateReport,
};
use rollway_sync::tensor_files::{NamedTensor, read};
use rollway_sync::{
    FailedLoad, PublishedWeights, ServerFleet, Synchronizer, WeightLocation, WeightRequest,
    WeightWaitResult, weight_folder,
};

use super::embedded::InitialWeights;
use super::resources::{ExplorerHandles, ExplorerResources};
use super::run_loop::ExplorerLoop;
use super::{ExplorerError, JobEvent, Result, WaitLimit, WaitReason};
use crate::gateway_options::trained_model;

/// First and longest pause before weights are loaded again.
const LOAD_PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));

/// Maximum number of servers that a wait names.
const MAX_NAMED_SERVERS: usize = 4;

/// Name of the transfer group.
const GROUP: &str = "rollway";

/// Source of the weights in the servers.
#[derive(Debug, Default)]
pub(super) struct LoadedWeights {
    /// `None`: the initial weights of the servers, or weights of a transfer group.
    folder: Option<PathBuf>,
    group: Option<TransferGroup>,
    /// Identity of the group that the servers have joined.
    joined: Option<(String, u16, String)>,
    /// No trainer has joined or published in time.
    pub(super) without_trainer: bool,
}

impl LoadedWeights {
    pub(super) fn new(start: InitialWeights) -> Self {
        Self { folder: start.map(|(_, folder)| folder), ..Self::default() }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct SyncRequest {
    pub(super) step: u64,
    pub(super) have: u64,
    pub(super) at_least: u64,
    pub(super) demand: bool,
    /// The wait after the last step.
    pub(super) is_last: bool,
}

impl SyncRequest {
    /// Returns the reason of the wait and its timeout.
    fn wait(&self, join: Option<Duration>, sync: Duration) -> (WaitReason, WaitLimit) {
        let sync_limit = WaitLimit { key: "synchronizer.sync_timeout", timeout: sync };
        match join.filter(|timeout| *timeout < sync) {
            Some(timeout) => {
                let key = "synchronizer.trainer_join_timeout";
                (WaitReason::Trainer { step: self.step }, WaitLimit { key, timeout })
            }
            None if self.is_last => (WaitReason::LastWeights, sync_limit),
            None => {
                let at_least = self.at_least.max(self.have + 1);
                (WaitReason::Weights { step: self.step, at_least }, sync_limit)
            }
        }
    }
}

/// Result of a weight sync, the time waited for it, and the time of loading.
type SyncOutcome = Result<(SyncResult, Duration, Duration)>;

/// Returns the folder of a version of the weights, if it exists.
pub(super) fn checkpoint(job_dir: &Path, version: u64) -> Option<PathBuf> {
    // Weights pushed through memory are in their own folder.
    let pushed = || in_folder(&weight_folder::own_memory(job_dir)?, version);
    in_folder(job_dir, version).or_else(pushed)
}

fn in_folder(root: &Path, version: u64) -> Option<PathBuf> {
    Some(weight_folder::weights(root, version)).filter(|path| path.is_dir())
}

/// Returns the initial weights of an embedded model: those of the resumed job, or else the newest.
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

/// Returns the newest weights of a job as initial weights of an embedded model.
pub(crate) fn newest(job_dir: &Path) -> Result<InitialWeights> {
    start(job_dir, None)
}

/// Waits for weights and loads them.
pub(super) async fn sync(handles: &ExplorerHandles, request: &SyncRequest) -> SyncOutcome {
    let (waited, took) = handles.wait(request).await?;
    handles.load_after_wait(waited, request, took).await
}

/// Closes the buffer, waits for the last weights of the trainer, and loads them.
pub(super) async fn close(handles: &ExplorerHandles, step: u64, have: u64) -> SyncOutcome {
    if let Some(sink) = &handles.sink {
        sink.close().await.map_err(ExplorerError::Pipeline)?;
    }
    // Only the last version is enough. A trainer that has not joined does not say which one it is.
    let at_least =
        if handles.join_timeout(have, true).await.is_some() { have + 1 } else { u64::MAX };
    let mut request = SyncRequest { step, have, at_least, demand: true, is_last: true };
    let (began, mut newest) = (Instant::now(), have);
    loop {
        let waited = handles.wait_for_end(&mut request).await?;
        // The trainer may still make progress, or other explorers may still feed it.
        if matches!(waited, WeightWaitResult::TimedOut(_))
            && handles.is_progressing(&mut newest).await
        {
            continue;
        }
        let request = SyncRequest { at_least: request.have + 1, ..request };
        return handles.load_after_wait(waited, &request, began.elapsed()).await;
    }
}

/// Loads the newest weights. Returns the version in the servers.
pub(super) async fn load_newest(handles: &ExplorerHandles, have: u64) -> Result<(u64, Duration)> {
    let newest = match &handles.synchronizer {
        Some(synchronizer) => synchronizer.newest().await,
        None => None,
    };
    if newest.is_none_or(|newest| newest.version <= have) {
        return Ok((have, Duration::ZERO));
    }
    // The wait protects the weights from being removed before they are loaded.
    let request = SyncRequest { step: 0, have, at_least: 0, demand: false, is_last: false };
    match handles.wait(&request).await?.0 {
        WeightWaitResult::New(newest) | WeightWaitResult::TrainerDone(Some(newest)) => {
            handles.load_or_newer(newest).await
        }
        WeightWaitResult::TrainerFailed(reason) => Err(ExplorerError::TrainerFailed(reason)),
        WeightWaitResult::NothingNew
        | WeightWaitResult::TrainerDone(None)
        | WeightWaitResult::TimedOut(_) => Ok((have, Duration::ZERO)),
    }
}

impl ExplorerHandles {
    async fn wait(&self, request: &SyncRequest) -> Result<(WeightWaitResult, Duration)> {
        let Some(synchronizer) = &self.synchronizer else {
            let message = "mode `bench` has no trainer".to_owned();
            return Err(ExplorerError::NotNow(message));
        };
        let began = Instant::now();
        let sync_timeout = Duration::from(self.config.synchronizer.sync_timeout);
        loop {
            self.report_fleet(None).await;
            let join_timeout = self.join_timeout(request.have, request.is_last).await;
            let want = WeightRequest {
                explorer: self.config.explorer.name.clone(),
                current: request.have,
                at_least: request.at_least,
                publish_now: request.demand,
                timeout: join_timeout.map_or(sync_timeout, |timeout| timeout.min(sync_timeout)),
            };
            let (reason, limit) = request.wait(join_timeout, sync_timeout);
            let waited = self.waits.log_during(reason, Some(limit), synchronizer.wait(want)).await;
            let timed_out = matches!(waited, WeightWaitResult::TimedOut(_));
            if !timed_out || join_timeout.is_none() {
                return Ok((waited, began.elapsed()));
            }
            // The trainer may have joined during the wait.
            if self.join_timeout(request.have, request.is_last).await.is_some() {
                self.continue_without_trainer();
                return Ok((WeightWaitResult::NothingNew, began.elapsed()));
            }
        }
    }

    /// Waits for the last weights of the trainer. It does not end while it sends others: these are
    /// received meanwhile.
    async fn wait_for_end(&self, request: &mut SyncRequest) -> Result<WeightWaitResult> {
        let wanted = *request;
        let waiting = self.wait(&wanted);
        tokio::pin!(waiting);
        loop {
            tokio::select! {
                waited = &mut waiting => return Ok(waited?.0),
                sent = self.sent_after(request.have), if wanted.at_least == u64::MAX => {
                    request.have = self.load_or_newer(sent).await?.0;
                }
            }
        }
    }

    /// Waits until the trainer sends weights that are newer than a version.
    async fn sent_after(&self, version: u64) -> PublishedWeights {
        loop {
            let newest = match &self.synchronizer {
                Some(synchronizer) => synchronizer.newest().await,
                None => None,
            };
            let is_sent =
                |it: &PublishedWeights| it.version > version && it.location.is_sent_once();
            if let Some(sent) = newest.filter(is_sent) {
                return sent;
            }
            tokio::time::sleep(LOAD_PAUSES.0).await;
        }
    }

    /// Returns the maximum wait for a trainer that may not exist: in mode `explore`, before one has
    /// joined or published. `None`: there is a trainer. A trainer that only publishes does not
    /// report its end, so that the wait for its last weights is bounded too.
    async fn join_timeout(&self, have: u64, is_last: bool) -> Option<Duration> {
        let synchronizer = self.synchronizer.as_ref()?;
        if self.config.mode != Mode::Explore {
            return None;
        }
        let view = synchronizer.view().await;
        // A view without this explorer comes from an unreachable host: its members are unknown.
        let is_known = view.explorers.iter().any(|it| it.name == self.config.explorer.name);
        let has_published = have > 0 || view.newest.is_some();
        if !is_known || view.trainer.is_some() || (has_published && !is_last) {
            return None;
        }
        let timeout = self.config.synchronizer.trainer_join_timeout.into();
        Some(if self.loaded().without_trainer { Duration::ZERO } else { timeout })
    }

    fn continue_without_trainer(&self) {
        if !std::mem::replace(&mut self.loaded().without_trainer, true) {
            let seconds = self.config.synchronizer.trainer_join_timeout;
            self.watchers.emit(&JobEvent::Info(format!(
                "no trainer has joined within {seconds} s (`synchronizer.trainer_join_timeout`): \
                 the job continues with the weights that the servers have"
            )));
        }
    }

    /// Loads the weights that a wait ended with.
    async fn load_after_wait(
        &self,
        waited: WeightWaitResult,
        &SyncRequest { step, have, at_least, .. }: &SyncRequest,
        took: Duration,
    ) -> SyncOutcome {
        match waited {
            WeightWaitResult::New(published) => {
                let (version, loading) = self.load_or_newer(published).await?;
                Ok((SyncResult::Version(version), took, loading))
            }
            WeightWaitResult::NothingNew => Ok((SyncResult::NothingNew, took, Duration::ZERO)),
            WeightWaitResult::TrainerDone(last) => {
                let (version, loading) = match last.filter(|last| last.version > have) {
                    Some(last) => self.load_or_newer(last).await?,
                    None => (have, Duration::ZERO),
                };
                Ok((SyncResult::TrainerDone(version), took, loading))
            }
            WeightWaitResult::TrainerFailed(reason) => Err(ExplorerError::TrainerFailed(reason)),
            WeightWaitResult::TimedOut(state) => {
                Err(ExplorerError::NoWeights { step, at_least, waited: took, state })
            }
        }
    }

    /// Tells whether the trainer has published since, or another explorer is active.
    async fn is_progressing(&self, newest: &mut u64) -> bool {
        let Some(synchronizer) = &self.synchronizer else { return false };
        let view = synchronizer.view().await;
        let (own, version) = (&self.config.explorer.name, view.newest.map(|it| it.version));
        let is_newer = version.is_some_and(|version| version > *newest);
        *newest = version.unwrap_or(*newest);
        is_newer || view.explorers.iter().any(|it| it.name != *own && it.state == "present")
    }

    /// Loads weights, or newer ones if their folder is removed meanwhile: the trainer keeps only
    /// the last few. Returns the version and the duration.
    async fn load_or_newer(&self, mut published: PublishedWeights) -> Result<(u64, Duration)> {
        let began = Instant::now();
        loop {
            let Err(error) = self.load(&published).await else {
                return Ok((published.version, began.elapsed()));
            };
            let newest = match &self.synchronizer {
                Some(synchronizer) if published.location.is_removed() => {
                    let newest = synchronizer.newest().await;
                    newest.filter(|newest| newest.version > published.version)
                }
                Some(synchronizer) if published.location.is_sent_once() => {
                    self.wait_for_other_publication(synchronizer, &published).await
                }
                _ => None,
            };
            match newest {
                Some(newest) => published = newest,
                None => return Err(error),
            }
        }
    }

    /// Loads weights into all servers with retries, and records the version. The gateway updates
    /// unreachable servers before it uses them.
    pub(super) async fn load(&self, published: &PublishedWeights) -> Result<Duration> {
        let began = Instant::now();
        let timeout: Duration = self.config.synchronizer.sync_timeout.into();
        let version = published.version;
        let weights = match &published.location {
            WeightLocation::Folder(folder) => WeightSource::Path(folder.clone()),
            WeightLocation::Group(group) => WeightSource::Group(self.group(group)),
        };
        let in_flight = crate::gateway_options::in_flight(&self.config);
        let update = WeightUpdate { version, weights, in_flight, timeout };
        let mut report = self.update(&update).await;
        if !self.is_loaded(version) {
            report = match update.weights {
                WeightSource::Path(_) => self.load_again(&update, report).await,
                // The trainer has sent them, or has given up.
                WeightSource::Group(_) => self.report_failed(version, report).await,
            };
        }
        if !self.is_loaded(version) {
            let servers = report_message(&report);
            let location = published.location.to_string();
            return Err(ExplorerError::Stale { version, servers, location });
        }
        if !report.is_complete() {
            let note = format!(
                "weights of version {version}: {}; the gateway does not use it before it has them",
                report_message(&report)
            );
            self.watchers.emit(&JobEvent::Info(note));
        }
        self.set_loaded(&update.weights);
        if self.restored.advance_version(version) {
            self.coordinator.note_version(version).await?;
        }
        self.report_fleet(None).await;
        Ok(began.elapsed())
    }

    /// Loads weights into all servers once. They drain their requests before.
    async fn update(&self, update: &WeightUpdate) -> WeightUpdateReport {
        let (version, timeout) = (update.version, update.timeout);
        let is_old = |server: &ServerView| server.loaded != Some(version);
        let mut servers: Vec<String> = self.servers().filter(is_old).map(|it| it.url).collect();
        let more = servers.len().saturating_sub(MAX_NAMED_SERVERS);
        servers.truncate(MAX_NAMED_SERVERS);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let reason = WaitReason::Loading { version, servers: servers.join(", ") + &more };
        let limit = WaitLimit { key: "synchronizer.sync_timeout", timeout };
        self.waits.log_during(reason, Some(limit), self.models.update(update.clone())).await
    }

    /// Reports to trainers the servers that they can send weights to, and a failed load.
    pub(super) async fn report_fleet(&self, failed: Option<FailedLoad>) {
        let Some(synchronizer) = &self.synchronizer else { return };
        // A server with older weights gets the next ones, too.
        let is_there =
            |state: &ServerState| matches!(state, ServerState::Running | ServerState::Updating);
        let servers: Vec<ServerView> =
            self.servers().filter(|server| is_there(&server.state)).collect();
        let engine = servers.first().map_or("", |server| server.engine.name());
        let is_uniform = servers.iter().all(|server| server.engine.name() == engine);
        let fleet = ServerFleet {
            engine: if is_uniform { engine.to_owned() } else { "mixed".to_owned() },
            servers: u32::try_from(servers.len()).unwrap_or(u32::MAX),
            ranks_per_server: self.config.explorer.rollout_model.tensor_parallel_size,
            version: self.served_version(),
            failed,
        };
        synchronizer.set_fleet(&self.config.explorer.name, &fleet).await;
    }

    /// Reports to the trainer that the servers have not received its weights.
    async fn report_failed(&self, version: u64, report: WeightUpdateReport) -> WeightUpdateReport {
        let reason = report_message(&report);
        tracing::warn!(version, reason, "servers have not received the weights of the trainer");
        self.report_fleet(Some(FailedLoad { version, reason })).await;
        report
    }

    /// Waits until a trainer publishes weights in another way, because it could not send them.
    async fn wait_for_other_publication(
        &self,
        synchronizer: &Synchronizer,
        published: &PublishedWeights,
    ) -> Option<PublishedWeights> {
        let version = published.version;
        let timeout = Duration::from(self.config.synchronizer.load_timeout);
        let began = Instant::now();
        while began.elapsed() < timeout {
            let newest = synchronizer.newest().await;
            let is_other =
                |it: &PublishedWeights| it.version >= version && it.location != published.location;
            if let Some(other) = newest.filter(is_other) {
                return Some(other);
            }
            tokio::time::sleep(LOAD_PAUSES.0).await;
        }
        None
    }

    /// Repeats an update until the servers have the weights, at most for
    /// `synchronizer.load_timeout`.
    async fn load_again(
        &self,
        update: &WeightUpdate,
        mut report: WeightUpdateReport,
    ) -> WeightUpdateReport {
        let timeout = Duration::from(self.config.synchronizer.load_timeout);
        let limit = WaitLimit { key: "synchronizer.load_timeout", timeout };
        let servers = report_message(&report);
        let reason = WaitReason::Server { model: trained_model(&self.config), servers };
        let _wait = self.waits.begin(reason, Some(limit));
        let (began, mut pause) = (Instant::now(), LOAD_PAUSES.0);
        while !self.is_loaded(update.version) && began.elapsed() + pause < timeout {
            let (version, servers) = (update.version, report_message(&report));
            tracing::warn!(version, servers, ?pause, "loading weights failed, retrying");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LOAD_PAUSES.1);
            report = self.update(update).await;
        }
        report
    }

    /// Tells whether there are usable servers and all of them have a version.
    fn is_loaded(&self, version: u64) -> bool {
        let usable = self.usable();
        !usable.is_empty() && usable.iter().all(|server| server.loaded == Some(version))
    }

    /// Returns the usable servers of the trained model.
    fn usable(&self) -> Vec<ServerView> {
        self.servers().filter(|server| server.state == ServerState::Running).collect()
    }

    /// Returns the servers of the trained model.
    fn servers(&self) -> impl Iterator<Item = ServerView> {
        let models = self.models.view().into_iter().filter(|model| model.trained);
        models.flat_map(|model| model.servers)
    }

    /// Returns the version of all servers. `None`: they differ, or do not report it.
    pub(super) fn served_version(&self) -> Option<u64> {
        let usable = self.usable();
        let first = usable.first()?.loaded;
        usable.iter().all(|server| server.loaded == first).then_some(first).flatten()
    }

    /// Completes a group from `set_up_group`, and requests a join if the servers have not joined
    /// it.
    fn group(&self, group: &TransferGroup) -> TransferGroup {
        let loaded = self.loaded();
        let own = loaded.group.clone().filter(|_| group.tensors.is_empty());
        let mut group = own.unwrap_or_else(|| group.clone());
        group.join = loaded.joined.as_ref() != Some(&identity(&group));
        group
    }

    fn set_loaded(&self, weights: &WeightSource) {
        let mut loaded = self.loaded();
        match weights {
            WeightSource::Path(folder) => loaded.folder = Some(folder.clone()),
            WeightSource::Group(group) => {
                loaded.joined = Some(identity(group));
                loaded.folder = None;
            }
        }
    }

    /// Returns a tensor by its name, from the weights that the servers loaded.
    pub(super) async fn weight(&self, name: &str) -> Result<NamedTensor> {
        let model = &self.config.explorer.rollout_model;
        let given = || model.model_path.as_ref().map(PathBuf::from).filter(|path| path.is_dir());
        let Some(folder) = self.loaded().folder.clone().or_else(given) else {
            if model.engine_type == EngineType::Tiny {
                return built_in(name);
            }
            let message = "the folder of the servers' weights is unknown\nhint: set \
                        `explorer.rollout_model.model_path` to the folder of the model";
            return Err(ExplorerError::NotNow(message.to_owned()));
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
            let message = "the transfer group has no tensors: name them in the order in which the \
                        trainer sends them";
            return Err(ExplorerError::NotNow(message.to_owned()));
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

/// Returns a tensor of the initial weights of the embedded model.
fn built_in(name: &str) -> Result<NamedTensor> {
    let (weights, _) = rollway_tiny_model::arithmetic();
    let Some((shape, numbers)) = weights.tensor(name) else {
        let names: Vec<&str> = weights.names().collect();
        let message = format!("the tiny model has no tensor {name:?}: it has {}", names.join(", "));
        return Err(ExplorerError::Weights(message));
    };
    Ok(NamedTensor {
        name: name.to_owned(),
        dtype: "F32".to_owned(),
        shape: shape.to_vec(),
        bytes: numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
    })
}

/// Warns of weights that a new job found in the servers: another job has loaded them.
fn warn_of_foreign_weights(version: u64) {
    tracing::warn!(
        "the inference servers report weights of version {version}, but this new job has published \
         none: they are those of another job or trainer, and experiences are labelled with their \
         version; restart the servers with the initial weights before a new job"
    );
}

fn identity(group: &TransferGroup) -> (String, u16, String) {
    (group.master_address.clone(), group.master_port, group.name.clone())
}

/// Describes the result of each server.
fn report_message(report: &WeightUpdateReport) -> String {
    let server = |it: &ServerUpdateReport| match &it.outcome {
        ServerUpdateOutcome::Updated | ServerUpdateOutcome::AlreadyCurrent => {
            format!("{} has them", it.url)
        }
        ServerUpdateOutcome::RolledBack(reason) => {
            format!("{} keeps its old weights: {reason}", it.url)
        }
        ServerUpdateOutcome::Broken(reason) => format!("{} failed: {reason}", it.url),
        ServerUpdateOutcome::Skipped(reason) => format!("{} was skipped: {reason}", it.url),
    };
    let servers: Vec<String> = report.servers.iter().map(server).collect();
    if servers.is_empty() { "no server is reachable".to_owned() } else { servers.join("; ") }
}

impl ExplorerLoop {
    /// Loads the weights of a resumed job before the first call. Returns whether the servers have
    /// them; otherwise the trainer may publish them later.
    pub(super) async fn load_initial_weights(
        &mut self,
        resources: &ExplorerHandles,
    ) -> Result<bool> {
        let Some(synchronizer) = &resources.synchronizer else { return Ok(true) };
        let progress = self.plan.progress();
        let (want, job_dir) = (progress.version, resources.config.job_dir());
        let is_new = progress.begun == 0 && progress.evaluated.is_none();
        let (have, newest) = (resources.served_version(), synchronizer.newest().await);
        let is_there = have == Some(want) || (want == 0 && have.is_none());
        let exact = || {
            let location = WeightLocation::Folder(checkpoint(&job_dir, want).filter(|_| want > 0)?);
            Some(PublishedWeights { version: want, location })
        };
        let newer = |newest: &PublishedWeights| newest.version >= want.max(1);
        let target = match newest {
            newest if is_new => newest.filter(newer),
            newest if is_there => exact().or_else(|| newest.filter(|it| it.version == want)),
            newest => exact().or_else(|| newest.filter(newer)),
        };
        let Some(target) = target else { return Ok(is_there || is_new) };
        let mut version = target.version;
        // Servers that have them keep them. The gateway needs the folder for those that return.
        if have != Some(version) || matches!(target.location, WeightLocation::Folder(_)) {
            (version, _) = resources.load_or_newer(target).await?;
        }
        self.plan.apply(PlanInput::Loaded(version));
        self.save_if_changed().await?;
        Ok(true)
    }

    /// Waits for the weights of the resumed job if only the trainer can have them.
    pub(super) async fn recover_weights(&mut self, resources: &ExplorerHandles) -> Result<()> {
        if self.load_initial_weights(resources).await? {
            if let (0, Some(version @ 1..)) = (self.version(), resources.served_version()) {
                warn_of_foreign_weights(version);
            }
            return Ok(());
        }
        let (step, version) = (self.plan.progress().finalized, self.version());
        let note = format!(
            "the servers do not have version {version} of the weights, which the job needs to \
             resume: waiting for the trainer to publish it or a later one"
        );
        resources.watchers.emit(&JobEvent::Info(note));
        let request = SyncRequest {
            step,
            have: version - 1,
            at_least: version,
            demand: true,
            is_last: false,
        };
        let (outcome, ..) = sync(resources, &request).await?;
        match outcome {
            SyncResult::Version(found) | SyncResult::TrainerDone(found) if found >= version => {
                self.plan.apply(PlanInput::Loaded(found));
                self.save_if_changed().await
            }
            SyncResult::Version(_) | SyncResult::TrainerDone(_) | SyncResult::NothingNew => {
                let found = match resources.served_version() {
                    Some(have) => format!("the servers have version {have}"),
                    None => "the servers do not report a common version".to_owned(),
                };
                let folder = resources.config.job_dir();
                Err(ExplorerError::LostWeights { version, found, folder })
            }
        }
    }

    pub(super) async fn sync_now(&mut self, resources: &ExplorerResources) -> Result<u64> {
        let progress = self.plan.progress();
        let (step, have) = (progress.finalized, progress.version);
        let demand = resources.config.synchronizer.sync_style == SyncStyle::ExplorerDriven;
        let request = SyncRequest { step, have, at_least: 0, demand, is_last: false };
        let (outcome, waited, loading) = sync(resources, &request).await?;
        if let SyncResult::Version(version) | SyncResult::TrainerDone(version) = outcome {
            self.plan.apply(PlanInput::Loaded(version));
            self.save_if_changed().await?;
        }
        let version = self.version();
        resources.watchers.emit(&JobEvent::Synced { step, version, waited, loading });
        Ok(version)
    }
}
