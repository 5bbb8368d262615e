//! A job's folder, and what tests ask of it.

use std::path::Path;
use std::time::Duration;

use rollway_config::SyncMethod;
use rollway_sync::{
    PublishedWeights, Synchronizer, SynchronizerOptions, WeightLocation, WeightRequest,
    WeightWaitResult, weight_folder,
};

/// Longer than any test takes: nothing here ends because time is up, unless it says so.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn options(job: &Path, method: SyncMethod) -> SynchronizerOptions {
    let memory = job.join("memory");
    SynchronizerOptions { job: "a/b".to_owned(), method, memory, ..SynchronizerOptions::new(job) }
}

pub(crate) async fn open(job: &Path, method: SyncMethod) -> Synchronizer {
    Synchronizer::open_with(options(job, method)).await.unwrap()
}

pub(crate) fn want(have: u64, at_least: u64) -> WeightRequest {
    WeightRequest { explorer: "explorer".to_owned(), have, at_least, demand: false, timeout: LONG }
}

/// The version and the folder of weights that came.
pub(crate) fn new(waited: WeightWaitResult) -> (u64, std::path::PathBuf) {
    match waited {
        WeightWaitResult::New(PublishedWeights {
            version,
            location: WeightLocation::Folder(path),
        }) => (version, path),
        other => panic!("{other:?}"),
    }
}

/// A safetensors file with one number.
pub(crate) fn weights(number: f32) -> Vec<u8> {
    let head = r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let mut bytes = (head.len() as u64).to_le_bytes().to_vec();
    bytes.extend(head.as_bytes());
    bytes.extend(number.to_le_bytes());
    bytes
}

/// What a trainer does that knows nothing but the folder.
pub(crate) fn publish(job: &Path, version: u64) {
    weight_folder::write(job, version, &weights(version as f32), false).unwrap();
    weight_folder::announce(job, version).unwrap();
}

/// Waits until somebody waits for weights.
pub(crate) async fn until_waiting(synchronizer: &Synchronizer, many: usize) {
    let mut seen = None;
    loop {
        let asked = synchronizer.wait_status(seen, LONG).await.unwrap();
        if asked.waiting >= many {
            return;
        }
        seen = Some(asked);
    }
}

/// Waits until one of them hosts the synchronizer, since whoever did is gone.
pub(crate) async fn until_host(synchronizers: &[&Synchronizer]) {
    while !synchronizers.iter().any(|it| it.is_host()) {
        for synchronizer in synchronizers {
            synchronizer.view().await;
            tokio::task::yield_now().await;
        }
    }
}
