//! Manual workers over TCP: late, leaving, killed, disconnected, unauthenticated, reconnecting.

#![expect(clippy::unwrap_used, reason = "what goes wrong here fails the test, and says where")]

#[path = "../common/mod.rs"]
mod common;
mod proxy;

use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::worker_program;
use proxy::Proxy;
use rollway_base::tls::{TlsMode, TlsOptions};
use rollway_base::{Address, Secret};
use rollway_core::{CollectOutcome, CoreConfig, RunnerView, Supervision};
use rollway_engine::events::{RunEvent, RunEventKind, RunObserver, RunObservers};
use rollway_engine::{CollectOptions, Scheduler, Task, WorkerPool, WorkerPoolOptions};
use rollway_protocol::env;
use tokio::process::{Child, Command};

/// A scheduler that waits for workers.
struct Job {
    scheduler: Scheduler,
    address: String,
    secret: Secret,
}

async fn job(runners: u32) -> Job {
    job_with(runners, TlsOptions::off()).await
}

async fn job_with(runners: u32, tls: TlsOptions) -> Job {
    let options = WorkerPoolOptions {
        address: Some(Address::loopback()),
        tls,
        keepalive: Duration::from_millis(300),
        ..WorkerPoolOptions::new("never started")
    };
    let pool = WorkerPool::manual(options).await.unwrap();
    let secret = pool.secret().clone();
    let address = pool.address().to_string();
    let supervision = Supervision {
        restart_backoff: Duration::from_millis(20),
        start_timeout: Duration::from_secs(60),
        ..Supervision::default()
    };
    let config = CoreConfig { runners, supervision, ..CoreConfig::default() };
    Job { scheduler: Scheduler::new(config, pool), address, secret }
}

impl Job {
    fn worker(&self, runners: u32) -> Child {
        self.worker_at(&self.address, runners)
    }

    fn worker_at(&self, address: &str, runners: u32) -> Child {
        start(address, self.secret.reveal(), runners)
    }

