//! Method `checkpoint`: weights in a watched folder.

use std::fs;

use rollway_config::SyncMethod;
use rollway_sync::weight_folder::{CheckpointRetention, MODEL, WeightDraft};
use rollway_sync::{SyncError, Synchronizer, SynchronizerOptions, WeightLocation, weight_folder};

use crate::world::{new, open, options, publish, request, spawn_wait, weights};

#[tokio::test]
async fn incomplete_weights_are_published_once_complete() {
    let job = tempfile::tempdir().unwrap();
    let root = job.path();
    let host = open(root, SyncMethod::Checkpoint).await;
    let waiting = spawn_wait(&host, request(0, 1)).await;
    // Written in the wrong order: the version first, then the weights in parts.
    fs::write(root.join(weight_folder::LATEST), "").unwrap();
    fs::write(root.join(weight_folder::LATEST), "3\n").unwrap();
    let folder = weight_folder::directory(root, 3);
    fs::create_dir(&folder).unwrap();
    let bytes = weights(3.0);
    fs::write(folder.join(MODEL), &bytes[..bytes.len() - 1]).unwrap();
    assert_eq!(host.newest().await, None);
    fs::write(folder.join(MODEL), &bytes).unwrap();
    assert_eq!(new(waiting.await.unwrap()), (3, folder));
}

#[tokio::test]
async fn existing_weights_are_found_and_older_versions_refused() {
    let job = tempfile::tempdir().unwrap();
    publish(job.path(), 7);
    let host = open(job.path(), SyncMethod::Checkpoint).await;
    assert_eq!(host.newest().await.unwrap().version, 7);
    let folder = weight_folder::directory(job.path(), 7);
    host.publish(7, WeightLocation::Folder(folder.clone()).into()).await.unwrap();
    let refused = host.publish(6, WeightLocation::Folder(folder).into()).await.unwrap_err();
    assert!(refused.to_string().contains("never go backwards"), "{refused}");
    let nowhere = WeightLocation::Folder(job.path().join("nowhere")).into();
    let refused = host.publish(8, nowhere).await.unwrap_err();
    assert!(matches!(refused, SyncError::Weights(_)), "{refused}");
    assert_eq!(host.newest().await.unwrap().version, 7);
}

#[tokio::test]
async fn old_published_weights_are_deleted_but_not_those_of_a_trainer() {
    let job = tempfile::tempdir().unwrap();
    let retention = CheckpointRetention { max_kept: 2, save_interval: 4 };
    let options = SynchronizerOptions { retention, ..options(job.path(), SyncMethod::Checkpoint) };
    // Written by a trainer itself, perhaps with more than weights.
    publish(job.path(), 1);
    let host = Synchronizer::open_with(options).await.unwrap();
    for version in 2..=7 {
        let draft = WeightDraft::begin(job.path(), version).unwrap();
        fs::write(draft.path().join(MODEL), weights(1.0)).unwrap();
        let is_permanent = retention.is_permanent(version);
        let folder = draft.finish_published(is_permanent).unwrap();
        host.publish(version, WeightLocation::Folder(folder).into()).await.unwrap();
    }
    let kept = |version: &u64| job.path().join(format!("global_step_{version}")).exists();
    let kept: Vec<u64> = (1..=7).filter(kept).collect();
    assert_eq!(kept, [1, 4, 6, 7], "the trainer's, the permanent one and the last two");
}
