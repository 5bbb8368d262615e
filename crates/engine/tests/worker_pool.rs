//! The scheduler with runners in child processes: real processes that exit, hang and go deaf.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rollway_core::{
    CollectOutcome, CoreConfig, FailureKind, RunId, ScalingBounds, Supervision, TaskId,
};
use rollway_engine::{
    CollectOptions, LaunchSpec, LaunchedProcess, Launcher, LocalLauncher, ProcessExit, Scheduler,
    Task, WorkerPool, WorkerPoolOptions,
};

/// Returns the example worker, which cargo builds beside the tests.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("this program has a path");
    let target = test.parent().and_then(|deps| deps.parent()).expect("it lies in target");
    let program = target.join("examples/worker");
    assert!(program.exists(), "build it first: cargo build -p rollway-engine --example worker");
    program
}

fn config(runners: u32) -> CoreConfig {
    CoreConfig {
        runners,
        max_timeout: Duration::from_millis(400),
        supervision: Supervision {
            cancel_grace: Duration::from_millis(200),
            restart_backoff: Duration::from_millis(50),
            ..Supervision::default()
        },
        ..CoreConfig::default()
    }
}

async fn scheduler(runners: u32) -> Scheduler {
    let children = WorkerPool::new(WorkerPoolOptions::new(program())).await.expect("a port");
    let scheduler = Scheduler::new(config(runners), children);
    assert_eq!(scheduler.start().await, Ok((runners, runners)));
    scheduler
}

fn tasks(workflow: &str, count: usize) -> Vec<Task> {
    vec![Task::new(workflow, ""); count]
}

async fn pool_is_whole(scheduler: &Scheduler) -> bool {
    let runners = scheduler.runners().await.expect("the engine is there");
    runners.iter().all(|runner| runner.state.name() == "idle")
}

