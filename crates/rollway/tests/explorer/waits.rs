//! Waits of a job are events with their reason and timeout, and live statistics name stragglers.

use std::sync::{Arc, Mutex, mpsc};

use rollway::explorer::{
    Explorer, ExplorerOptions, JobEvent, JobObservers, JobWait, LiveStats, WaitReason,
};
use rollway::job::{Job, SummaryState};
use rollway_data::pipeline::{Operator, OperatorError, OperatorOutput, OperatorRegistry};
use rollway_experience::Experience;
use tokio_util::sync::CancellationToken;

use crate::world::{EventLog, TestRun, Trainer, World, except_task_7};

/// Returns the reasons of waits that began and ended.
fn waits(seen: &EventLog) -> (Vec<JobWait>, usize) {
    let ended =
        seen.events().iter().filter(|event| matches!(event, JobEvent::WaitEnded(_))).count();
    (seen.waits(), ended)
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_for_a_trainer_is_an_event_with_its_timeout() {
    let world = World::new();
    let seen = EventLog::default();
    let overrides = ["mode=explore", "synchronizer.trainer_join_timeout=0.2"];
    let mut explorer = world.prepare(&overrides, &seen).await;
    explorer.explore().await.unwrap();
    explorer.shutdown().await.unwrap();
    let (begun, ended) = waits(&seen);
    assert_eq!(begun.len(), ended, "every wait ends");
    let trainer = begun.iter().find(|wait| matches!(wait.reason, WaitReason::Trainer { .. }));
    let limit = trainer.and_then(|wait| wait.limit.clone()).unwrap();
    assert_eq!(limit.key, "synchronizer.trainer_join_timeout");
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_for_weights_names_version_and_timeout() {
    let world = World::new();
    let seen = EventLog::default();
    let mut explorer = world.prepare(&["synchronizer.sync_timeout=0.2"], &seen).await;
    explorer.explore().await.unwrap_err();
    explorer.shutdown().await.unwrap();
    let (begun, _) = waits(&seen);
    let wait = begun.iter().find(|wait| matches!(wait.reason, WaitReason::Weights { .. })).unwrap();
    assert_eq!(wait.reason, WaitReason::Weights { step: 1, at_least: 1 });
    assert_eq!(wait.limit.as_ref().unwrap().key, "synchronizer.sync_timeout");
}

/// Returns the first wait for runs that live statistics report.
async fn runs_wait(stats: LiveStats) -> WaitReason {
    loop {
        if let Some(wait) = stats.wait().await
            && wait.reason.is_work()
        {
            return wait.reason;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn live_statistics_name_the_straggler_of_a_step() {
    let world = World::with(except_task_7(TestRun::Hangs));
    let seen = EventLog::default();
    let overrides = [
        "buffer.batch_size=10",
        "buffer.total_steps=1",
        "algorithm.repeat_times=1",
        "explorer.max_timeout=60",
        "explorer.eval_on_startup=false",
    ];
    let mut explorer = world.prepare(&overrides, &seen).await;
    let (stats, stop) = (explorer.live_stats(), explorer.stopper());
    let exploring = tokio::spawn(async move {
        let explored = explorer.explore().await;
        explorer.shutdown().await.unwrap();
        explored
    });
    let reason = loop {
        let reason = runs_wait(stats.clone()).await;
        if matches!(reason, WaitReason::Runs { open: 1, .. }) {
            break reason;
        }
    };
    let sentence = reason.message();
    assert!(sentence.starts_with("batch 1 waits for 1 of 10 runs: batch 1 task "), "{sentence}");
    assert!(sentence.contains(" run 0, in stage"), "{sentence}");
    stop.stop();
    assert!(exploring.await.unwrap().unwrap().stopped);
}

/// Waits until live statistics report a wait of a kind.
pub(crate) async fn wait_of_kind(stats: &LiveStats, name: &str) -> JobWait {
    loop {
        if let Some(wait) = stats.wait().await.filter(|wait| wait.reason.name() == name) {
            return wait;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn live_statistics_name_the_failure_of_a_retry_backoff() {
    let world = World::with(|_, _, _| TestRun::Fails);
    let overrides = [
        "explorer.failures={workflow: {retries: 1, backoff: 60}}",
        "explorer.eval_on_startup=false",
    ];
    let mut explorer = world.prepare(&overrides, &EventLog::default()).await;
    let (stats, stop) = (explorer.live_stats(), explorer.stopper());
    let exploring = tokio::spawn(async move {
        let explored = explorer.explore().await;
        explorer.shutdown().await.unwrap();
        explored
    });
    let message = wait_of_kind(&stats, "retry").await.reason.message();
    assert!(message.starts_with("6 runs of batch 1 wait for a retry, the next in "), "{message}");
    assert!(message.ends_with(", after a failure as workflow: not today"), "{message}");
    stop.stop();
    assert!(exploring.await.unwrap().unwrap().stopped);
}

/// Waits for a message before every batch.
struct Blocked(Arc<Mutex<mpsc::Receiver<()>>>);

impl Operator for Blocked {
    fn name(&self) -> &str {
        "blocked"
    }

    fn process(&mut self, experiences: Vec<Experience>) -> Result<OperatorOutput, OperatorError> {
        let _ = self.0.lock().unwrap().recv();
        Ok(OperatorOutput::new(experiences))
    }
}

pub(crate) const NO_TRAINER: [&str; 3] =
    ["mode=explore", "synchronizer.trainer_join_timeout=0.1", "explorer.eval_on_startup=false"];

#[tokio::test(flavor = "multi_thread")]
async fn slow_operator_is_a_wait_for_the_delivery() {
    let world = World::new();
    let overrides = ["data_processor.experience_pipeline.operators=[{name: blocked}]"];
    let config = world.config(&[&NO_TRAINER[..], &["buffer.total_steps=1"], &overrides].concat());
    let (release, receiver) = mpsc::channel();
    let receiver = Arc::new(Mutex::new(receiver));
    let mut operators = OperatorRegistry::built_in();
    let make = move |_: &_| Ok(Box::new(Blocked(Arc::clone(&receiver))) as _);
    operators.register("blocked", make).unwrap();
    let options = ExplorerOptions {
        runtime: Some(world.runtime()),
        operators: Some(Arc::new(operators)),
        ..ExplorerOptions::default()
    };
    let mut explorer = Explorer::prepare(&config, options).await.unwrap();
    let stats = explorer.live_stats();
    let exploring = tokio::spawn(async move {
        let explored = explorer.explore().await;
        explorer.shutdown().await.unwrap();
        explored
    });
    let wait = wait_of_kind(&stats, "delivery").await;
    assert_eq!(wait.reason, WaitReason::Delivery { batch: 1.into() });
    drop(release);
    assert_eq!(exploring.await.unwrap().unwrap().steps, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn end_of_the_trainer_program_is_a_wait_after_the_last_step() {
    let world = World::new();
    let seen = EventLog::default();
    let end = world.folder.path().join("end");
    let script = format!("while [ ! -e {} ]; do sleep 0.01; done", end.display());
    let command = format!("trainer.command=[sh, -c, {script:?}]");
    let overrides = ["trainer.trainer_type=command", &command, "buffer.total_steps=1"];
    let mut explorer = world.prepare(&overrides, &seen).await;
    let trainer = Trainer::start(&explorer, &seen).await;
    let token = CancellationToken::new();
    let ends = async {
        let wait = seen.until_wait("trainer_end").await;
        std::fs::write(&end, "").unwrap();
        wait
    };
    let (explored, wait) = tokio::join!(Job::explore(&mut explorer, &token), ends);
    assert!(!explored.unwrap().stopped);
    assert_eq!(wait.limit.unwrap().key, "synchronizer.sync_timeout");
    let (begun, ended) = waits(&seen);
    assert_eq!(begun.len(), ended, "every wait ends");
    drop(trainer);
    explorer.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn trainer_without_experiences_is_a_wait_of_mode_train() {
    let world = World::new();
    let seen = EventLog::default();
    let overrides =
        ["mode=train", "buffer.train_batch_size=6", "synchronizer.sync_method=checkpoint"];
    let watchers = JobObservers::new(vec![Arc::new(seen.clone())]);
    let stop = CancellationToken::new();
    let operators = Arc::new(OperatorRegistry::built_in());
    let running = Job::run(world.config(&overrides), watchers, operators, stop.clone());
    let stops = async {
        let wait = seen.until_wait("experiences").await;
        stop.cancel();
        wait
    };
    let (ran, wait) = tokio::join!(running, stops);
    assert_eq!(ran.unwrap().state, SummaryState::Stopped);
    assert_eq!(wait.reason, WaitReason::Experiences { wanted: 6 });
    let key = "buffer.trainer_input.experience_buffer.max_read_timeout";
    assert_eq!(wait.limit.unwrap().key, key);
    let (begun, ended) = waits(&seen);
    assert_eq!(begun.len(), ended, "every wait ends");
}
