//! Hosts that end or are killed.

use std::process::Stdio;
use std::time::Duration;

use rollway_config::SyncMethod;
use rollway_sync::{Synchronizer, SynchronizerOptions, WeightWaitResult};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::world::{
    LONG, new, open, options, publish, request, spawn_wait, until_host, until_waiting,
};

#[tokio::test]
async fn another_process_takes_over_and_waits_continue() {
    let job = tempfile::tempdir().unwrap();
    let first = open(job.path(), SyncMethod::Checkpoint).await;
    let second = open(job.path(), SyncMethod::Checkpoint).await;
    let third = open(job.path(), SyncMethod::Checkpoint).await;
    first.join_explorer("gone").await.unwrap().done().await.unwrap();
    let _explorer = second.join_explorer("explorer").await.unwrap();
    let waiting = spawn_wait(&second, request(0, 1)).await;
    drop(first);
    until_host(&[&second, &third]).await;
    until_waiting(&third, 1).await;
    assert!(second.is_host() != third.is_host());
    let names: Vec<_> = third.view().await.explorers.into_iter().map(|it| it.name).collect();
    assert!(names.contains(&"gone".to_owned()), "{names:?}");
    publish(job.path(), 1);
    assert_eq!(new(waiting.await.unwrap()).0, 1);
}

#[tokio::test]
async fn a_killed_host_is_replaced() {
    let job = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["takeover::host_in_a_process", "--exact", "--nocapture"])
        .env("ROLLWAY_TEST_JOB", job.path())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    while !lines.next_line().await.unwrap().expect("it hosts").contains("hosting") {}
    let heartbeat_timeout = Duration::from_millis(100);
    let brief =
        SynchronizerOptions { heartbeat_timeout, ..options(job.path(), SyncMethod::Checkpoint) };
    let explorer = Synchronizer::open_with(brief).await.unwrap();
    assert!(!explorer.is_host());
    let _member = explorer.join_explorer("explorer").await.unwrap();
    assert_eq!(explorer.view().await.trainer.unwrap().state, "present");
    let waiting = spawn_wait(&explorer, request(0, 1)).await;
    child.kill().await.unwrap();
    // The waiting process hosts it, and the trainer is restarted.
    let trainer = explorer.join_trainer("trainer").await.unwrap();
    assert!(explorer.is_host());
    until_waiting(&explorer, 1).await;
    trainer.failed("out of memory").await.unwrap();
    let waited = waiting.await.unwrap();
    let WeightWaitResult::TrainerFailed(message) = waited else { panic!("{waited:?}") };
    assert!(message.contains("out of memory"), "{message}");
}

/// Entry point of the child process.
#[tokio::test]
async fn host_in_a_process() {
    let Some(job) = std::env::var_os("ROLLWAY_TEST_JOB") else { return };
    let heartbeat_timeout = Duration::from_millis(100);
    let brief =
        SynchronizerOptions { heartbeat_timeout, ..options(job.as_ref(), SyncMethod::Checkpoint) };
    let host = Synchronizer::open_with(brief).await.unwrap();
    let _member = host.join_trainer("trainer").await.unwrap();
    assert!(host.is_host());
    println!("hosting");
    host.explorers_left(LONG).await;
}