#[tokio::test]
async fn processes_answer() {
    let scheduler = scheduler(2).await;
    scheduler.schedule(tasks("answer", 50), 1).await.unwrap();
    let got = scheduler.get_payload_results(1, CollectOptions::default()).await.unwrap();
    assert_eq!((got.outcome, got.payloads.len()), (CollectOutcome::Complete, 50));
    assert_eq!(&got.payloads[7][..], b"1/7/0");
    scheduler.stop(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test]
async fn processes_that_die_hang_or_go_deaf_are_replaced() {
    let scheduler = scheduler(3).await;
    for (batch, workflow) in [(1, "exit"), (2, "hang"), (3, "deaf"), (4, "answer")] {
        scheduler.schedule(tasks(workflow, 1), batch).await.unwrap();
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
    // Three lives of the deaf one and three of the dead one later, everybody is back.
    scheduler.schedule(tasks("answer", 30), 5).await.unwrap();
    let got = scheduler.get_payload_results(5, CollectOptions::default()).await.unwrap();
    assert_eq!(got.payloads.len(), 30);
    while !pool_is_whole(&scheduler).await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Launches child processes, and counts them.
#[derive(Debug)]
struct Counted {
    inner: LocalLauncher,
    alive: Arc<AtomicUsize>,
}

struct Incarnation {
    inner: Box<dyn LaunchedProcess>,
    alive: Arc<AtomicUsize>,
}

impl Launcher for Counted {
    fn launch(&self, ticket: LaunchSpec) -> Box<dyn LaunchedProcess> {
        self.alive.fetch_add(1, Ordering::SeqCst);
        Box::new(Incarnation { inner: self.inner.launch(ticket), alive: Arc::clone(&self.alive) })
    }
}

impl LaunchedProcess for Incarnation {
    fn ended(&mut self) -> Pin<Box<dyn Future<Output = ProcessExit> + Send + '_>> {
        self.inner.ended()
    }
}

impl Drop for Incarnation {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits until something is so; what never is hangs the test, which has a limit elsewhere.
async fn until(is_so: impl AsyncFn() -> bool) {
    while !is_so().await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Returns where runners stand.
async fn states(scheduler: &Scheduler) -> Vec<&'static str> {
    let runners = scheduler.runners().await.expect("the engine is there");
    runners.iter().map(|runner| runner.state.name()).collect()
}

/// Returns tasks that end when there is a file.
fn waiting(gate: &Path, count: usize) -> Vec<Task> {
    vec![Task::new("wait", gate.display().to_string()); count]
}

#[tokio::test]
async fn the_number_of_processes_follows_the_work_between_the_bounds_of_a_job_on_ray() {
    let folder = tempfile::tempdir().unwrap();
    let (gate, last) = (folder.path().join("gate"), folder.path().join("last"));
    let text = "{explorer: {runner_per_worker: 2, runner_per_model: 8}, \
                cluster: {backend: ray, min_workers: 1, max_workers: 3, idle_timeout: 0.2}}";
    let job = rollway_config::Config::from_yaml(text, "job.yaml").unwrap();
    let alive = Arc::new(AtomicUsize::new(0));
    let launcher = Counted { inner: LocalLauncher::new().unwrap(), alive: Arc::clone(&alive) };
    let options = WorkerPoolOptions { runners_per_worker: 2, ..WorkerPoolOptions::new(program()) };
    let children = WorkerPool::with_launcher(options, Arc::new(launcher)).await.unwrap();
    let scheduler = Scheduler::new(job.to_core(8), children);
    assert_eq!(scheduler.start().await, Ok((2, 2)), "the fewest");
    let processes = || alive.load(Ordering::SeqCst);
    assert_eq!(processes(), 1);

    // There is work for four processes, and room for three.
    scheduler.schedule(waiting(&gate, 8), 1).await.unwrap();
    until(async || states(&scheduler).await == ["busy"; 6]).await;
    assert_eq!(processes(), 3);
    // One long task is left when the rest has ended.
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
    // Whoever worked was left alone, and there is somebody for what comes next.
    let counters = scheduler.counters().await.unwrap();
    assert!(counters.balanced() && counters.runners_lost == 0, "{counters:?}");
    scheduler.schedule(tasks("answer", 20), 3).await.unwrap();
    let got = scheduler.get_payload_results(3, CollectOptions::default()).await.unwrap();
    assert_eq!(got.payloads.len(), 20);
}

#[tokio::test]
async fn a_runner_that_goes_before_it_has_started_leaves_its_neighbour_alone() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    let idle_timeout = Duration::from_millis(100);
    let scaling = Some(ScalingBounds { min: 1, max: 2, runners_per_worker: 1, idle_timeout });
    // Nobody's time is up before everything is over.
    let core = CoreConfig { runners: 1, scaling, ..CoreConfig::default() };
    let env = vec![("ROLLWAY_EXAMPLE_MUTE".to_owned(), "1".to_owned())];
    let options =
        WorkerPoolOptions { runners_per_worker: 2, env, ..WorkerPoolOptions::new(program()) };
    let scheduler = Scheduler::new(core, WorkerPool::new(options).await.unwrap());
    assert_eq!(scheduler.start().await, Ok((1, 1)));
    scheduler.schedule(waiting(&gate, 1), 1).await.unwrap();
    scheduler.schedule(waiting(&gate, 1), 2).await.unwrap();
    until(async || states(&scheduler).await == ["busy", "starting"]).await;
    // Nothing is left to do for the second.
    assert!(scheduler.cancel_run(2, TaskId(0), RunId(0), "not needed").await.unwrap());
    until(async || states(&scheduler).await == ["busy", "gone"]).await;
    std::fs::write(&gate, "").unwrap();
    let got = scheduler.get_payload_results(1, CollectOptions::default()).await.unwrap();
    assert_eq!((got.outcome, got.payloads.len()), (CollectOutcome::Complete, 1));
    let counters = scheduler.counters().await.unwrap();
    assert_eq!((counters.runners_started, counters.runners_lost), (2, 0), "{counters:?}");
}

#[tokio::test]
async fn a_program_that_cannot_be_started_says_why() {
    let children = WorkerPool::new(WorkerPoolOptions::new("no-such-program")).await.unwrap();
    let scheduler = Scheduler::new(config(1), children);
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
        let children = listing.filter(|entry| {
            let read = |name| std::fs::read_to_string(entry.path().join(name));
            let ours = format!(" {} ", std::process::id());
            read("comm").is_ok_and(|comm| comm.trim() == "worker")
                && read("stat").is_ok_and(|stat| stat.contains(&ours) && !stat.contains(" Z "))
        });
        children.count()
    };
    assert!(alive() >= 2);
    drop(scheduler);
    while alive() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
