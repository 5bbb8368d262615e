//! Shared setup.

use std::path::Path;
use std::time::Duration;

use rollway_config::SyncMethod;
use rollway_sync::{
    PublishedWeights, Synchronizer, SynchronizerOptions, WeightLocation, WeightRequest,
    WeightWaitResult, weight_folder,
};
use tokio::task::JoinHandle;

/// Longer than any test takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn options(job: &Path, method: SyncMethod) -> SynchronizerOptions {
    let memory_root = job.to_owned();
    SynchronizerOptions {
        job: "a/b".to_owned(),
        method,
        memory_root,
        ..SynchronizerOptions::new(job)
    }
}

pub(crate) async fn open(job: &Path, method: SyncMethod) -> Synchronizer {
    Synchronizer::open_with(options(job, method)).await.unwrap()
}

pub(crate) fn request(current: u64, at_least: u64) -> WeightRequest {
    WeightRequest {
        explorer: "explorer".to_owned(),
        current,
        at_least,
        publish_now: false,
        timeout: LONG,
    }
}

/// Starts a wait in the background and returns once it is open.
pub(crate) async fn spawn_wait(
    synchronizer: &Synchronizer,
    request: WeightRequest,
) -> JoinHandle<WeightWaitResult> {
    let waiting = synchronizer.clone();
    let waiting = tokio::spawn(async move { waiting.wait(request).await });
    until_waiting(synchronizer, 1).await;
    waiting
}

/// Returns the version and the folder of new weights.
pub(crate) fn new(waited: WeightWaitResult) -> (u64, std::path::PathBuf) {
    match waited {
        WeightWaitResult::New(PublishedWeights {
            version,
            location: WeightLocation::Folder(path),
        }) => (version, path),
        other => panic!("{other:?}"),
    }
}

/// Returns a safetensors file with one number.
pub(crate) fn weights(number: f32) -> Vec<u8> {
    let head = r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let mut bytes = (head.len() as u64).to_le_bytes().to_vec();
    bytes.extend(head.as_bytes());
    bytes.extend(number.to_le_bytes());
    bytes
}

/// Publishes weights through the folder only.
pub(crate) fn publish(job: &Path, version: u64) {
    weight_folder::write(job, version, &weights(version as f32), false).unwrap();
    weight_folder::announce(job, version).unwrap();
}

/// Waits for a number of open waits.
pub(crate) async fn until_waiting(synchronizer: &Synchronizer, many: usize) {
    let mut seen = None;
    loop {
        let waits = synchronizer.wait_status(seen, LONG).await.unwrap();
        if waits.waiting >= many {
            return;
        }
        seen = Some(waits);
    }
}

/// Waits until one of them hosts the synchronizer.
pub(crate) async fn until_host(synchronizers: &[&Synchronizer]) {
    while !synchronizers.iter().any(|it| it.is_host()) {
        for synchronizer in synchronizers {
            synchronizer.view().await;
            tokio::task::yield_now().await;
        }
    }
}
