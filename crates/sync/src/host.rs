//! The host of a synchronizer: driver, listener and weight store.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rollway_base::Secret;
use rollway_net::tls::TlsIdentity;
use rollway_net::{BoundListener, ListenerKind, ListenerOptions, RunningListener};
use tokio_util::sync::CancellationToken;

use super::address_file::SyncAddressFile;
use super::folder_watch::FolderWatch;
use super::options::SynchronizerOptions;
use super::routes;
use super::store::WeightStore;
use super::sync_driver::SyncDriver;
use super::transport::transport;

/// Time for requests in flight when hosting stops: their waits end at once.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Dropping it stops hosting.
#[derive(Debug)]
pub(super) struct SyncServer {
    driver: Arc<SyncDriver>,
    url: String,
    store: Arc<WeightStore>,
    listening: RunningListener,
    over: CancellationToken,
    /// Host lock, held until the process ends.
    lock: Option<File>,
}

impl SyncServer {
    pub(super) fn start(
        options: &SynchronizerOptions,
        (listener, tls): (BoundListener, Option<TlsIdentity>),
        (address_file, path): (SyncAddressFile, PathBuf),
        secret: Secret,
        lock: Option<File>,
    ) -> Self {
        let over = CancellationToken::new();
        let driver = SyncDriver::start(options.heartbeat_timeout, first(), over.clone());
        let url = address_file.url.clone();
        driver.remember(&address_file.explorers, address_file.trainer.as_ref());
        let store = Arc::new(WeightStore::open(options, Arc::clone(&driver), (address_file, path)));
        store.check();
        if transport(options.method).is_watched() {
            tokio::spawn(watch(Arc::clone(&store), over.clone()));
        }
        let shared =
            routes::SyncServerShared::new(Arc::clone(&driver), Arc::clone(&store), secret, options);
        let limits = options.limits.clone();
        let listener_options =
            ListenerOptions { tls, ..ListenerOptions::new(ListenerKind::Synchronizer, limits) };
        let listening =
            RunningListener::serve_shared(listener, listener_options, routes::router(shared));
        tracing::info!(url, job = options.job, "hosting the synchronizer");
        Self { driver, url, store, listening, over, lock }
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) const fn driver(&self) -> &Arc<SyncDriver> {
        &self.driver
    }

    pub(super) const fn store(&self) -> &Arc<WeightStore> {
        &self.store
    }
}

impl Drop for SyncServer {
    fn drop(&mut self) {
        self.over.cancel();
        self.listening.close_within(SHUTDOWN_TIMEOUT);
        self.store.forget();
        // Released last: no process finds this host any more.
        drop(self.lock.take());
    }
}

/// Returns a first wait id above those of earlier hosts.
fn first() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(0)
}

/// Publishes weights that appear in the folder.
async fn watch(store: Arc<WeightStore>, over: CancellationToken) {
    let folder = store.folder().to_owned();
    let Ok(watch) = tokio::task::spawn_blocking(move || FolderWatch::new(&folder)).await else {
        return;
    };
    loop {
        let is_usable = store.check_blocking().await;
        tokio::select! {
            () = over.cancelled() => return,
            () = watch.changed(!is_usable) => {}
        }
    }
}
