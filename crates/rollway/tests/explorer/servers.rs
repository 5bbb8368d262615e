//! Servers that fail or are away while weights are loaded.

use std::time::Duration;

use rollway::explorer::{ExplorerError, JobEvent, JobWait, WaitReason};
use rollway::synchronizer::{ServerFleet, Synchronizer, WeightLocation};
use rollway_base::ServerKind;
use rollway_core::sync::TransferGroup;
use rollway_mock_server::{MockServer, MockServerOptions};

use crate::world::{EventLog, Trainer, World};

/// Returns the key of a rollout model at a server.
fn model(server: &MockServer) -> String {
    let url = server.url();
    format!(
        "explorer.rollout_model={{engine_type: vllm, base_url: '{url}/v1', model_path: simulated}}"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_at_a_weight_sync_does_not_end_the_job() {
    let world = World::new();
    let options = MockServerOptions::new(ServerKind::Vllm);
    let server = MockServer::start(options.clone()).unwrap();
    let (key, address) = (model(&server), server.address());
    let seen = EventLog::default();
    let mut explorer = world.prepare(&[&key], &seen).await;
    // The workflow calls no model: only the weights need the server.
    server.stop().await;
    let trainer = Trainer::start(&explorer, &seen).await;
    let returns = async {
        until_wait(&seen).await;
        MockServer::start(MockServerOptions { address, ..options }).unwrap()
    };
    let (explored, server) = tokio::join!(explorer.explore(), returns);
    let explored = explored.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((explored.steps, explored.version), (4, 4));
    assert_eq!(server.control().version(), 4);
    drop(trainer);
    explorer.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_load_weights_are_a_wait_with_version_and_address() {
    let world = World::new();
    let update_time = Duration::from_millis(50);
    let options = MockServerOptions { update_time, ..MockServerOptions::new(ServerKind::Vllm) };
    let server = MockServer::start(options).unwrap();
    let (_, seen) = world.explore(&[&model(&server), "buffer.total_steps=1"]).await;
    let waits = seen.waits();
    let loading = |wait: &&JobWait| matches!(wait.reason, WaitReason::Loading { .. });
    let wait = waits.iter().find(loading).unwrap();
    assert_eq!(wait.reason, WaitReason::Loading { version: 1, servers: server.url() });
    assert_eq!(wait.limit.as_ref().unwrap().key, "synchronizer.sync_timeout");
}

/// Waits until the job waits for a server with the limit of the key.
async fn until_wait(seen: &EventLog) {
    let is_it = |event: &JobEvent| match event {
        JobEvent::WaitBegun(wait) => {
            let key = wait.limit.as_ref().map(|limit| limit.key);
            matches!(wait.reason, WaitReason::Server { .. })
                && key == Some("synchronizer.load_timeout")
        }
        _ => false,
    };
    while !seen.events().iter().any(is_it) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn loading_is_retried_until_its_timeout() {
    let world = World::new();
    let server = MockServer::start(MockServerOptions::new(ServerKind::Vllm)).unwrap();
    // More often than a fixed number of attempts.
    server.control().fail_updates(5);
    let key = model(&server);
    let (explored, _) = world.explore(&[&key]).await;
    assert_eq!((explored.steps, explored.version), (4, 4));

    let world = World::new();
    server.control().fail_updates(1000);
    let seen = EventLog::default();
    let keys = [&*key, "synchronizer.load_timeout=0.5"];
    let mut explorer = world.prepare(&keys, &seen).await;
    let trainer = Trainer::start(&explorer, &seen).await;
    let error = explorer.explore().await.unwrap_err();
    assert!(matches!(error, ExplorerError::Stale { version: 1, .. }), "{error}");
    drop(trainer);
    explorer.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_restarts_after_a_resume_has_the_weights_of_the_job() {
    let world = World::new();
    let options = MockServerOptions::new(ServerKind::Vllm);
    let server = MockServer::start(options.clone()).unwrap();
    let (key, address) = (model(&server), server.address());
    let method = "synchronizer.sync_method=checkpoint";
    let (explored, _) = world.explore(&[&key, method, "buffer.total_steps=2"]).await;
    assert_eq!((explored.version, server.control().version()), (2, 2));
    // The server has outlived the job, and has its weights.
    let mut explorer = world.prepare(&[&key, method], &EventLog::default()).await;
    server.stop().await;
    let server = MockServer::start(MockServerOptions { address, ..options }).unwrap();
    let control = server.control();
    let updated = control.wait_for(|counts| counts.updates == 1);
    tokio::time::timeout(Duration::from_secs(60), updated).await.unwrap();
    assert_eq!(control.version(), 2);
    explorer.shutdown().await.unwrap();
}

/// Sends weights over a group, and waits until the servers have them.
async fn send(synchronizer: &Synchronizer, version: u64) {
    let group = TransferGroup {
        master_address: "127.0.0.1".to_owned(),
        master_port: 29_500,
        world_size: 2,
        ranks_per_server: 1,
        name: "weights".to_owned(),
        backend: "gloo".to_owned(),
        join: true,
        tensors: Vec::new(),
    };
    synchronizer.publish(version, WeightLocation::Group(group).into()).await.unwrap();
    let has_it = |fleet: &Option<ServerFleet>| {
        fleet.as_ref().is_some_and(|fleet| fleet.version == Some(version))
    };
    while !synchronizer.view().await.explorers.iter().all(|explorer| has_it(&explorer.servers)) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_that_a_trainer_sends_after_the_last_step_are_received() {
    let world = World::new();
    let server = MockServer::start(MockServerOptions::new(ServerKind::Vllm)).unwrap();
    let seen = EventLog::default();
    let mut explorer = world.prepare(&[&model(&server)], &seen).await;
    let synchronizer = explorer.synchronizer().unwrap().clone();
    let membership = synchronizer.join_trainer("trainer").await.unwrap();
    let events = seen.clone();
    let trainer = tokio::spawn(async move {
        // It trains longer than the explorer explores.
        for version in 1..=5 {
            events.until(&format!("done {}", version.min(4))).await;
            send(&synchronizer, version).await;
        }
        membership.done().await.unwrap();
    });
    let explored = explorer.explore().await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((explored.steps, explored.version), (4, 5));
    assert_eq!(server.control().version(), 5);
    trainer.await.unwrap();
    explorer.shutdown().await.unwrap();
}
