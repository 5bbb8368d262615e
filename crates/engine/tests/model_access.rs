//! Gateway keys: every attempt is opened once and closed once.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rollway_base::Secret;
use rollway_core::{AttemptId, FailureKind, UnresponsivePolicy};
use rollway_engine::{
    AttemptSpec, CollectOptions, Concurrency, LocalRunners, RunContext, RunFailure, RunKeyIssuer,
    RunOutcome, RunOutput, Scheduler, WithModelAccess, WorkerPool, WorkerPoolOptions,
    WorkflowRegistry,
};
use tokio::time::sleep;

use common::{SECOND, local_config, process_config, tasks, worker_program};

/// Number of opens and closes of each attempt.
#[derive(Clone, Debug, Default)]
struct KeyCounter(Arc<Mutex<BTreeMap<AttemptId, (u32, u32)>>>);

impl KeyCounter {
    /// Returns the numbers of all and of open attempts; checks that none was opened or closed
    /// twice.
    fn opened(&self) -> (usize, usize) {
        let counts = self.0.lock();
        let wrong: Vec<_> = counts.iter().filter(|(_, c)| c.0 != 1 || c.1 > 1).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        (counts.len(), counts.values().filter(|count| count.1 == 0).count())
    }
}

impl RunKeyIssuer for KeyCounter {
    fn base_url(&self) -> Arc<str> {
        "http://gateway/v1".into()
    }

    fn open(&mut self, attempt: &AttemptSpec) -> Vec<Secret> {
        let (id, runs) = (attempt.id, attempt.runs);
        self.0.lock().entry(id).or_default().0 += 1;
        runs.iter().flat_map(|run| Secret::new(format!("{}/{}", id.0, run.0))).collect()
    }

    fn close(&mut self, attempt: AttemptId) {
        self.0.lock().entry(attempt).or_default().1 += 1;
    }
}

fn output(payload: String) -> RunOutcome {
    Ok(RunOutput {
        payload: Some(payload.into()),
        metrics: [("reward", 1.0)].into_iter().collect(),
    })
}

/// Returns the URL and the key of the run.
async fn show(context: RunContext) -> RunOutcome {
    let model = context.model.expect("there is a gateway");
    output(format!("{} {} {}", model.base_url, model.api_key.reveal(), context.run.0))
}

async fn faulty(context: RunContext) -> RunOutcome {
    match (context.task_id.0 + context.run.0) % 5 {
        0 => return Err(RunFailure::new(FailureKind::Workflow, "not today")),
        1 => panic!("lost my temper"),
        2 => std::future::pending().await,
        3 => sleep(SECOND).await,
        _ => {}
    }
    output(String::from("well"))
}

fn local(keys: &KeyCounter, concurrency: Concurrency) -> Scheduler {
    let registry = WorkflowRegistry::default().with("show", show).with("faulty", faulty);
    let local = LocalRunners::new(registry).concurrency(concurrency);
    Scheduler::new(local_config(), WithModelAccess::new(local, keys.clone()))
}

#[tokio::test(start_paused = true)]
async fn every_run_has_a_key_of_its_own() {
    let keys = KeyCounter::default();
    let scheduler = local(&keys, Concurrency::Asynchronous);
    scheduler.start().await.unwrap();
    scheduler.schedule(tasks("show", 3, 2), 1).await.unwrap();
    let got = scheduler.get_payload_results(1, CollectOptions::default()).await.unwrap();
    let mut shown: Vec<String> =
        got.payloads.iter().map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()).collect();
    for line in &shown {
        let parts: Vec<&str> = line.split(' ').collect();
        assert_eq!(parts[0], "http://gateway/v1");
        assert!(parts[1].ends_with(&format!("/{}", parts[2])), "{line}");
    }
    shown.sort();
    shown.dedup();
    assert_eq!((shown.len(), keys.opened()), (6, (3, 0)));
}

#[tokio::test(start_paused = true)]
async fn keys_are_revoked_whatever_the_runs_do() {
    for concurrency in
        [Concurrency::Sequential, Concurrency::Asynchronous, Concurrency::MultiThreading]
    {
        let keys = KeyCounter::default();
        let scheduler = local(&keys, concurrency);
        scheduler.start().await.unwrap();
        scheduler.schedule(tasks("faulty", 20, 3), 1).await.unwrap();
        // One batch is aborted, another one times out.
        scheduler.schedule(tasks("faulty", 20, 3), 2).await.unwrap();
        scheduler.schedule(tasks("faulty", 20, 3), 3).await.unwrap();
        let all = scheduler.get_statuses(1, CollectOptions::default()).await.unwrap();
        assert_eq!(all.len(), 20);
        sleep(SECOND / 2).await;
        assert!(keys.opened().1 > 0, "attempts are open");
        scheduler.abort_batch(2, false, UnresponsivePolicy::Replace).await.unwrap();
        let options = CollectOptions { timeout: Some(5 * SECOND), ..CollectOptions::default() };
        scheduler.get_statuses(3, options).await.unwrap();
        assert_eq!(scheduler.wait_all(None, true).await, Ok(()));
        assert_eq!(keys.opened().1, 0, "{concurrency:?}");
        // Attempts are closed when the scheduler is dropped.
        scheduler.schedule(tasks("faulty", 20, 3), 4).await.unwrap();
        sleep(SECOND / 2).await;
        let (before, open) = keys.opened();
        assert!(open > 0);
        drop(scheduler);
        sleep(SECOND).await;
        assert_eq!(keys.opened(), (before, 0), "{concurrency:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_revokes_all_keys() {
    let keys = KeyCounter::default();
    let scheduler = local(&keys, Concurrency::MultiThreading);
    scheduler.start().await.unwrap();
    scheduler.schedule(tasks("faulty", 12, 5), 1).await.unwrap();
    sleep(SECOND / 2).await;
    assert!(keys.opened().1 > 0);
    scheduler.stop(2 * SECOND).await.unwrap();
    sleep(SECOND).await;
    assert_eq!(keys.opened().1, 0);
}

#[tokio::test]
async fn keys_of_dying_hanging_and_blocked_processes_are_revoked() {
    let keys = KeyCounter::default();
    let pool = WorkerPool::new(WorkerPoolOptions::new(worker_program())).await.expect("a port");
    let scheduler = Scheduler::new(process_config(3), WithModelAccess::new(pool, keys.clone()));
    assert_eq!(scheduler.start().await, Ok((3, 3)));
    for (batch, workflow) in [(1, "exit"), (2, "hang"), (3, "deaf"), (4, "answer")] {
        scheduler.schedule(tasks(workflow, 3, 2), batch).await.unwrap();
    }
    for batch in 1..=4 {
        let ended = scheduler.get_statuses(batch, CollectOptions::default()).await.unwrap();
        assert_eq!(ended.len(), 3);
    }
    let (opened, open) = keys.opened();
    assert_eq!(open, 0);
    assert!(opened > 12, "lost attempts are retried: {opened}");
    assert!(scheduler.counters().await.unwrap().balanced());
}
