//! Weights of a host, and their publication.

use parking_lot::Mutex;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rollway_core::sync::{JoinRefusal, LeaveReason, MemberRole};

use super::address_file::SyncAddressFile;
use super::checkpoints::WeightFinder as _;
use super::error::SyncError;
use super::messages::{
    MemberStatus, NewWeightsMessage, PublishedWeights, TrainerProgress, WeightLocation,
};
use super::options::SynchronizerOptions;
use super::sync_driver::SyncDriver;
use super::tensor_files;
use super::transport::{WeightTransport, transport};
use super::weight_folder::{self, CheckpointRetention, MODEL, WeightDraft};

#[derive(Debug)]
pub(super) struct WeightStore {
    driver: Arc<SyncDriver>,
    transport: &'static dyn WeightTransport,
    retention: CheckpointRetention,
    heartbeat_timeout: Duration,
    /// Folder of weights that are published as bytes.
    folder: PathBuf,
    /// Held while publishing.
    publishing: tokio::sync::Mutex<()>,
    address_file: Mutex<SyncAddressFile>,
    path: PathBuf,
    /// Last logged error.
    logged: Mutex<String>,
}

impl WeightStore {
    pub(super) fn open(
        options: &SynchronizerOptions,
        driver: Arc<SyncDriver>,
        (address_file, path): (SyncAddressFile, PathBuf),
    ) -> Self {
        let transport = transport(options.method);
        let memory = address_file.memory.clone().filter(|_| transport.is_sent_as_bytes());
        Self {
            driver,
            transport,
            retention: transport.retention(options.retention),
            heartbeat_timeout: options.heartbeat_timeout,
            folder: memory.unwrap_or_else(|| options.job_dir.clone()),
            publishing: tokio::sync::Mutex::new(()),
            address_file: Mutex::new(address_file),
            path,
            logged: Mutex::new(String::new()),
        }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn join(&self, role: MemberRole, name: &str) -> Result<(u64, Duration), SyncError> {
        let joined = self.driver.join(role, name).map_err(refused)?;
        Ok((joined.member.0, self.heartbeat_timeout))
    }

    pub(super) async fn leave(self: &Arc<Self>, member: u64, reason: &LeaveReason) {
        // Waits get the last weights before the end.
        self.check_blocking().await;
        self.driver.leave(member, reason);
        let store = Arc::clone(self);
        let saved = run_blocking(move || store.save_members()).await;
        if let Err(error) = saved {
            tracing::warn!(%error, "the members that left are not recorded for the next host");
        }
    }

    /// Saves the members that have left, for the next host.
    fn save_members(&self) -> Result<(), SyncError> {
        let view = self.driver.view();
        let has_left = |member: &MemberStatus| matches!(member.state.as_str(), "done" | "failed");
        let mut address_file = self.address_file.lock();
        address_file.explorers = view.explorers.into_iter().filter(has_left).collect();
        address_file.trainer = view.trainer.filter(has_left);
        address_file.write(&self.path)
    }

    pub(super) async fn trainer(self: &Arc<Self>, member: u64, state: TrainerProgress) -> bool {
        if state != TrainerProgress::Training {
            // Published weights are found before waits end with `NothingNew`.
            self.check_blocking().await;
        }
        self.driver.trainer(member, state)
    }

    /// Runs [`check`](Self::check) on a blocking thread.
    pub(super) async fn check_blocking(self: &Arc<Self>) -> bool {
        let store = Arc::clone(self);
        tokio::task::spawn_blocking(move || store.check()).await.unwrap_or(false)
    }

    /// Publishes new weights of the folder. `false`: they cannot be read yet.
    pub(super) fn check(&self) -> bool {
        let Some(published) = self.transport.published(&self.folder) else { return true };
        // Read before the folder: weights published meanwhile are newer and no error.
        let known = self.driver.newest().map(|newest| newest.version);
        let found = published.newest().map_err(|error| error.to_string());
        let result = found.and_then(|newest| match newest {
            Some(newest) if known.is_some_and(|known| newest.version < known) => {
                self.is_next(newest.version).map_err(|error| error.to_string())
            }
            Some(newest) if known != Some(newest.version) => {
                tensor_files::check(&newest.path).map_err(|error| error.to_string())?;
                let location = WeightLocation::Folder(newest.path);
                let _ =
                    self.driver.published(PublishedWeights { version: newest.version, location });
                self.remove_old();
                Ok(())
            }
            _ => Ok(()),
        });
        let message = result.err().unwrap_or_default();
        let is_usable = message.is_empty();
        let mut logged = self.logged.lock();
        if message != *logged {
            if !is_usable {
                tracing::warn!(error = message, "weights unusable, retrying");
            }
            *logged = message;
        }
        is_usable
    }

    fn announce(&self, published: PublishedWeights) -> Result<(), SyncError> {
        let version = published.version;
        if self.driver.published(published).map_err(refused)? {
            tracing::debug!(version, "new weights");
        }
        Ok(())
    }

    pub(super) async fn publish(
        self: &Arc<Self>,
        version: u64,
        weights: NewWeightsMessage,
    ) -> Result<(), SyncError> {
        let _publishing = self.publishing.lock().await;
        let location = match weights {
            NewWeightsMessage::At(location) => location.absolute(),
            NewWeightsMessage::Bytes(bytes) => {
                self.is_next(version)?;
                let folder = self.folder.clone();
                let write = move || {
                    let draft = WeightDraft::begin(&folder, version)?;
                    let path = draft.path().join(MODEL);
                    fs::write(&path, &bytes).map_err(weight_folder::failed(&path))?;
                    Ok(draft)
                };
                let draft = run_blocking(move || write().map_err(|error| full(&error))).await?;
                return self.finish(draft, version).await;
            }
        };
        if let WeightLocation::Folder(path) = location.clone() {
            run_blocking(move || tensor_files::check(&path).map_err(|error| unusable(&error)))
                .await?;
        }
        self.announce(PublishedWeights { version, location })?;
        self.remove_old_blocking().await
    }

    async fn remove_old_blocking(self: &Arc<Self>) -> Result<(), SyncError> {
        let store = Arc::clone(self);
        let remove_old = move || {
            store.remove_old();
            Ok(())
        };
        run_blocking(remove_old).await
    }

    /// Deletes old weights of publish calls. A failure is logged: the new weights are published.
    fn remove_old(&self) {
        let (most, in_use) = (self.retention.max_temporary(), self.driver.loading());
        if let Err(error) = weight_folder::remove_published(&self.folder, most, &in_use) {
            tracing::warn!(%error, "old weights cannot be deleted");
        }
    }

    /// Refuses older versions before anything is written.
    pub(super) fn is_next(&self, version: u64) -> Result<(), SyncError> {
        match self.driver.newest() {
            Some(newest) if version < newest.version => {
                Err(refused(JoinRefusal::Older { version, newest: newest.version }))
            }
            _ => Ok(()),
        }
    }

    /// Begins to receive weights in chunks.
    pub(super) async fn begin(&self, version: u64) -> Result<WeightDraft, SyncError> {
        self.is_next(version)?;
        let folder = self.folder.clone();
        run_blocking(move || WeightDraft::begin(&folder, version).map_err(|error| full(&error)))
            .await
    }

    /// Checks and publishes received weights.
    pub(super) async fn finish(
        self: &Arc<Self>,
        draft: WeightDraft,
        version: u64,
    ) -> Result<(), SyncError> {
        let folder = self.folder.clone();
        let is_permanent = self.retention.is_permanent(version);
        let target = run_blocking(move || {
            tensor_files::check(draft.path()).map_err(|error| unusable(&error))?;
            let target = draft.finish_published(is_permanent).map_err(|error| full(&error))?;
            weight_folder::announce(&folder, version).map_err(|error| full(&error))?;
            Ok(target)
        });
        self.announce(PublishedWeights {
            version,
            location: WeightLocation::Folder(target.await?),
        })?;
        self.remove_old_blocking().await
    }

    /// Removes weights that no process needs after the job, if it is done.
    pub(super) fn forget(&self) {
        if self.driver.is_done() {
            self.transport.job_done(&self.folder);
        }
    }

    pub(super) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.publishing.lock().await
    }
}

