//! Throughput and latency of the engine with local runners, compared with a bare channel.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use rollway_core::metrics::Metrics;
use rollway_core::{BatchType, CoreConfig};
use rollway_engine::{
    BatchDelivery, CollectOptions, DeliveryResult, LocalRunners, RolloutCoordinator, RunContext,
    RunOutcome, RunOutput, Scheduler, Sink, Task, WorkflowRegistry,
};
use rollway_ledger as ledger;
use tokio::sync::mpsc;

async fn nothing(_: RunContext) -> RunOutcome {
    Ok(RunOutput::default())
}

async fn scheduler(runners: u32) -> Scheduler {
    let config = CoreConfig { runners, ..CoreConfig::default() };
    let scheduler = Scheduler::new(
        config,
        LocalRunners::new(WorkflowRegistry::default().with("nothing", nothing)),
    );
    scheduler.start().await.expect("local runners start");
    scheduler
}

fn tasks(count: usize) -> Vec<Task> {
    vec![Task::new("nothing", ""); count]
}

fn median(mut values: Vec<Duration>) -> Duration {
    values.sort();
    values[values.len() / 2]
}

/// Round trips per second between two tasks, with `width` in flight.
async fn bare_channel(messages: u64, width: usize) -> f64 {
    let (to, mut from) = mpsc::channel::<u64>(width);
    let (back, mut answers) = mpsc::channel::<u64>(width);
    tokio::spawn(async move {
        while let Some(message) = from.recv().await {
            let _ = back.send(message).await;
        }
    });
    let start = Instant::now();
    let mut under_way = 0;
    for message in 0..messages {
        if under_way == width {
            answers.recv().await;
            under_way -= 1;
        }
        let _ = to.send(message).await;
        under_way += 1;
    }
    messages as f64 / start.elapsed().as_secs_f64()
}

async fn throughput(runners: u32) {
    const TASKS: usize = 200_000;
    const ROUNDS: i64 = 5;
    let scheduler = scheduler(runners).await;
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let start = Instant::now();
        scheduler.schedule(tasks(TASKS), round).await.expect("a fresh batch");
        let got = scheduler.get_statuses(round, CollectOptions::default()).await.expect("it ends");
        assert_eq!(got.len(), TASKS);
        times.push(start.elapsed());
    }
    let rate = TASKS as f64 / median(times).as_secs_f64();
    println!("  {runners:>3} runners: {rate:>9.0} no-op tasks per second");
}

async fn latency() {
    const ROUNDS: i64 = 2_000;
    let scheduler = scheduler(8).await;
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let start = Instant::now();
        scheduler.schedule(tasks(1), round).await.expect("a fresh batch");
        scheduler.get_statuses(round, CollectOptions::default()).await.expect("it ends");
        times.push(start.elapsed());
    }
    times.sort();
    let at = |percent: usize| times[times.len() * percent / 100];
    println!("one task on an idle pool, schedule to result: p50 {:?}, p99 {:?}", at(50), at(99));
}

/// Discards everything.
struct Nowhere;

impl Sink for Nowhere {
    fn deliver(&self, _: BatchDelivery) -> BoxFuture<'_, DeliveryResult> {
        Box::pin(std::future::ready(Ok(Metrics::new())))
    }

    fn process(&self, _: Vec<Bytes>) -> BoxFuture<'_, DeliveryResult> {
        Box::pin(std::future::ready(Ok(Metrics::new())))
    }
}

/// Throughput of a coordinator with and without a ledger, measured alternately.
async fn ledger_cost() {
    const TASKS: usize = 100_000;
    const ROUNDS: i64 = 7;
    let config = || CoreConfig { runners: 8, ..CoreConfig::default() };
    let workers = || LocalRunners::new(WorkflowRegistry::default().with("little", little));
    let sink = || Some(Arc::new(Nowhere) as Arc<dyn Sink>);
    let without = RolloutCoordinator::new(config(), workers(), sink());
    let folder = tempfile::tempdir().expect("a folder");
    let options = ledger::LedgerOptions::new("bench");
    let opened =
        RolloutCoordinator::with_ledger(config(), workers(), sink(), folder.path(), options).await;
    let (with, _) = opened.expect("a new ledger");
    let mut times = [Vec::new(), Vec::new()];
    for (coordinator, times) in [&without, &with].into_iter().zip(&mut times) {
        coordinator.prepare().await.expect("local runners start");
        times.reserve(ROUNDS as usize);
    }
    for round in 0..ROUNDS {
        for (coordinator, times) in [&without, &with].into_iter().zip(&mut times) {
            let tasks = vec![Task::new("little", ""); TASKS];
            let start = Instant::now();
            let submitted = coordinator.submit_batch(round, tasks, BatchType::Train, None);
            submitted.await.expect("a fresh batch");
            let result = coordinator.finalize_train_batch(round, None).await.expect("it ends");
            assert_eq!(result.delivered, TASKS as u64);
            times.push(start.elapsed());
        }
    }
    let [without, with] = times.map(|times| TASKS as f64 / median(times).as_secs_f64());
    println!("batches of {TASKS} tasks, each with a payload of 100 bytes, through a coordinator");
    println!("  without a ledger: {without:>9.0} tasks per second");
    println!("  with a ledger:    {with:>9.0} tasks per second, {:.2} of that", with / without);
}

async fn little(_: RunContext) -> RunOutcome {
    let payload = Some(Bytes::from_static(&[7; 100]));
    Ok(RunOutput { payload, ..RunOutput::default() })
}

#[tokio::main]
async fn main() {
    println!(
        "bare channel round trips per second, 64 under way: {:.0}",
        bare_channel(500_000, 64).await
    );
    println!("in-process workflows");
    for runners in [2, 8, 64] {
        throughput(runners).await;
    }
    latency().await;
    ledger_cost().await;
}
