//! The scheduler with runners in child processes: real processes that exit, hang and go deaf.

use std::path::PathBuf;
use std::time::Duration;

use rollway::{ChildOptions, Children, Collect, Scheduler, Task};
use rollway_core::{Config, FailureKind, Outcome, Supervision};

/// Returns the example worker, which cargo builds beside the tests.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("this program has a path");
    let target = test.parent().and_then(|deps| deps.parent()).expect("it lies in target");
    let program = target.join("examples/worker");
    assert!(program.exists(), "build it first: cargo build -p rollway --example worker");
    program
}

fn config(runners: u32) -> Config {
    Config {
        runners,
        max_timeout: Duration::from_millis(400),
        supervision: Supervision {
            cancel_grace: Duration::from_millis(200),
            restart_backoff: Duration::from_millis(50),
            ..Supervision::default()
        },
        ..Config::default()
    }
}

async fn scheduler(runners: u32) -> Scheduler {
    let children = Children::new(ChildOptions::new(program())).await.expect("a port");
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
    let got = scheduler.get_payload_results(1, Collect::default()).await.unwrap();
    assert_eq!((got.outcome, got.payloads.len()), (Outcome::Complete, 50));
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
        let got = scheduler.get_statuses(batch, Collect::default()).await.unwrap();
        assert_eq!(got[0].1.failed_runs[kind], 1, "{batch}: {:?}", got[0].1);
    }
    let exit = scheduler.get_payload_results(4, Collect::default()).await.unwrap();
    assert_eq!(exit.payloads.len(), 1);
    let counters = scheduler.counters().await.unwrap();
    assert!(counters.balanced() && counters.runners_lost >= 6, "{counters:?}");
    // Three lives of the deaf one and three of the dead one later, everybody is back.
    scheduler.schedule(tasks("answer", 30), 5).await.unwrap();
    let got = scheduler.get_payload_results(5, Collect::default()).await.unwrap();
    assert_eq!(got.payloads.len(), 30);
    while !pool_is_whole(&scheduler).await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_program_that_cannot_be_started_says_why() {
    let children = Children::new(ChildOptions::new("no-such-program")).await.unwrap();
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
