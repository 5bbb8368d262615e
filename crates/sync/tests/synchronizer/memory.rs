//! Method `memory`: pushed weights, of which the last two versions are kept.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};

use bytes::Bytes;
use rollway_config::SyncMethod;
use rollway_core::sync::{TensorSpec, TransferGroup};
use rollway_sync::{NewWeightsMessage, SyncError, WeightLocation, WeightRequest, weight_folder};

use crate::world::{new, open, request, spawn_wait, until_host, weights};

#[tokio::test]
async fn pushed_weights_are_checked_and_old_ones_removed() {
    let job = tempfile::tempdir().unwrap();
    let host = open(job.path(), SyncMethod::Memory).await;
    let trainer = open(job.path(), SyncMethod::Memory).await;
    assert!(!trainer.is_host() && trainer.method() == SyncMethod::Memory);
    let member = host.join_explorer("explorer").await.unwrap();
    let waiting = spawn_wait(&host, request(0, 1)).await;
    let torn = NewWeightsMessage::Bytes(Bytes::from(weights(1.0)).slice(..20));
    for synchronizer in [&host, &trainer] {
        let refused = synchronizer.publish(1, torn.clone()).await.unwrap_err();
        assert!(matches!(refused, SyncError::Weights(_)), "{refused}");
    }
    let bytes = |version: u64| NewWeightsMessage::Bytes(weights(version as f32).into());
    trainer.publish(1, bytes(1)).await.unwrap();
    let (version, first) = new(waiting.await.unwrap());
    assert_eq!((version, fs::read(first.join(weight_folder::MODEL)).unwrap()), (1, weights(1.0)));
    for version in 2..=4 {
        trainer.publish(version, bytes(version)).await.unwrap();
    }
    host.publish(5, bytes(5)).await.unwrap();
    assert!(first.exists(), "the explorer may still be loading them");
    let (version, last) = new(host.wait(request(1, 1)).await);
    assert_eq!(version, 5);
    trainer.publish(6, bytes(6)).await.unwrap();
    trainer.publish(7, bytes(7)).await.unwrap();
    let mut kept: Vec<u64> = fs::read_dir(last.parent().unwrap())
        .unwrap()
        .filter_map(|entry| weight_folder::version(entry.unwrap().file_name().to_str()?))
        .collect();
    kept.sort_unstable();
    assert_eq!(kept, [5, 6, 7], "the last two, and what is being loaded");
    let refused = trainer.publish(3, bytes(3)).await.unwrap_err();
    assert!(refused.to_string().contains("never go backwards"), "{refused}");
    // Another host finds them.
    drop((host, member));
    until_host(&[&trainer]).await;
    assert_eq!(trainer.newest().await.unwrap().version, 7);
}

#[tokio::test]
async fn weights_in_memory_are_removed_with_the_job() {
    let job = tempfile::tempdir().unwrap();
    let host = open(job.path(), SyncMethod::Memory).await;
    let explorer = host.join_explorer("explorer").await.unwrap();
    let trainer = host.join_trainer("trainer").await.unwrap();
    host.publish(1, NewWeightsMessage::Bytes(weights(1.0).into())).await.unwrap();
    let (_, folder) = new(host.wait(request(0, 1)).await);
    trainer.done().await.unwrap();
    explorer.done().await.unwrap();
    assert!(folder.exists());
    drop(host);
    while folder.exists() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_folder_of_weights_cannot_be_taken_by_others() {
    let (job, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let folder = || weight_folder::own_memory(job.path());
    assert_eq!(folder(), None);
    drop(open(job.path(), SyncMethod::Memory).await);
    let first = folder().unwrap();
    assert_eq!(fs::metadata(&first).unwrap().permissions().mode() & 0o777, 0o700);
    // The next host uses it again, unless others can change it.
    drop(open(job.path(), SyncMethod::Memory).await);
    assert_eq!(folder().as_ref(), Some(&first));
    fs::set_permissions(&first, Permissions::from_mode(0o777)).unwrap();
    assert_eq!(folder(), None);
    drop(open(job.path(), SyncMethod::Memory).await);
    let second = folder().unwrap();
    assert_ne!(second, first);
    // A link to a folder of this user.
    fs::remove_dir(&second).unwrap();
    symlink(elsewhere.path(), &second).unwrap();
    assert_eq!(folder(), None);
    let host = open(job.path(), SyncMethod::Memory).await;
    assert!(![&first, &second].contains(&&folder().unwrap()));
    host.publish(1, NewWeightsMessage::Bytes(weights(1.0).into())).await.unwrap();
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0, "nothing was written there");
    assert_eq!(fs::read_dir(&first).unwrap().count(), 0);
}

#[tokio::test]
async fn a_transfer_group_is_passed_on() {
    let job = tempfile::tempdir().unwrap();
    let _host = open(job.path(), SyncMethod::Nccl).await;
    let trainer = open(job.path(), SyncMethod::Nccl).await;
    let group = TransferGroup {
        master_address: "10.0.0.1".to_owned(),
        master_port: 29_500,
        world_size: 3,
        ranks_per_server: 2,
        name: "weights".to_owned(),
        backend: "nccl".to_owned(),
        join: true,
        tensors: vec![TensorSpec { name: "w".into(), dtype: "bfloat16".into(), shape: vec![2, 3] }],
    };
    trainer.publish(1, WeightLocation::Group(group.clone()).into()).await.unwrap();
    let waited = trainer.wait(WeightRequest { at_least: 1, ..request(0, 1) }).await;
    let rollway_sync::WeightWaitResult::New(published) = waited else { panic!("{waited:?}") };
    assert_eq!(published.location, WeightLocation::Group(group));
}
