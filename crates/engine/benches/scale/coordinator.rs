//! Process of the coordinator.

use std::io::Write;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use rollway_base::Address;
use rollway_core::{CoreConfig, Status};
use rollway_engine::{
    CollectOptions, LaunchSpec, LaunchedProcess, Launcher, LoopLag, ProcessExit, Scheduler, Task,
    WorkerPool, WorkerPoolOptions,
};

use super::WORKERS;
use super::usage::Usage;

/// Duration of the idle measurement.
const IDLE: Duration = Duration::from_secs(10);

/// Launches all workers in one other process, which receives a token for each.
#[derive(Debug, Default)]
struct Elsewhere(Mutex<Option<(Child, ChildStdin)>>);

impl Elsewhere {
    fn process(&self) -> Option<u32> {
        let process = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        process.as_ref().map(|(child, _)| child.id())
    }
}

impl Launcher for Elsewhere {
    fn launch(&self, spec: LaunchSpec) -> Box<dyn LaunchedProcess> {
        let mut process = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, input) = process.get_or_insert_with(|| {
            let mut child = Command::new(&spec.program)
                .args([WORKERS])
                .envs(spec.env)
                .stdin(Stdio::piped())
                .spawn()
                .expect("a program can be started again");
            let input = child.stdin.take().expect("a pipe");
            (child, input)
        });
        writeln!(input, "{}", spec.token).expect("the workers are there");
        Box::new(Nameless)
    }
}

/// A worker without a process handle.
struct Nameless;

impl LaunchedProcess for Nameless {
    fn ended(&mut self) -> BoxFuture<'_, ProcessExit> {
        Box::pin(std::future::pending())
    }
}

#[tokio::main]
pub(crate) async fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |at: usize| args[at].parse::<u32>().expect("a number");
    let (workers, tasks) = (number(2), number(3));
    let options = WorkerPoolOptions {
        address: Some(Address::Tcp("127.0.0.1:0".to_owned())),
        ..WorkerPoolOptions::new(std::env::current_exe().expect("a program knows its own path"))
    };
    let elsewhere = Arc::new(Elsewhere::default());
    let launcher = Arc::clone(&elsewhere) as Arc<dyn Launcher>;
    let children = WorkerPool::with_launcher(options, launcher).await.expect("a free port");
    let config = CoreConfig { runners: workers, ..CoreConfig::default() };
    let scheduler = Scheduler::new(config, children);
    let bench = Bench { scheduler, elsewhere, workers, tasks };
    println!("{workers} workers on TCP, one runner and one connection each");
    bench.connect().await;
    bench.idle().await;
    bench.pass("no-op tasks", 0, 0).await;
    bench.pass("tasks of 0 to 200 ms", 200, 1).await;
}

struct Bench {
    scheduler: Scheduler,
    elsewhere: Arc<Elsewhere>,
    workers: u32,
    tasks: u32,
}

impl Bench {
    async fn connect(&self) {
        let (before, start) = (Usage::of(None), Instant::now());
        let started = self.scheduler.start().await.expect("a pool starts");
        assert_eq!(started, (self.workers, self.workers), "some workers did not connect");
        let took = start.elapsed();
        let after = Usage::of(None);
        let there = Usage::of(self.elsewhere.process());
        let each = f64::from(self.workers);
        println!(
            "  all there after {:.2} s, {:.0} µs of CPU each here",
            took.as_secs_f64(),
            (after.cpu - before.cpu) * 1e6 / each
        );
        println!(
            "  memory per connection: {:.1} KiB here, {:.1} KiB at the workers' end",
            (after.resident - before.resident) / each / 1024.0,
            there.resident / each / 1024.0
        );
    }

    /// Measures idle workers, which only send heartbeats.
    async fn idle(&self) {
        let (before, lag) = (Usage::of(None), self.scheduler.lag());
        tokio::time::sleep(IDLE).await;
        let share = (Usage::of(None).cpu - before.cpu) / IDLE.as_secs_f64();
        println!("  idle, with heartbeats: {:.1} % of a core", share * 100.0);
        show(&self.scheduler.lag().since(&lag));
    }

    async fn pass(&self, name: &str, millis: u32, batch: i64) {
        let tasks = vec![Task::new("wait", millis.to_string()); self.tasks as usize];
        let process = self.elsewhere.process();
        let (before, there) = (Usage::of(None), Usage::of(process));
        let (lag, start) = (self.scheduler.lag(), Instant::now());
        self.scheduler.schedule(tasks, batch).await.expect("a fresh batch");
        let got =
            self.scheduler.get_statuses(batch, CollectOptions::default()).await.expect("it ends");
        let took = start.elapsed().as_secs_f64();
        let lost = self.scheduler.counters().await.expect("it is there").runners_lost;
        assert_eq!((got.len(), lost), (self.tasks as usize, 0));
        let good = |status: &Status| status.completed_runs == 1;
        assert!(got.iter().all(|(_, status)| good(status)), "a task failed");
        let each = f64::from(self.tasks);
        let (after, there_after) = (Usage::of(None), Usage::of(process));
        println!(
            "  {} {name} in {took:.2} s: {:.0} per second; CPU of each: {:.1} µs here, {:.1} µs \
             at the workers' end",
            self.tasks,
            each / took,
            (after.cpu - before.cpu) * 1e6 / each,
            (there_after.cpu - there.cpu) * 1e6 / each
        );
        show(&self.scheduler.lag().since(&lag));
        println!("    memory here: {:.0} MiB", after.resident / 1024.0 / 1024.0);
    }
}

fn show(lag: &LoopLag) {
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "    lag of the loop: p50 {:.2} ms, p99 {:.2} ms, most {:.2} ms; {} messages in {} turns",
        millis(lag.within(0.5)),
        millis(lag.p99),
        millis(lag.max),
        lag.messages,
        lag.turns
    );
}
