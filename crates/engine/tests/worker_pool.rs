//! The scheduler with child processes that exit, hang or block their event loop.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use rollway_core::{CollectOutcome, CoreConfig, FailureKind, RunId, ScalingBounds, TaskId};
use rollway_engine::{
    CollectOptions, LaunchSpec, LaunchedProcess, Launcher, LocalLauncher, ProcessExit, Scheduler,
    Task, WorkerPool, WorkerPoolOptions,
};

use common::{process_config, tasks, worker_program};
use rollway_testkit::child_test;

async fn scheduler(runners: u32) -> Scheduler {
    let pool = WorkerPool::new(WorkerPoolOptions::new(worker_program())).await.expect("a port");
    let scheduler = Scheduler::new(process_config(runners), pool);
    assert_eq!(scheduler.start().await, Ok((runners, runners)));
    scheduler
}

/// Polls a condition; the test runner limits the time.
async fn until(condition: impl AsyncFn() -> bool) {
    while !condition().await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn states(scheduler: &Scheduler) -> Vec<&'static str> {
    let runners = scheduler.runners().await.expect("the engine runs");
    runners.iter().map(|runner| runner.state.name()).collect()
}

#[tokio::test]
async fn processes_answer() {
    let scheduler = scheduler(2).await;
    scheduler.schedule(tasks("answer", 50, 1), 1).await.unwrap();
    let got = scheduler.get_payload_results(1, CollectOptions::default()).await.unwrap();
    assert_eq!((got.outcome, got.payloads.len()), (CollectOutcome::Complete, 50));
    assert_eq!(&got.payloads[7][..], b"1/7/0");
    scheduler.stop(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test]
async fn dying_hanging_and_blocked_processes_are_replaced() {
    let scheduler = scheduler(3).await;
    for (batch, workflow) in [(1, "exit"), (2, "hang"), (3, "deaf"), (4, "answer")] {
        scheduler.schedule(tasks(workflow, 1, 1), batch).await.unwrap();
    }
    for (batch, kind) in
        [(1, FailureKind::RunnerLost), (2, FailureKind::Timeout), (3, FailureKind::Timeout)]
    {
        let got = scheduler.get_statuses(batch, CollectOptions::default()).await.unwrap();
        assert_eq!(got[0].1.failed_runs[kind], 1, "{batch}: {:?}", got[0].1);
    }
    let exit = scheduler.get_payload_results(4, CollectOptions::default()).await.unwrap();
    assert_eq!(exit.payloads.len(), 1);
    let counters = scheduler.counters().await.unwrap();
    assert!(counters.balanced() && counters.runners_lost >= 6, "{counters:?}");
    // After three restarts of each, all runners are back.
    scheduler.schedule(tasks("answer", 30, 1), 5).await.unwrap();
    let got = scheduler.get_payload_results(5, CollectOptions::default()).await.unwrap();
    assert_eq!(got.payloads.len(), 30);
    until(async || states(&scheduler).await == ["idle"; 3]).await;
}

/// Returns the value of a variable in the environment of a worker.
async fn variable_of_worker(yaml: &str, name: &str) -> String {
    let config = rollway_config::Config::from_yaml(yaml, "job.yaml").expect("it works");
    let variables = config.explorer.env_vars.clone().into_iter().collect();
    let options = WorkerPoolOptions { env: variables, ..WorkerPoolOptions::new(worker_program()) };
    let pool = rollway_engine::cluster::worker_pool(&config, options).await.expect("it works");
    let scheduler = Scheduler::new(process_config(1), pool);
    scheduler.start().await.expect("it works");
    scheduler.schedule(vec![Task::new("variable", name.to_owned())], 1).await.expect("it works");
    let got = scheduler.get_payload_results(1, CollectOptions::default()).await.expect("it works");
    String::from_utf8_lossy(&got.payloads[0]).into_owned()
}

#[tokio::test]
async fn workers_inherit_no_secret_of_the_engine_unless_it_is_asked_for() {
    // A variable that every process has.
    let name = "PATH";
    assert_eq!(variable_of_worker("{}", name).await, std::env::var(name).expect("it works"));
    let secret = format!("rollout_model: {{api_key_env: {name}}}");
    let hidden = format!("{{explorer: {{{secret}}}}}");
    assert_eq!(variable_of_worker(&hidden, name).await, "not set");
    let asked = format!("{{explorer: {{{secret}, env_vars: {{{name}: given}}}}}}");
    assert_eq!(variable_of_worker(&asked, name).await, "given");
}

/// Returns the ids of the programs that the workflow `spawn` has started.
async fn started_programs(file: &Path) -> Vec<u32> {
    until(async || file.exists()).await;
    let ids = std::fs::read_to_string(file).expect("it works");
    ids.split(' ').map(|id| id.parse().expect("it works")).collect()
}

/// Tells whether a process runs and is no zombie.
fn is_running(id: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
}

#[tokio::test]
async fn programs_of_a_workflow_end_with_its_worker() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ids");
    let scheduler = scheduler(1).await;
    scheduler.schedule(vec![Task::new("spawn", file.display().to_string())], 1).await.unwrap();
    let programs = started_programs(&file).await;
    assert_eq!(programs.len(), 2, "{programs:?}");
    // The run times out, and its worker is replaced.
    until(async || !programs.iter().any(|id| is_running(*id))).await;
}

