//! Keys to the models: every attempt is let in once and shown out once, whatever becomes of it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rollway_base::Secret;
use rollway_core::{AttemptId, CoreConfig, FailureKind, RunRange, Supervision, UnresponsivePolicy};
use rollway_engine::{
    CollectOptions, Concurrency, LocalRunners, RunContext, RunFailure, RunKeyIssuer, RunOutcome,
    RunOutput, Scheduler, Task, WithModelAccess, WorkerPool, WorkerPoolOptions, WorkflowRegistry,
};
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);

/// How often each attempt was opened and closed.
#[derive(Clone, Debug, Default)]
struct Counted(Arc<Mutex<BTreeMap<AttemptId, (u32, u32)>>>);

impl Counted {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<AttemptId, (u32, u32)>> {
        self.0.lock().expect("nobody panics with the lock")
    }

    /// Returns how many attempts were opened, and how many of them are open; all others were
    /// opened and closed exactly once.
    fn opened(&self) -> (usize, usize) {
        let counts = self.lock();
        let wrong: Vec<_> = counts.iter().filter(|(_, c)| c.0 != 1 || c.1 > 1).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        (counts.len(), counts.values().filter(|count| count.1 == 0).count())
    }
}

impl RunKeyIssuer for Counted {
    fn base_url(&self) -> Arc<str> {
        "http://gateway/v1".into()
    }

    fn open(&mut self, attempt: AttemptId, runs: RunRange) -> Vec<Secret> {
        self.lock().entry(attempt).or_default().0 += 1;
        runs.iter().flat_map(|run| Secret::new(format!("{}/{}", attempt.0, run.0))).collect()
    }

    fn close(&mut self, attempt: AttemptId) {
        self.lock().entry(attempt).or_default().1 += 1;
    }
}

fn output(payload: String) -> RunOutcome {
    Ok(RunOutput {
        payload: Some(payload.into()),
        metrics: [("reward", 1.0)].into_iter().collect(),
    })
}

/// Shows where the models are and with which key.
async fn show(context: RunContext) -> RunOutcome {
    let model = context.model.expect("there is a gateway");
    output(format!("{} {} {}", model.base_url, model.api_key.reveal(), context.run.0))
}

async fn whimsical(context: RunContext) -> RunOutcome {
    match (context.task_id.0 + context.run.0) % 5 {
        0 => return Err(RunFailure::new(FailureKind::Workflow, "not today")),
        1 => panic!("lost my temper"),
        2 => std::future::pending().await,
        3 => sleep(SECOND).await,
        _ => {}
    }
    output(String::from("well"))
}

fn config() -> CoreConfig {
    let max_timeout = Duration::from_secs(10);
    CoreConfig {
        runners: 4,
        max_timeout,
        default_timeout: 3 * max_timeout,
        ..CoreConfig::default()
    }
}

fn tasks(workflow: &str, count: usize, runs: u32) -> Vec<Task> {
    vec![Task::new(workflow, "").repeat(runs); count]
}

fn local(counted: &Counted, concurrency: Concurrency) -> Scheduler {
    let registry = WorkflowRegistry::default().with("show", show).with("whimsical", whimsical);
    let local = LocalRunners::new(registry).concurrency(concurrency);
    Scheduler::new(config(), WithModelAccess::new(local, counted.clone()))
}

#[tokio::test(start_paused = true)]
async fn every_run_has_a_key_of_its_own() {
    let counted = Counted::default();
    let scheduler = local(&counted, Concurrency::Asynchronous);
    scheduler.start().await.unwrap();
    scheduler.schedule(tasks("show", 3, 2), 1).await.unwrap();
    let got = scheduler.get_payload_results(1, CollectOptions::default()).await.unwrap();
    let mut shown: Vec<String> =
        got.payloads.iter().map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()).collect();
    for line in &shown {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(words[0], "http://gateway/v1");
        assert!(words[1].ends_with(&format!("/{}", words[2])), "{line}");
    }
    shown.sort();
    shown.dedup();
    assert_eq!((shown.len(), counted.opened()), (6, (3, 0)));
}

