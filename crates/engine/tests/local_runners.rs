//! Scheduler and coordinator with local runners on a paused clock: every timeout is exact.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use rollway_core::metrics::Metrics;
use rollway_core::{
    BatchState, BatchType, CancelReason, CollectOutcome, CoreConfig, FailureKind, Refusal, RunId,
    TaskId, UnresponsivePolicy,
};
use rollway_engine::{
    BatchDelivery, CollectOptions, Concurrency, DeliveryResult, LocalRunners, RolloutCoordinator,
    RunContext, RunFailure, RunOutcome, RunOutput, Scheduler, Sink, WorkflowRegistry,
};
use tokio::time::{Instant, sleep, timeout};

use common::{SECOND, local_config, tasks};

async fn answer(context: RunContext) -> RunOutcome {
    let payload = format!("{}/{}/{}", context.batch, context.task_id.0, context.run.0);
    let metrics = [("reward", 1.0)].into_iter().collect();
    Ok(RunOutput { payload: Some(payload.into()), metrics })
}

async fn sleepy(context: RunContext) -> RunOutcome {
    sleep(SECOND).await;
    answer(context).await
}

async fn hang(_: RunContext) -> RunOutcome {
    std::future::pending().await
}

async fn faulty(context: RunContext) -> RunOutcome {
    match (context.task_id.0 + context.run.0) % 5 {
        0 => Err(RunFailure::new(FailureKind::Workflow, "not today")),
        1 => panic!("lost my temper"),
        2 => hang(context).await,
        3 => sleepy(context).await,
        _ => answer(context).await,
    }
}

fn registry() -> WorkflowRegistry {
    WorkflowRegistry::default()
        .with("answer", answer)
        .with("sleepy", sleepy)
        .with("hang", hang)
        .with("faulty", faulty)
}

async fn scheduler() -> Scheduler {
    let scheduler = Scheduler::new(local_config(), LocalRunners::new(registry()));
    assert_eq!(scheduler.start().await, Ok((4, 4)));
    scheduler
}

#[tokio::test(start_paused = true)]
async fn results_come_by_task_and_run() {
    let scheduler = scheduler().await;
    scheduler.schedule(tasks("answer", 3, 2), 7).await.unwrap();
    let got = scheduler.get_payload_results(7, CollectOptions::default()).await.unwrap();
    assert_eq!(got.outcome, CollectOutcome::Complete);
    assert!(got.statuses.iter().all(|(_, status)| status.ok()));
    let payloads: Vec<&[u8]> = got.payloads.iter().map(|payload| &payload[..]).collect();
    assert_eq!(payloads, [&b"7/0/0"[..], b"7/0/1", b"7/1/0", b"7/1/1", b"7/2/0", b"7/2/1"]);
    assert_eq!(scheduler.has_step(7).await, Ok(false));
    assert!(scheduler.counters().await.unwrap().balanced());
}

#[tokio::test(start_paused = true)]
async fn collected_payloads_are_released() {
    let scheduler = scheduler().await;
    scheduler.schedule(tasks("answer", 3, 2), 1).await.unwrap();
    let got = scheduler.get_payload_results(1, CollectOptions::default()).await.unwrap();
    // The driver handles the acknowledgement before this request.
    assert_eq!(scheduler.counters().await.unwrap().payloads_held, 0);
    assert_eq!(got.payloads.len(), 6);
    assert!(got.payloads.iter().all(|payload| payload.is_unique()));
}

