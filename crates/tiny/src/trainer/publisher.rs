//! Publication of the trainer's weights, and the demand of explorers.

use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Duration;

use rollway_tiny_model::ModelWeights;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::TinyTrainerError;
use rollway_sync::{
    Membership, NewWeightsMessage, SyncError, Synchronizer, TrainerProgress, WaitStatus,
    WeightLocation, transport, weight_folder,
};

/// Maximum duration of one long poll.
const LONG_POLL_TIMEOUT: Duration = Duration::from_secs(20);

/// Delay after a failed poll.
const RETRY_DELAY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishFlags {
    /// Announced as the newest.
    pub is_published: bool,
    /// Kept permanently.
    pub is_full: bool,
}

/// Destination of a trainer's weights. Methods may block.
pub trait WeightPublisher: Debug + Send + 'static {
    /// Returns the newest published version.
    fn newest(&mut self) -> Result<Option<u64>, TinyTrainerError>;

    fn store(
        &mut self,
        version: u64,
        weights: &ModelWeights,
        flags: PublishFlags,
    ) -> Result<(), TinyTrainerError>;

    /// Demand of explorers.
    fn wait_status(&mut self) -> WaitStatus {
        WaitStatus::default()
    }

    /// Reports progress to waiting explorers.
    fn report(&mut self, _state: TrainerProgress) {}

    /// Reports the end: done, or failed with a message. Not called for a stopped trainer, which may
    /// resume.
    fn end(self: Box<Self>, _outcome: Result<(), String>) {}
}

/// Publishes into a folder.
#[derive(Debug)]
pub struct FolderPublisher {
    folder: PathBuf,
    max_temporary: usize,
}

impl FolderPublisher {
    /// `max_temporary`: maximum number of weights that are not kept permanently.
    pub fn new(folder: impl Into<PathBuf>, max_temporary: usize) -> Self {
        Self { folder: folder.into(), max_temporary }
    }

    /// Writes weights and returns their path.
    fn write(
        &self,
        version: u64,
        weights: &ModelWeights,
        flags: PublishFlags,
        in_use: &[u64],
    ) -> Result<PathBuf, TinyTrainerError> {
        let path = weight_folder::write(&self.folder, version, &weights.to_bytes(), flags.is_full)?;
        if flags.is_published {
            weight_folder::announce(&self.folder, version)?;
        }
        weight_folder::remove_temporary(&self.folder, self.max_temporary, in_use)?;
        Ok(path)
    }
}

impl WeightPublisher for FolderPublisher {
    fn newest(&mut self) -> Result<Option<u64>, TinyTrainerError> {
        Ok(weight_folder::latest(&self.folder)?)
    }

    fn store(
        &mut self,
        version: u64,
        weights: &ModelWeights,
        flags: PublishFlags,
    ) -> Result<(), TinyTrainerError> {
        self.write(version, weights, flags, &[]).map(drop)
    }
}

/// Publishes through the synchronizer; permanent weights also go into a folder.
#[derive(Debug)]
pub struct SyncPublisher {
    synchronizer: Synchronizer,
    folder: FolderPublisher,
    runtime: Handle,
    membership: Membership,
    demand: watch::Receiver<WaitStatus>,
    progress: watch::Sender<TrainerProgress>,
    _polling: Polling,
}

impl SyncPublisher {
    /// Registers the trainer. `folder` is that of the job.
    pub async fn enter(
        synchronizer: &Synchronizer,
        name: &str,
        folder: FolderPublisher,
    ) -> Result<Self, SyncError> {
        let membership = synchronizer.join_trainer(name).await?;
        let (sender, demand) = watch::channel(WaitStatus::default());
        let _polling = Polling(tokio::spawn(poll(synchronizer.clone(), sender)));
        let runtime = Handle::current();
        let synchronizer = synchronizer.clone();
        let progress = watch::Sender::new(TrainerProgress::Training);
        Ok(Self { synchronizer, folder, runtime, membership, demand, progress, _polling })
    }

    /// Returns the last progress that the trainer reported.
    pub fn progress(&self) -> watch::Receiver<TrainerProgress> {
        self.progress.subscribe()
    }
}

/// Aborts the task on drop.
#[derive(Debug)]
struct Polling(JoinHandle<()>);

impl Drop for Polling {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Polls the demand of explorers.
async fn poll(synchronizer: Synchronizer, sender: watch::Sender<WaitStatus>) {
    let mut last = None;
    loop {
        match synchronizer.wait_status(last, LONG_POLL_TIMEOUT).await {
            Ok(demand) => {
                last = Some(demand);
                sender.send_replace(demand);
            }
            Err(error) => {
                tracing::warn!(%error, "synchronizer unreachable, retrying");
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }
}

impl WeightPublisher for SyncPublisher {
    fn newest(&mut self) -> Result<Option<u64>, TinyTrainerError> {
        let newest = self.runtime.block_on(self.synchronizer.newest());
        Ok(newest.map(|newest| newest.version))
    }

    fn store(
        &mut self,
        version: u64,
        weights: &ModelWeights,
        flags: PublishFlags,
    ) -> Result<(), TinyTrainerError> {
        let is_sent = transport(self.synchronizer.method()).is_sent_as_bytes();
        let mut message = is_sent.then(|| NewWeightsMessage::Bytes(weights.to_bytes().into()));
        if !is_sent || flags.is_full {
            let in_use = self.runtime.block_on(self.synchronizer.view()).loading;
            let path = self.folder.write(version, weights, flags, &in_use)?;
            message.get_or_insert_with(|| WeightLocation::Folder(path).into());
        }
        if let Some(message) = message.filter(|_| flags.is_published) {
            self.runtime.block_on(self.synchronizer.publish(version, message))?;
        }
        Ok(())
    }

    fn wait_status(&mut self) -> WaitStatus {
        *self.demand.borrow_and_update()
    }

    fn report(&mut self, state: TrainerProgress) {
        self.progress.send_replace(state.clone());
        self.runtime.block_on(self.synchronizer.trainer_state(state));
    }

    fn end(self: Box<Self>, outcome: Result<(), String>) {
        let Self { runtime, membership, .. } = *self;
        let reported = runtime.block_on(async move {
            match outcome {
                Ok(()) => membership.done().await,
                Err(message) => membership.failed(&message).await,
            }
        });
        if let Err(error) = reported {
            tracing::warn!(%error, "cannot report the end of the trainer");
        }
    }
}