const VICTIM: &str = "ROLLWAY_TEST_SPAWN_FILE";

/// Does nothing unless `programs_of_a_workflow_end_with_a_killed_engine` starts it.
#[tokio::test]
async fn engine_to_be_killed() {
    let Ok(file) = std::env::var(VICTIM) else { return };
    let pool = WorkerPool::new(WorkerPoolOptions::new(worker_program())).await.expect("a port");
    let config = CoreConfig { max_timeout: Duration::from_secs(600), ..process_config(1) };
    let scheduler = Scheduler::new(config, pool);
    scheduler.start().await.unwrap();
    scheduler.schedule(vec![Task::new("spawn", file)], 1).await.unwrap();
    std::future::pending().await
}

#[tokio::test]
async fn programs_of_a_workflow_end_with_a_killed_engine() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ids");
    let mut engine = child_test("engine_to_be_killed", VICTIM, &file).spawn().unwrap();
    let programs = started_programs(&file).await;
    assert!(programs.iter().all(|id| is_running(*id)), "{programs:?}");
    engine.kill().unwrap();
    engine.wait().unwrap();
    until(async || !programs.iter().any(|id| is_running(*id))).await;
}

/// Counts running child processes.
#[derive(Debug)]
struct CountingLauncher {
    inner: LocalLauncher,
    alive: Arc<AtomicUsize>,
}

struct CountedProcess {
    inner: Box<dyn LaunchedProcess>,
    alive: Arc<AtomicUsize>,
}

impl Launcher for CountingLauncher {
    fn launch(&self, spec: LaunchSpec) -> Box<dyn LaunchedProcess> {
        self.alive.fetch_add(1, Ordering::SeqCst);
        Box::new(CountedProcess { inner: self.inner.launch(spec), alive: Arc::clone(&self.alive) })
    }
}

impl LaunchedProcess for CountedProcess {
    fn ended(&mut self) -> BoxFuture<'_, ProcessExit> {
        self.inner.ended()
    }
}