async fn run_blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, SyncError> + Send + 'static,
) -> Result<T, SyncError> {
    let done = tokio::task::spawn_blocking(act).await;
    done.unwrap_or_else(|error| Err(SyncError::Refused(error.to_string())))
}

fn unusable(error: &tensor_files::TensorReadError) -> SyncError {
    SyncError::Weights(format!("these weights cannot be published: {error}"))
}

fn full(error: &weight_folder::WeightFolderError) -> SyncError {
    let hint = match error.source.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            "; free space there, or use `synchronizer.sync_method: checkpoint` with the job's \
             folder on a disk with enough space"
        }
        _ => "",
    };
    SyncError::File { path: error.path.clone(), problem: format!("{}{hint}", error.source) }
}

fn refused(refused: JoinRefusal) -> SyncError {
    SyncError::Refused(match refused {
        JoinRefusal::OtherTrainer(name) => format!(
            "the job already has the trainer {name:?}: end it first, or give this one the same \
             name (`trainer.name`) to replace it"
        ),
        JoinRefusal::TooMany(most) => {
            format!("{most} explorers have joined the synchronizer, which is the limit")
        }
        JoinRefusal::Older { version, newest } => format!(
            "weights of version {version} are older than the newest, of version {newest}: versions \
             never go backwards; begin a new job, or continue from version {newest}"
        ),
    })
}