#[tokio::test(start_paused = true)]
async fn whatever_the_workflow_does_its_keys_are_taken_back() {
    for concurrency in
        [Concurrency::Sequential, Concurrency::Asynchronous, Concurrency::MultiThreading]
    {
        let counted = Counted::default();
        let scheduler = local(&counted, concurrency);
        scheduler.start().await.unwrap();
        scheduler.schedule(tasks("whimsical", 20, 3), 1).await.unwrap();
        // One batch is given up in the middle, another by whoever waits for it.
        scheduler.schedule(tasks("whimsical", 20, 3), 2).await.unwrap();
        scheduler.schedule(tasks("whimsical", 20, 3), 3).await.unwrap();
        let all = scheduler.get_statuses(1, CollectOptions::default()).await.unwrap();
        assert_eq!(all.len(), 20);
        sleep(SECOND / 2).await;
        assert!(counted.opened().1 > 0, "something is under way");
        scheduler.abort_batch(2, false, UnresponsivePolicy::Replace).await.unwrap();
        let hasty = CollectOptions { timeout: Some(5 * SECOND), ..CollectOptions::default() };
        scheduler.get_statuses(3, hasty).await.unwrap();
        assert_eq!(scheduler.wait_all(None, true).await, Ok(()));
        assert_eq!(counted.opened().1, 0, "{concurrency:?}");
        // What is under way when everything ends is shown out too.
        scheduler.schedule(tasks("whimsical", 20, 3), 4).await.unwrap();
        sleep(SECOND / 2).await;
        let (before, open) = counted.opened();
        assert!(open > 0);
        drop(scheduler);
        sleep(SECOND).await;
        assert_eq!(counted.opened(), (before, 0), "{concurrency:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_takes_all_keys_back() {
    let counted = Counted::default();
    let scheduler = local(&counted, Concurrency::MultiThreading);
    scheduler.start().await.unwrap();
    scheduler.schedule(tasks("whimsical", 12, 5), 1).await.unwrap();
    sleep(SECOND / 2).await;
    assert!(counted.opened().1 > 0);
    scheduler.stop(2 * SECOND).await.unwrap();
    sleep(SECOND).await;
    assert_eq!(counted.opened().1, 0);
}

/// Returns the example worker, which cargo builds beside the tests.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("this program has a path");
    let target = test.parent().and_then(|deps| deps.parent()).expect("it lies in target");
    let program = target.join("examples/worker");
    assert!(program.exists(), "build it first: cargo build -p rollway-engine --example worker");
    program
}

#[tokio::test]
async fn processes_that_die_hang_or_go_deaf_leave_no_keys_behind() {
    let counted = Counted::default();
    let children = WorkerPool::new(WorkerPoolOptions::new(program())).await.expect("a port");
    let config = CoreConfig {
        runners: 3,
        max_timeout: Duration::from_millis(400),
        supervision: Supervision {
            cancel_grace: Duration::from_millis(200),
            restart_backoff: Duration::from_millis(50),
            ..Supervision::default()
        },
        ..CoreConfig::default()
    };
    let scheduler = Scheduler::new(config, WithModelAccess::new(children, counted.clone()));
    assert_eq!(scheduler.start().await, Ok((3, 3)));
    for (batch, workflow) in [(1, "exit"), (2, "hang"), (3, "deaf"), (4, "answer")] {
        scheduler.schedule(tasks(workflow, 3, 2), batch).await.unwrap();
    }
    for batch in 1..=4 {
        let ended = scheduler.get_statuses(batch, CollectOptions::default()).await.unwrap();
        assert_eq!(ended.len(), 3);
    }
    let (opened, open) = counted.opened();
    assert_eq!(open, 0);
    assert!(opened > 12, "lost ones were tried again: {opened}");
    assert!(scheduler.counters().await.unwrap().balanced());
}
