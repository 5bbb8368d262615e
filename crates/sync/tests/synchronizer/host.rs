//! Hosting, joining and waiting.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use rollway_base::tls::{CertificateSource, TlsMode, TlsOptions};
use rollway_config::SyncMethod;
use rollway_sync::{
    SyncError, Synchronizer, SynchronizerOptions, TrainerProgress, WeightRequest, WeightWaitResult,
};

use crate::world::{LONG, new, open, options, publish, request, spawn_wait, until_waiting};

const CHECKPOINT: SyncMethod = SyncMethod::Checkpoint;

#[tokio::test]
async fn the_first_hosts_and_the_others_join_it() {
    let job = tempfile::tempdir().unwrap();
    let first = open(job.path(), CHECKPOINT).await;
    let second = open(job.path(), CHECKPOINT).await;
    assert!(first.is_host() && !second.is_host());
    assert_eq!(first.url(), second.url());
    let mode = std::fs::metadata(first.file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let member = second.join_trainer("trainer").await.unwrap();
    let waiting = spawn_wait(&first, request(0, 1)).await;
    until_waiting(&second, 1).await;
    publish(job.path(), 1);
    let (version, path) = new(waiting.await.unwrap());
    assert_eq!((version, path.as_path()), (1, job.path().join("global_step_1").as_path()));
    let waiting = spawn_wait(&second, request(1, 2)).await;
    until_waiting(&first, 1).await;
    member.done().await.unwrap();
    assert_eq!(waiting.await.unwrap(), WeightWaitResult::TrainerDone(None));
    assert_eq!(first.view().await.trainer.unwrap().state, "done");
}

#[tokio::test]
async fn an_idle_trainer_ends_waits_with_nothing_new() {
    let job = tempfile::tempdir().unwrap();
    let host = open(job.path(), CHECKPOINT).await;
    let trainer = open(job.path(), CHECKPOINT).await;
    let _member = trainer.join_trainer("trainer").await.unwrap();
    let before = trainer.wait_status(None, Duration::ZERO).await.unwrap();
    trainer.trainer_state(TrainerProgress::Idle { seen: before.wait }).await;
    let waiting = tokio::spawn(async move { host.wait(request(0, 1)).await });
    let waits = trainer.wait_status(Some(before), LONG).await.unwrap();
    assert!(waits.wait > before.wait && waits.waiting == 1);
    trainer.trainer_state(TrainerProgress::Idle { seen: before.wait }).await;
    assert_eq!(trainer.view().await.waits.waiting, 1, "the report precedes the wait");
    trainer.trainer_state(TrainerProgress::Idle { seen: waits.wait }).await;
    assert_eq!(waiting.await.unwrap(), WeightWaitResult::NothingNew);
}

#[tokio::test]
async fn published_weights_are_found_before_idle_counts() {
    let job = tempfile::tempdir().unwrap();
    let host = open(job.path(), CHECKPOINT).await;
    let _member = host.join_trainer("trainer").await.unwrap();
    for version in 1..20 {
        let waiting = spawn_wait(&host, request(version - 1, version + 5)).await;
        let seen = host.wait_status(None, Duration::ZERO).await.unwrap().wait;
        publish(job.path(), version);
        host.trainer_state(TrainerProgress::Idle { seen }).await;
        assert_eq!(new(waiting.await.unwrap()).0, version);
    }
}

#[tokio::test]
async fn a_demand_is_seen_and_a_dropped_wait_is_withdrawn() {
    let job = tempfile::tempdir().unwrap();
    let host = open(job.path(), CHECKPOINT).await;
    let explorer = open(job.path(), CHECKPOINT).await;
    let waiting = tokio::spawn(async move {
        explorer.wait(WeightRequest { publish_now: true, ..request(2, 4) }).await
    });
    assert!(host.wait_for_demand(4, LONG).await);
    assert!(
        !host.wait_for_demand(3, Duration::ZERO).await,
        "version 3 does not satisfy the demand"
    );
    waiting.abort();
    let mut seen = host.wait_status(None, Duration::ZERO).await.unwrap();
    while seen.waiting > 0 {
        seen = host.wait_status(Some(seen), LONG).await.unwrap();
    }
    assert_eq!(seen.demanded, None);
    let waited = host
        .wait(WeightRequest { timeout: Duration::ZERO, publish_now: true, ..request(0, 1) })
        .await;
    let WeightWaitResult::TimedOut(message) = waited else { panic!("{waited:?}") };
    assert!(message.contains("no trainer joined"), "{message}");
    assert_eq!(host.view().await.waits.waiting, 0);
}

#[tokio::test]
async fn a_dead_trainer_fails_waits_after_its_heartbeat_timeout() {
    let job = tempfile::tempdir().unwrap();
    let heartbeat_timeout = Duration::from_millis(50);
    let brief = SynchronizerOptions { heartbeat_timeout, ..options(job.path(), CHECKPOINT) };
    let host = Synchronizer::open_with(brief.clone()).await.unwrap();
    // Ends like a process, with its runtime.
    let elsewhere = tokio::runtime::Runtime::new().unwrap();
    let joined = elsewhere.spawn(async move {
        let trainer = Synchronizer::open_with(brief).await.unwrap();
        trainer.join_trainer("trainer").await.unwrap()
    });
    let member = joined.await.unwrap();
    let waiting = spawn_wait(&host, request(0, 1)).await;
    let refused = host.join_trainer("other").await.unwrap_err();
    assert!(refused.to_string().contains("already has the trainer \"trainer\""), "{refused}");
    elsewhere.shutdown_background();
    drop(member);
    let waited = waiting.await.unwrap();
    let WeightWaitResult::TrainerFailed(message) = waited else { panic!("{waited:?}") };
    assert!(message.contains("no heartbeat for more than"), "{message}");
    let _again = host.join_trainer("trainer").await.unwrap();
    assert_eq!(host.view().await.trainer.unwrap().state, "present");
}

#[tokio::test]
async fn explorers_left_waits_for_all_explorers() {
    let job = tempfile::tempdir().unwrap();
    let host = open(job.path(), CHECKPOINT).await;
    assert!(!host.explorers_left(Duration::ZERO).await, "none came yet");
    let slow = host.join_explorer("slow").await.unwrap();
    let quick = host.join_explorer("quick").await.unwrap();
    quick.done().await.unwrap();
    assert!(!host.explorers_left(Duration::ZERO).await);
    let left = tokio::spawn({
        let host = host.clone();
        async move { host.explorers_left(LONG).await }
    });
    slow.failed("no luck").await.unwrap();
    assert!(left.await.unwrap());
    let errors: Vec<_> = host.view().await.explorers.into_iter().map(|it| it.error).collect();
    assert_eq!(errors, [None, Some("no luck".to_owned())]);
}

#[tokio::test]
async fn an_address_is_hosted_joined_or_refused_with_a_remedy() {
    let job = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    let at = |address: &str, job_name: &str| SynchronizerOptions {
        address: Some(address.to_owned()),
        job: job_name.to_owned(),
        lookup_timeout: Duration::ZERO,
        ..options(job.path(), CHECKPOINT)
    };
    let error = Synchronizer::open_with(at(&address, "a/b")).await.unwrap_err().to_string();
    assert!(error.contains(&address) && error.contains("another port"), "{error}");
    drop(free);
    let host = Synchronizer::open_with(at(&address, "a/b")).await.unwrap();
    assert!(host.is_host() && host.url() == format!("http://{address}"));
    let second = Synchronizer::open_with(at(&address, "a/b")).await.unwrap();
    assert!(!second.is_host());
    let named = Synchronizer::open_with(at(&host.url(), "a/b")).await.unwrap();
    assert!(!named.is_host());
    let error = Synchronizer::open_with(at(&address, "a/c")).await.unwrap_err().to_string();
    assert!(error.contains("that of job \"a/b\""), "{error}");
    let error = Synchronizer::open_with(at("nowhere", "a/b")).await.unwrap_err().to_string();
    assert!(error.contains("`host:port`"), "{error}");
    let error = Synchronizer::open_with(at("http://127.0.0.1:9", "a/b")).await.unwrap_err();
    assert!(matches!(error, SyncError::Unreachable(_)), "{error}");
}

#[tokio::test]
async fn a_host_with_tls_is_joined_by_the_fingerprint_of_its_certificate() {
    let job = tempfile::tempdir().unwrap();
    let source = CertificateSource::Folder(job.path().join("tls"));
    let tls = TlsOptions { mode: TlsMode::Required, source, hosts: Vec::new() };
    let secured = SynchronizerOptions { tls, ..options(job.path(), CHECKPOINT) };
    let host = Synchronizer::open_with(secured.clone()).await.unwrap();
    let second = Synchronizer::open_with(secured).await.unwrap();
    assert!(host.is_host() && !second.is_host());
    assert_eq!(host.url(), second.url());
    let member = second.join_trainer("trainer").await.unwrap();
    member.done().await.unwrap();
    assert_eq!(host.view().await.trainer.unwrap().state, "done");

    let url = host.url();
    let (plain, fingerprint) = url.split_once('#').unwrap();
    let refused = async |address: String| {
        let options = SynchronizerOptions {
            address: Some(address),
            may_host: false,
            lookup_timeout: Duration::ZERO,
            ..options(job.path(), CHECKPOINT)
        };
        Synchronizer::open_with(options).await.unwrap_err().to_string()
    };
    let other = "0a".repeat(32);
    let error = refused(format!("{plain}#{other}")).await;
    assert!(error.contains(fingerprint) && error.contains(&other), "{error}");
    let error = refused(plain.replace("https", "http")).await;
    assert!(error.contains("this port speaks TLS"), "{error}");
    let error = refused(format!("{}#{fingerprint}", plain.replace("https", "http"))).await;
    assert!(error.contains("begins with `https://`"), "{error}");
}
