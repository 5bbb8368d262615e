//! Where the trainer's weights go, and what it hears of those who wait for them.

use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Duration;

use rollway_tiny_model::ModelWeights;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::TinyTrainerError;
use rollway_config::SyncMethod;
use rollway_sync::{
    Membership, NewWeightsMessage, SyncError, Synchronizer, TrainerProgress, WaitStatus,
    weight_folder,
};

/// How long one question about those who wait may take.
const LONG_POLL_TIMEOUT: Duration = Duration::from_secs(20);

/// How long to wait before a synchronizer that did not answer is asked again.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// What is to be done with weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishFlags {
    /// They are the newest, and everybody is told.
    pub is_published: bool,
    /// They stay for good.
    pub is_full: bool,
}

/// Where a trainer's weights go. All of it may block.
pub trait WeightPublisher: Debug + Send + 'static {
    /// Returns the newest version out there; none if there is none.
    fn newest(&mut self) -> Result<Option<u64>, TinyTrainerError>;

    /// Takes weights.
    fn put(
        &mut self,
        version: u64,
        weights: &ModelWeights,
        occasion: PublishFlags,
    ) -> Result<(), TinyTrainerError>;

    /// What is known of those who wait.
    fn wait_status(&mut self) -> WaitStatus {
        WaitStatus::default()
    }

    /// Tells those who wait what the trainer is at.
    fn tell(&mut self, _state: TrainerProgress) {}

    /// Tells them that it is over: done, or failed with words. Nothing is told of a trainer that
    /// was stopped, which may go on another time.
    fn end(self: Box<Self>, _how: Result<(), String>) {}
}

/// Weights go into a folder, and whoever wants them looks there.
#[derive(Debug)]
pub struct FolderPublisher {
    folder: PathBuf,
    max_passing: usize,
}

impl FolderPublisher {
    /// Takes the folder, and how many weights that do not stay for good it has at most.
    pub fn new(folder: impl Into<PathBuf>, max_passing: usize) -> Self {
        Self { folder: folder.into(), max_passing }
    }

    /// Writes weights, and returns where they are.
    fn write(
        &self,
        version: u64,
        weights: &ModelWeights,
        occasion: PublishFlags,
        in_use: &[u64],
    ) -> Result<PathBuf, TinyTrainerError> {
        let place =
            weight_folder::write(&self.folder, version, &weights.to_bytes(), occasion.is_full)?;
        if occasion.is_published {
            weight_folder::announce(&self.folder, version)?;
        }
        weight_folder::tidy(&self.folder, self.max_passing, in_use)?;
        Ok(place)
    }
}

impl WeightPublisher for FolderPublisher {
    fn newest(&mut self) -> Result<Option<u64>, TinyTrainerError> {
        Ok(weight_folder::latest(&self.folder)?)
    }

    fn put(
        &mut self,
        version: u64,
        weights: &ModelWeights,
        occasion: PublishFlags,
    ) -> Result<(), TinyTrainerError> {
        self.write(version, weights, occasion, &[]).map(drop)
    }
}

/// Weights go to explorers through the synchronizer; those that stay are in a folder as well.
#[derive(Debug)]
pub struct SyncPublisher {
    synchronizer: Synchronizer,
    folder: FolderPublisher,
    runtime: Handle,
    seat: Membership,
    asked: watch::Receiver<WaitStatus>,
    _listening: Listening,
}

impl SyncPublisher {
    /// Takes the trainer's seat. `folder` is that of the job.
    pub async fn enter(
        synchronizer: &Synchronizer,
        name: &str,
        folder: FolderPublisher,
    ) -> Result<Self, SyncError> {
        let seat = synchronizer.enter_trainer(name).await?;
        let (heard, asked) = watch::channel(WaitStatus::default());
        let _listening = Listening(tokio::spawn(listen(synchronizer.clone(), heard)));
        let runtime = Handle::current();
        let synchronizer = synchronizer.clone();
        Ok(Self { synchronizer, folder, runtime, seat, asked, _listening })
    }
}

/// Ends with whoever listens.
#[derive(Debug)]
struct Listening(JoinHandle<()>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Hears of those who wait.
async fn listen(synchronizer: Synchronizer, heard: watch::Sender<WaitStatus>) {
    let mut known = None;
    loop {
        match synchronizer.wait_status(known, LONG_POLL_TIMEOUT).await {
            Ok(asked) => {
                known = Some(asked);
                heard.send_replace(asked);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot hear who waits for weights; trying again");
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

    fn put(
        &mut self,
        version: u64,
        weights: &ModelWeights,
        occasion: PublishFlags,
    ) -> Result<(), TinyTrainerError> {
        let is_pushed = self.synchronizer.method() == SyncMethod::Memory;
        let mut pushed = is_pushed.then(|| NewWeightsMessage::Bytes(weights.to_bytes().into()));
        if !is_pushed || occasion.is_full {
            let in_use = self.runtime.block_on(self.synchronizer.view()).loading;
            let place = self.folder.write(version, weights, occasion, &in_use)?;
            pushed.get_or_insert(NewWeightsMessage::Folder(place));
        }
        if let Some(pushed) = pushed.filter(|_| occasion.is_published) {
            self.runtime.block_on(self.synchronizer.publish(version, pushed))?;
        }
        Ok(())
    }

    fn wait_status(&mut self) -> WaitStatus {
        *self.asked.borrow_and_update()
    }

    fn tell(&mut self, state: TrainerProgress) {
        self.runtime.block_on(self.synchronizer.trainer_state(state));
    }

    fn end(self: Box<Self>, how: Result<(), String>) {
        let Self { runtime, seat, .. } = *self;
        let left = runtime.block_on(async move {
            match how {
                Ok(()) => seat.done().await,
                Err(why) => seat.failed(&why).await,
            }
        });
        if let Err(error) = left {
            tracing::warn!(%error, "cannot tell that the trainer has ended");
        }
    }
}