#[tokio::test(start_paused = true)]
async fn a_batch_ends_whatever_its_runs_do() {
    for concurrency in
        [Concurrency::Sequential, Concurrency::Asynchronous, Concurrency::MultiThreading]
    {
        let local = LocalRunners::new(registry()).concurrency(concurrency);
        let scheduler = Scheduler::new(local_config(), local);
        scheduler.start().await.unwrap();
        scheduler.schedule(tasks("faulty", 20, 3), 1).await.unwrap();
        let got = scheduler.get_payload_results(1, CollectOptions::default()).await.unwrap();
        assert_eq!(got.statuses.len(), 20);
        for (task, status) in &got.statuses {
            let ends = |of: u32| (0..3).filter(|run| (task.0 + run) % 5 == of).count() as u32;
            assert_eq!(status.completed_runs, ends(3) + ends(4), "{concurrency:?} {task}");
            let failed = status.failed_runs;
            let raised = failed[FailureKind::Workflow];
            assert_eq!(raised, u64::from(ends(0) + ends(1)), "{concurrency:?} {task}");
            assert_eq!(failed[FailureKind::Timeout], u64::from(ends(2)), "{concurrency:?} {task}");
        }
        let good: u32 = got.statuses.iter().map(|(_, status)| status.completed_runs).sum();
        assert_eq!(got.payloads.len(), good as usize);
        let runners = scheduler.runners().await.unwrap();
        assert!(runners.iter().all(|runner| runner.state.name() == "idle"), "{runners:?}");
        assert!(scheduler.counters().await.unwrap().balanced());
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_collect_takes_nothing() {
    let scheduler = scheduler().await;
    scheduler.schedule(tasks("sleepy", 2, 1), 1).await.unwrap();
    let early = scheduler.get_payload_results(1, CollectOptions::default());
    assert!(timeout(SECOND / 2, early).await.is_err());
    let got = scheduler.get_payload_results(1, CollectOptions::default()).await.unwrap();
    assert_eq!(got.payloads.len(), 2);
    assert_eq!(scheduler.counters().await.unwrap().abandoned, 1);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_is_exact_and_zero_is_zero() {
    let scheduler = scheduler().await;
    scheduler.schedule(tasks("hang", 1, 1), 1).await.unwrap();
    let began = Instant::now();
    let zero = CollectOptions {
        timeout: Some(Duration::ZERO),
        clear_timeout_tasks: false,
        ..CollectOptions::default()
    };
    let got = scheduler.get_payload_results(1, zero).await.unwrap();
    assert_eq!((got.outcome, began.elapsed()), (CollectOutcome::TimedOut, Duration::ZERO));
    let some = CollectOptions { timeout: Some(3 * SECOND), ..zero };
    scheduler.get_payload_results(1, some).await.unwrap();
    assert!(began.elapsed() - 3 * SECOND < Duration::from_millis(5), "{:?}", began.elapsed());
    scheduler.abort_batch(1, false, UnresponsivePolicy::Replace).await.unwrap();
    assert_eq!(scheduler.wait_all(None, true).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn an_unknown_workflow_is_named() {
    let scheduler = scheduler().await;
    scheduler.schedule(tasks("awnser", 1, 1), 1).await.unwrap();
    let got = scheduler.get_statuses(1, CollectOptions::default()).await.unwrap();
    let message = got[0].1.message().unwrap();
    assert!(message.contains("`awnser`; there is answer, faulty"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn stop_has_a_deadline_and_reports_unfinished_runs() {
    let scheduler = scheduler().await;
    scheduler.schedule(tasks("hang", 6, 1), 1).await.unwrap();
    let waiting = tokio::spawn({
        let scheduler = scheduler.clone();
        async move { scheduler.get_statuses(1, CollectOptions::default()).await }
    });
    tokio::task::yield_now().await;
    sleep(SECOND).await;
    let began = Instant::now();
    let report = scheduler.stop(2 * SECOND).await.unwrap();
    assert!(began.elapsed() - 2 * SECOND < Duration::from_millis(5));
    assert_eq!((report.pending_runs, report.running_runs), (2, 4));
    assert_eq!(waiting.await.unwrap().unwrap_err(), Refusal::Stopped.into());
    assert_eq!(scheduler.start().await, Ok((4, 4)));
    scheduler.schedule(tasks("answer", 1, 1), 2).await.unwrap();
    assert_eq!(scheduler.get_statuses(2, CollectOptions::default()).await.unwrap().len(), 1);
}

/// Fails a number of times, then counts payloads.
#[derive(Default)]
struct Store {
    failures: AtomicU32,
    stored: AtomicU32,
}

impl Sink for Store {
    fn deliver(&self, delivery: BatchDelivery) -> BoxFuture<'_, DeliveryResult> {
        let count = delivery.results.iter().map(|result| result.payloads.len() as u32).sum();
        Box::pin(async move {
            match self.failures.load(Ordering::Relaxed) {
                0 => {
                    self.stored.fetch_add(count, Ordering::Relaxed);
                    Ok([("stored", f64::from(count))].into_iter().collect())
                }
                1 => {
                    self.failures.store(0, Ordering::Relaxed);
                    panic!("the disk is on fire")
                }
                left => {
                    self.failures.store(left - 1, Ordering::Relaxed);
                    Err("disk full".to_owned())
                }
            }
        })
    }

    fn process(&self, _: Vec<bytes::Bytes>) -> BoxFuture<'_, DeliveryResult> {
        Box::pin(async { Ok(Metrics::new()) })
    }
}

#[tokio::test(start_paused = true)]
async fn finalize_can_be_repeated_after_a_sink_failure() {
    let store = Arc::new(Store::default());
    store.failures.store(2, Ordering::Relaxed);
    let coordinator = RolloutCoordinator::new(
        local_config(),
        LocalRunners::new(registry()),
        Some(Arc::clone(&store) as _),
    );
    let early = coordinator.submit_batch(1, tasks("answer", 1, 1), BatchType::Train, None).await;
    assert_eq!(early.unwrap_err(), Refusal::NotStarted.into());
    coordinator.prepare().await.unwrap();
    coordinator.submit_batch(1, tasks("answer", 4, 2), BatchType::Train, None).await.unwrap();
    for message in ["disk full", "panicked"] {
        let error = coordinator.finalize_train_batch(1, None).await.unwrap_err();
        assert_eq!(error.code(), "sink_failed");
        assert!(error.to_string().contains(message), "{error}");
        assert_eq!(coordinator.batch_state(1).await, Ok(Some(BatchState::Running)));
    }
    let result = coordinator.finalize_train_batch(1, None).await.unwrap();
    assert_eq!((result.delivered, store.stored.load(Ordering::Relaxed)), (8, 8));
    assert_eq!(result.sink_metrics.get("stored"), Some(8.0));
    let again = coordinator.finalize_train_batch(1, None).await.unwrap();
    assert_eq!((again, store.stored.load(Ordering::Relaxed)), (result, 8));
    let wrong = coordinator.finalize_eval_batch(1, None).await.unwrap_err();
    assert!(wrong.to_string().contains("expected eval"), "{wrong}");
    coordinator.shutdown(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_handle_ends_the_runners() {
    struct Noticed(Arc<AtomicU32>);
    impl Drop for Noticed {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let dropped = Arc::new(AtomicU32::new(0));
    let noticed = Arc::clone(&dropped);
    let workflow = move |_: RunContext| {
        let noticed = Noticed(Arc::clone(&noticed));
        async move {
            std::future::pending::<()>().await;
            drop(noticed);
            Ok(RunOutput::default())
        }
    };
    let scheduler = Scheduler::new(
        local_config(),
        LocalRunners::new(WorkflowRegistry::default().with("w", workflow)),
    );
    scheduler.start().await.unwrap();
    scheduler.schedule(tasks("w", 4, 1), 1).await.unwrap();
    sleep(SECOND).await;
    drop(scheduler);
    sleep(SECOND).await;
    assert_eq!(dropped.load(Ordering::Relaxed), 4);
}

async fn staged(context: RunContext) -> RunOutcome {
    if context.run.0 == 1 {
        context.stage("compiling the tests");
        return hang(context).await;
    }
    sleepy(context).await
}

#[tokio::test(start_paused = true)]
async fn a_run_that_hangs_is_shown_with_its_stage_and_cancelled_alone() {
    let local =
        LocalRunners::new(registry().with("staged", staged)).concurrency(Concurrency::Asynchronous);
    let scheduler = Scheduler::new(CoreConfig { runners: 2, ..local_config() }, local);
    scheduler.start().await.unwrap();
    scheduler.schedule(tasks("staged", 1, 3), 1).await.unwrap();
    sleep(2 * SECOND).await;
    let states = scheduler.runner_states().await.unwrap();
    let first = &states[0];
    assert_eq!(first.stage.as_deref(), Some("compiling the tests"), "{states:?}");
    assert_eq!((first.run, &first.runs), (Some(RunId(1)), &vec![RunId(1)]));
    assert_eq!((&first.batch, first.task), (&Some(1.into()), Some(TaskId(0))));
    assert!(first.age >= 2 * SECOND && first.attempt.is_some());
    assert_eq!((states[1].state.name(), &states[1].stage), ("idle", &None));

    assert_eq!(scheduler.cancel_run(1, TaskId(0), RunId(1), "it hangs").await, Ok(true));
    assert_eq!(scheduler.cancel_run(1, TaskId(0), RunId(1), "again").await, Ok(false));
    let got = scheduler.get_payload_results(1, CollectOptions::default()).await.unwrap();
    assert_eq!(got.payloads.len(), 2, "what the others yielded stays");
    assert_eq!(got.statuses[0].1.cancelled_runs[CancelReason::Requested], 1);
    sleep(SECOND).await;
    let states = scheduler.runner_states().await.unwrap();
    assert!(states.iter().all(|one| one.state.name() == "idle" && one.stage.is_none()));
    assert!(scheduler.counters().await.unwrap().balanced());
}
