//! Method `checkpoint`: weights in a folder, seen by events.

use std::fs;

use rollway_config::SyncMethod;
use rollway_sync::{NewWeightsMessage, SyncError, weight_folder};

use crate::world::{new, open, publish, until_waiting, want, weights};

#[tokio::test]
async fn torn_weights_are_looked_at_again_until_they_are_whole() {
    let job = tempfile::tempdir().unwrap();
    let root = job.path();
    let host = open(root, SyncMethod::Checkpoint).await;
    let waiting = tokio::spawn({
        let host = host.clone();
        async move { host.wait(want(0, 1)).await }
    });
    until_waiting(&host, 1).await;
    // Somebody who knows no better: the number first, then the weights, in pieces.
    fs::write(root.join(weight_folder::LATEST), "").unwrap();
    fs::write(root.join(weight_folder::LATEST), "3\n").unwrap();
    let place = weight_folder::directory(root, 3);
    fs::create_dir(&place).unwrap();
    let whole = weights(3.0);
    fs::write(place.join(weight_folder::MODEL), &whole[..whole.len() - 1]).unwrap();
    assert_eq!(host.newest().await, None);
    fs::write(place.join(weight_folder::MODEL), &whole).unwrap();
    assert_eq!(new(waiting.await.unwrap()), (3, place));
}

#[tokio::test]
async fn what_was_there_before_is_known_and_versions_never_go_backwards() {
    let job = tempfile::tempdir().unwrap();
    publish(job.path(), 7);
    let host = open(job.path(), SyncMethod::Checkpoint).await;
    assert_eq!(host.newest().await.unwrap().version, 7);
    let place = weight_folder::directory(job.path(), 7);
    host.publish(7, NewWeightsMessage::Folder(place.clone())).await.unwrap();
    let refused = host.publish(6, NewWeightsMessage::Folder(place)).await.unwrap_err();
    assert!(refused.to_string().contains("never go backwards"), "{refused}");
    let nowhere = NewWeightsMessage::Folder(job.path().join("nowhere"));
    let refused = host.publish(8, nowhere).await.unwrap_err();
    assert!(matches!(refused, SyncError::Weights(_)), "{refused}");
    assert_eq!(host.newest().await.unwrap().version, 7);
}
