//! The process that hosts the synchronizer: the hub, the listener, the weights that are kept.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rollway_base::Secret;
use rollway_config::SyncMethod;
use rollway_core::sync::{LeaveReason, MemberRole};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::address_file::SyncAddressFile;
use super::error::SyncError;
use super::folder_watch::FolderWatch;
use super::messages::{NewWeightsMessage, TrainerProgress};
use super::options::SynchronizerOptions;
use super::routes;
use super::store::WeightStore;
use super::sync_driver::SyncDriver;

/// A synchronizer that this process hosts. It ends when it is dropped.
#[derive(Debug)]
pub(super) struct SyncServer {
    hub: Arc<SyncDriver>,
    url: String,
    store: Arc<WeightStore>,
    over: CancellationToken,
    /// Says that this process is the host, until it dies.
    lock: Option<File>,
}

impl SyncServer {
    /// Serves at a listener.
    pub(super) fn start(
        options: &SynchronizerOptions,
        listener: TcpListener,
        (card, path): (SyncAddressFile, PathBuf),
        secret: Secret,
        lock: Option<File>,
    ) -> Result<Self, SyncError> {
        let over = CancellationToken::new();
        let hub = SyncDriver::start(options.lease, first(), over.clone());
        let url = card.url.clone();
        hub.remember(&card.explorers, card.trainer.as_ref());
        let store = Arc::new(WeightStore::open(options, Arc::clone(&hub), (card, path))?);
        store.look();
        if options.method == SyncMethod::Checkpoint {
            tokio::spawn(watch(Arc::clone(&store), over.clone()));
        }
        let shared =
            routes::SyncServerShared::new(Arc::clone(&hub), Arc::clone(&store), secret, options);
        routes::serve(listener, shared, over.clone());
        tracing::info!(url, job = options.job, "this process hosts the synchronizer");
        Ok(Self { hub, url, store, over, lock })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) const fn hub(&self) -> &Arc<SyncDriver> {
        &self.hub
    }

    pub(super) fn enter(&self, role: MemberRole, name: &str) -> Result<(u64, Duration), SyncError> {
        self.store.enter(role, name)
    }

    pub(super) async fn leave(&self, seat: u64, how: &LeaveReason) {
        self.store.leave(seat, how).await;
    }

    pub(super) async fn trainer(&self, seat: u64, state: TrainerProgress) -> bool {
        self.store.trainer(seat, state).await
    }

    pub(super) async fn publish(
        &self,
        version: u64,
        weights: NewWeightsMessage,
    ) -> Result<(), SyncError> {
        self.store.publish(version, weights).await
    }
}

impl Drop for SyncServer {
    fn drop(&mut self) {
        self.over.cancel();
        self.store.forget();
        // Nobody who looks for a host now is told of this one.
        if let Some(lock) = self.lock.take() {
            drop(lock);
        }
    }
}

/// Returns a number that no board of this job began with before, and leaves room for many after.
fn first() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(0)
}

/// Tells of weights that come into the folder, for as long as there is a host.
async fn watch(store: Arc<WeightStore>, over: CancellationToken) {
    let folder = store.folder().to_owned();
    let Ok(watch) = tokio::task::spawn_blocking(move || FolderWatch::new(&folder)).await else {
        return;
    };
    loop {
        let is_well = store.look_apart().await;
        tokio::select! {
            () = over.cancelled() => return,
            () = watch.changed(!is_well) => {}
        }
    }
}