impl Drop for CountedProcess {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns tasks that end when the file exists.
fn waiting(gate: &Path, count: usize) -> Vec<Task> {
    vec![Task::new("wait", gate.display().to_string()); count]
}

#[tokio::test]
async fn the_number_of_processes_follows_the_work_within_its_bounds() {
    let folder = tempfile::tempdir().unwrap();
    let (gate, last) = (folder.path().join("gate"), folder.path().join("last"));
    let text = "{explorer: {runner_per_worker: 2, runner_per_model: 8}, \
                cluster: {backend: ray, min_workers: 1, max_workers: 3, idle_timeout: 0.2}}";
    let job = rollway_config::Config::from_yaml(text, "job.yaml").unwrap();
    let alive = Arc::new(AtomicUsize::new(0));
    let launcher =
        CountingLauncher { inner: LocalLauncher::new().unwrap(), alive: Arc::clone(&alive) };
    let options =
        WorkerPoolOptions { runners_per_worker: 2, ..WorkerPoolOptions::new(worker_program()) };
    let pool = WorkerPool::with_launcher(options, Arc::new(launcher)).await.unwrap();
    let scheduler = Scheduler::new(job.to_core(8), pool);
    assert_eq!(scheduler.start().await, Ok((2, 2)), "the minimum");
    let processes = || alive.load(Ordering::SeqCst);
    assert_eq!(processes(), 1);

    // Work for four processes, limit three.
    scheduler.schedule(waiting(&gate, 8), 1).await.unwrap();
    until(async || states(&scheduler).await == ["busy"; 6]).await;
    assert_eq!(processes(), 3);
    // One long task remains.
    scheduler.schedule(waiting(&last, 1), 2).await.unwrap();
    std::fs::write(&gate, "").unwrap();
    let got = scheduler.get_payload_results(1, CollectOptions::default()).await.unwrap();
    assert_eq!(got.payloads.len(), 8);
    let busy = async || states(&scheduler).await.iter().filter(|state| **state == "busy").count();
    until(async || processes() <= 2 && busy().await == 1).await;
    std::fs::write(&last, "").unwrap();
    let got = scheduler.get_payload_results(2, CollectOptions::default()).await.unwrap();
    assert_eq!(got.payloads.len(), 1);
    until(async || processes() == 1).await;
    // No busy runner was stopped, and one process remains.
    let counters = scheduler.counters().await.unwrap();
    assert!(counters.balanced() && counters.runners_lost == 0, "{counters:?}");
    scheduler.schedule(tasks("answer", 20, 1), 3).await.unwrap();
    let got = scheduler.get_payload_results(3, CollectOptions::default()).await.unwrap();
    assert_eq!(got.payloads.len(), 20);
}

#[tokio::test]
async fn stopping_a_starting_runner_keeps_its_neighbour() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    let idle_timeout = Duration::from_millis(100);
    let scaling = Some(ScalingBounds { min: 1, max: 2, runners_per_worker: 1, idle_timeout });
    // No timeout interferes.
    let core = CoreConfig { runners: 1, scaling, ..CoreConfig::default() };
    let env = vec![("ROLLWAY_EXAMPLE_MUTE".to_owned(), "1".to_owned())];
    let options = WorkerPoolOptions {
        runners_per_worker: 2,
        env,
        ..WorkerPoolOptions::new(worker_program())
    };
    let scheduler = Scheduler::new(core, WorkerPool::new(options).await.unwrap());
    assert_eq!(scheduler.start().await, Ok((1, 1)));
    scheduler.schedule(waiting(&gate, 1), 1).await.unwrap();
    scheduler.schedule(waiting(&gate, 1), 2).await.unwrap();
    until(async || states(&scheduler).await == ["busy", "starting"]).await;
    assert!(scheduler.cancel_run(2, TaskId(0), RunId(0), "not needed").await.unwrap());
    until(async || states(&scheduler).await == ["busy", "stopped"]).await;
    std::fs::write(&gate, "").unwrap();
    let got = scheduler.get_payload_results(1, CollectOptions::default()).await.unwrap();
    assert_eq!((got.outcome, got.payloads.len()), (CollectOutcome::Complete, 1));
    let counters = scheduler.counters().await.unwrap();
    assert_eq!((counters.runners_started, counters.runners_lost), (2, 0), "{counters:?}");
}

#[tokio::test]
async fn a_failed_start_is_reported_with_its_cause() {
    let pool = WorkerPool::new(WorkerPoolOptions::new("no-such-program")).await.unwrap();
    let scheduler = Scheduler::new(process_config(1), pool);
    assert_eq!(scheduler.start().await, Ok((0, 1)));
    let runners = scheduler.runners().await.unwrap();
    let message = runners[0].message.as_deref().unwrap();
    assert!(message.starts_with("no-such-program could not be started"), "{message}");
}

#[tokio::test]
async fn no_process_outlives_the_scheduler() {
    let scheduler = scheduler(2).await;
    let alive = || {
        let listing = std::fs::read_dir("/proc").unwrap().flatten();
        let pool = listing.filter(|entry| {
            let read = |name| std::fs::read_to_string(entry.path().join(name));
            let ours = format!(" {} ", std::process::id());
            read("comm").is_ok_and(|comm| comm.trim() == "worker")
                && read("stat").is_ok_and(|stat| stat.contains(&ours) && !stat.contains(" Z "))
        });
        pool.count()
    };
    assert!(alive() >= 2);
    drop(scheduler);
    until(async || alive() == 0).await;
}
