//! A worker that takes attempts ahead, behind the real scheduler and a real connection.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use rollway_base::Secret;
use rollway_core::{AttemptId, Config, Counters, FailureKind, Outcome, RunnerId};
use rollway_engine::events::{Observer, Observers, Seen, What};
use rollway_engine::{
    ChildOptions, Children, Collect, Ended, Launched, Launcher, RunEnd, Scheduler, Task, Ticket,
};
use rollway_wire::conformance::reference::ReferenceWorker;
use rollway_wire::conformance::{FAIL, Invitation, SUCCEED};
use rollway_wire::env;
use tokio::task::JoinHandle;

/// Has the reference worker run in this process.
#[derive(Debug)]
struct Here {
    takes_ahead: bool,
}

struct Running(JoinHandle<Result<(), String>>);

impl Launcher for Here {
    fn launch(&self, ticket: Ticket) -> Box<dyn Launched> {
        let of = |name: &str| {
            let found = ticket.env.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.clone()).expect("it is there")
        };
        let invitation = Invitation {
            address: of(env::ADDRESS).parse().expect("an address"),
            secret: Secret::new(of(env::SECRET)).expect("a secret"),
            token: ticket.token.clone(),
        };
        let (runners, takes_ahead) = (ticket.runners, self.takes_ahead);
        let worker = ReferenceWorker { runners, flaw: None, takes_ahead };
        Box::new(Running(tokio::spawn(worker.run(invitation))))
    }
}

impl Launched for Running {
    fn ended(&mut self) -> Pin<Box<dyn Future<Output = Ended> + Send + '_>> {
        Box::pin(async {
            let ended = (&mut self.0).await;
            Ended::blameless(format!("{ended:?}"))
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Sees to it that runners are seen to do one attempt at a time, and every one from its beginning
/// to its end.
#[derive(Debug, Default)]
struct InTurn(Mutex<Stage>);

#[derive(Debug, Default)]
struct Stage {
    on: BTreeMap<RunnerId, AttemptId>,
    given: u64,
    succeeded: u64,
}

impl Observer for InTurn {
    fn observe(&self, seen: &[Seen]) {
        let mut stage = self.0.lock().expect("nobody has failed before");
        for what in seen.iter().map(|seen| &seen.what) {
            let is_on = |id: &AttemptId| stage.on.values().any(|on| on == id);
            match what {
                What::AttemptGiven { attempt, runner, .. } => {
                    assert_eq!(stage.on.insert(*runner, *attempt), None, "{what:?}");
                    stage.given += 1;
                }
                What::AttemptBegan { attempt } => assert!(is_on(attempt), "{what:?}"),
                What::RunEnded { attempt, end, .. } => {
                    assert!(is_on(attempt), "{what:?}");
                    stage.succeeded += u64::from(matches!(end, RunEnd::Succeeded { .. }));
                }
                What::AttemptEnded { attempt, lost } => {
                    assert!(is_on(attempt) && lost.is_none(), "{what:?}");
                    stage.on.retain(|_, on| on != attempt);
                }
                _ => {}
            }
        }
    }
}

async fn scheduler(takes_ahead: bool) -> Scheduler {
    // Whatever else the machine does, these are quick.
    let config = Config { runners: 3, quick: Duration::from_secs(100), ..Config::default() };
    let options = ChildOptions { runners_per_worker: 2, ..ChildOptions::new("nowhere") };
    let children = Children::with_launcher(options, Arc::new(Here { takes_ahead })).await;
    let scheduler = Scheduler::new(config, children.expect("a port"));
    assert_eq!(scheduler.start().await, Ok((3, 3)));
    scheduler
}

/// Runs this many tasks, every seventh of which fails; returns what the core has counted.
async fn counted(takes_ahead: bool, tasks: u64) -> Counters {
    let seen = Arc::new(InTurn::default());
    let observers = Observers::new(vec![Arc::clone(&seen) as Arc<dyn Observer>]);
    let scheduler = scheduler(takes_ahead).await.observed(observers);
    let workflow = |at| if at % 7 == 3 { FAIL } else { SUCCEED };
    let batch: Vec<Task> = (0..tasks).map(|at| Task::new(workflow(at), "")).collect();
    scheduler.schedule(batch, 1).await.expect("the engine is there");
    let got =
        scheduler.get_payload_results(1, Collect::default()).await.expect("the engine is there");
    assert_eq!(got.outcome, Outcome::Complete);
    for (task, status) in &got.statuses {
        assert_eq!(status.ok(), workflow(u64::from(task.0)) == SUCCEED, "{task}: {status:?}");
    }
    let good = (0..tasks).filter(|at| workflow(*at) == SUCCEED).count();
    assert_eq!(got.payloads.len(), good);
    let counters = scheduler.counters().await.expect("the engine is there");
    scheduler.stop(Duration::from_secs(10)).await.expect("the engine is there");
    let seen = seen.0.lock().expect("nobody has failed");
    assert_eq!((seen.given, seen.succeeded), (counters.attempts_started, good as u64), "{seen:?}");
    assert_eq!(seen.on, BTreeMap::new());
    counters
}

#[tokio::test]
async fn quick_runners_are_given_attempts_ahead_and_every_run_counts_once() {
    let counters = counted(true, 400).await;
    assert!(counters.balanced() && counters.runners_lost == 0, "{counters:?}");
    assert!(counters.attempts_ahead > 100, "{counters:?}");
    // 57 of them are tried three times; nobody was slow, so that nothing was called back.
    assert_eq!((counters.attempts_started, counters.attempts_recalled), (400 + 2 * 57, 0));
    assert_eq!(counters.disbelieved.total(), 0, "{counters:?}");
}

#[tokio::test]
async fn whoever_takes_none_is_given_none() {
    let counters = counted(false, 100).await;
    assert_eq!((counters.attempts_ahead, counters.disbelieved.total()), (0, 0), "{counters:?}");
}

#[tokio::test]
async fn what_cannot_be_sent_ahead_fails_alone() {
    let scheduler = scheduler(true).await;
    let large = |at: u32| at % 50 == 30;
    let body = Bytes::from(vec![0; 257 * 1024 * 1024]);
    let task =
        |at| if large(at) { Task::new(SUCCEED, body.clone()) } else { Task::new(SUCCEED, "") };
    scheduler.schedule((0..200).map(task).collect(), 1).await.expect("the engine is there");
    let got = scheduler.get_statuses(1, Collect::default()).await.expect("the engine is there");
    for (task, status) in &got {
        let failed = status.failed_runs[FailureKind::InvalidOutput];
        assert_eq!((failed == 1, status.ok()), (large(task.0), !large(task.0)), "{status:?}");
    }
    let counters = scheduler.counters().await.expect("the engine is there");
    assert!(counters.attempts_ahead > 0, "{counters:?}");
    assert_eq!(counters.retries[FailureKind::RunnerLost], 0, "{counters:?}");
    assert_eq!(counters.disbelieved.total(), 0, "{counters:?}");
}