    /// Waits until the runners satisfy a condition.
    async fn until(&self, event: &str, condition: impl Fn(&[RunnerView]) -> bool) {
        loop {
            let runners = self.scheduler.runners().await.unwrap();
            if condition(&runners) {
                return;
            }
            tracing::debug!(event, ?runners, "not yet");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn until_idle(&self, count: usize) {
        let is_idle = |runner: &&RunnerView| runner.state.name() == "idle";
        let enough = |runners: &[RunnerView]| runners.iter().filter(is_idle).count() == count;
        self.until("so many are idle", enough).await;
    }

    /// Runs tasks and checks that each has one result.
    async fn answers(&self, batch: i64, count: usize) {
        self.scheduler.schedule(vec![Task::new("answer", ""); count], batch).await.unwrap();
        let got =
            self.scheduler.get_payload_results(batch, CollectOptions::default()).await.unwrap();
        assert_eq!((got.outcome, got.payloads.len()), (CollectOutcome::Complete, count));
    }
}

fn start(address: &str, secret: &str, runners: u32) -> Child {
    Command::new(worker_program())
        .env(env::ADDRESS, address)
        .env(env::SECRET, secret)
        .env(env::RUNNERS, runners.to_string())
        .env("ROLLWAY_EXAMPLE_KEEPALIVE_MS", "300")
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn a_job_starts_with_the_first_worker_and_accepts_later_ones() {
    let job = job(3).await;
    let starting = tokio::spawn({
        let scheduler = job.scheduler.clone();
        async move { scheduler.start().await }
    });
    let message = format!("waits for a worker: rollway worker --connect {}", job.address);
    let waits = |runner: &RunnerView| runner.message.as_deref() == Some(&*message);
    job.until("all wait", |runners| runners.len() == 3 && runners.iter().all(waits)).await;
    let states = job.scheduler.runner_states().await.unwrap();
    assert!(states.iter().all(|status| status.labels["waiting"] == message));
    assert!(!starting.is_finished());

    // The first worker has fewer slots than runners: one keeps waiting, the job starts.
    let mut first = job.worker(2);
    assert_eq!(starting.await.unwrap(), Ok((2, 3)));
    job.answers(1, 20).await;
    let pid = format!("pid {}", first.id().unwrap());
    let at = async |pid: &str| {
        let states = job.scheduler.runner_states().await.unwrap();
        states.iter().flat_map(|status| &status.node).filter(|node| node.ends_with(pid)).count()
    };
    job.until("the third waits", |runners| waits(&runners[2])).await;

    // The second worker keeps free slots.
    let mut second = job.worker(4);
    job.until_idle(3).await;
    assert_eq!(at(&pid).await, 2);
    job.answers(2, 20).await;

    // The runners of the first move to the second.
    first.kill().await.unwrap();
    job.until_idle(3).await;
    assert_eq!(at(&format!("pid {}", second.id().unwrap())).await, 3);
    job.answers(3, 20).await;

    // After a stop, workers are asked to leave.
    job.scheduler.stop(Duration::from_secs(5)).await.unwrap();
    assert!(second.wait().await.unwrap().success());
}

#[tokio::test]
async fn tasks_of_killed_and_disconnected_workers_are_retried_without_charge() {
    let job = job(2).await;
    let proxy = Proxy::to(job.address.clone()).await;
    let mut killed = job.worker(1);
    let mut cut = job.worker_at(&proxy.address, 1);
    assert!(job.scheduler.start().await.unwrap().0 >= 1);
    job.until_idle(2).await;
    job.scheduler.schedule(vec![Task::new("hang", ""); 2], 1).await.unwrap();
    let both_begun = |runners: &[RunnerView]| {
        runners.iter().all(|runner| matches!(runner.work, Some((_, _, Some(_)))))
    };
    job.until("both have begun", both_begun).await;

    proxy.cut();
    killed.kill().await.unwrap();
    // It detects the lost connection by itself.
    assert!(!cut.wait().await.unwrap().success());
    let waits = |runner: &RunnerView| {
        runner.message.as_ref().is_some_and(|message| message.starts_with("waits for a worker"))
    };
    job.until("both wait", |runners| runners.iter().all(waits)).await;
    let counters = job.scheduler.counters().await.unwrap();
    assert_eq!((counters.runners_lost, counters.retries.total()), (2, 2), "{counters:?}");

    // The attempts restart on other workers, and no task is suspected.
    let other = job.worker(2);
    job.until("both have begun again", both_begun).await;
    drop(other);
    let again = job.worker(2);
    job.until("and again, more often than a suspect could", both_begun).await;
    drop(again);
    let last = job.worker(2);
    job.until("and again", both_begun).await;
    assert!(job.scheduler.counters().await.unwrap().balanced());
    drop(last);
}

#[tokio::test]
async fn a_worker_with_a_wrong_secret_is_refused() {
    let job = job(1).await;
    let refused = start(&job.address, "guessed", 1).wait_with_output().await.unwrap();
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && stderr.contains("does not have the secret"), "{stderr}");
    let _worker = job.worker(1);
    assert_eq!(job.scheduler.start().await, Ok((1, 1)));
    job.answers(1, 3).await;
}

#[tokio::test]
async fn workers_connect_over_tls() {
    let job = job_with(1, TlsOptions { mode: TlsMode::Required, ..TlsOptions::off() }).await;
    assert!(job.address.starts_with("tls:127.0.0.1:"), "{}", job.address);
    // A worker with another fingerprint, and one without TLS, end with a reason.
    let (host_port, fingerprint) = job.address[4..].split_once('#').unwrap();
    let other = format!("tls:{host_port}#{}", "0a".repeat(32));
    for (address, reason) in [(&*other, fingerprint), (host_port, "speaks TLS")] {
        let refused = job.worker_at(address, 1).wait_with_output().await.unwrap();
        let stderr = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && stderr.contains(reason), "{stderr}");
    }
    let _worker = job.worker(1);
    assert_eq!(job.scheduler.start().await, Ok((1, 1)));
    job.answers(1, 3).await;
}

#[tokio::test]
async fn a_job_with_a_launcher_refuses_manual_workers() {
    let options = WorkerPoolOptions {
        address: Some(Address::loopback()),
        secret: Some(Secret::new("known").unwrap()),
        ..WorkerPoolOptions::new("never started")
    };
    let pool = WorkerPool::new(options).await.unwrap();
    let address = pool.address().to_string();
    let refused = start(&address, "known", 1).wait_with_output().await.unwrap();
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(stderr.contains("starts its own workers"), "{stderr}");
}

#[derive(Debug, Default)]
struct Locations(Mutex<Vec<String>>);

impl RunObserver for Locations {
    fn observe(&self, events: &[RunEvent]) {
        let places = events.iter().filter_map(|event| match &event.what {
            RunEventKind::RunnerLocated { location, .. } => Some(location.to_string()),
            _ => None,
        });
        self.0.lock().unwrap().extend(places);
    }
}

#[tokio::test]
async fn observers_receive_the_locations_of_workers() {
    let job = job(1).await;
    let locations = Arc::new(Locations::default());
    let observers = RunObservers::new(vec![Arc::clone(&locations) as _]);
    let job = Job { scheduler: job.scheduler.observed(observers), ..job };
    let worker = job.worker(1);
    job.scheduler.start().await.unwrap();
    job.answers(1, 1).await;
    let locations = locations.0.lock().unwrap();
    assert_eq!(locations.len(), 1, "{locations:?}");
    assert!(locations[0].ends_with(&format!("pid {}", worker.id().unwrap())), "{locations:?}");
}
