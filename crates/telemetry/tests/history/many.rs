//! Many runs and limits.

use std::sync::Arc;
use std::time::Duration;

use rollway_core::metrics::Metrics;
use rollway_core::{
    AttemptId, BatchKey, BatchState, BatchType, Incarnation, RunEnd, RunId, RunOutput, RunRange,
    RunnerId, TaskId,
};
use rollway_engine::events::{self, RunEvent, RunEventKind, RunObserver};
use rollway_telemetry::DropCounters;
use rollway_telemetry::history::{RunHistory, recorded_view};
use rollway_telemetry::view::{JobState, RunKey, RunQuery, RunState};

use crate::help::{all, experience, live, local, options, tasks};

#[tokio::test]
async fn the_oldest_runs_are_dropped_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let limited =
        rollway_telemetry::history::HistoryOptions { max_runs: 50, ..options(folder.path()) };
    let history = RunHistory::open(&limited).unwrap();
    let (coordinator, view) = (local(&history).await, live(&history));
    for batch in 0..6 {
        let tasks = tasks("well", 20, 1);
        coordinator.submit_batch(batch, tasks, BatchType::Train, None).await.unwrap();
        coordinator.finalize_train_batch(batch, None).await.unwrap();
    }
    let runs = all(&*view);
    assert_eq!(runs.len(), 50);
    assert!(!runs.contains_key("3/9/0") && runs.contains_key("3/10/0"), "{:?}", runs.keys());
    let overview = view.overview();
    assert_eq!(overview.dropped["runs"], 70);
    // Dropped runs are still counted.
    assert_eq!((overview.runs.submitted, overview.runs.succeeded), (120, 120));
    assert_eq!(overview.tasks.finished, 120);
    assert!(view.run(&RunKey { batch: "0".to_owned(), task: 0, run: 0 }).is_none());
}

#[tokio::test]
async fn the_oldest_trajectories_are_dropped_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = experience(1.0).len() as u64;
    // Eight files of two each.
    let max_trajectory_bytes = 16 * bytes;
    let limited = rollway_telemetry::history::HistoryOptions {
        max_trajectory_bytes,
        ..options(folder.path())
    };
    let history = RunHistory::open(&limited).unwrap();
    let (coordinator, view) = (local(&history).await, live(&history));
    coordinator.submit_batch(1, tasks("well", 40, 1), BatchType::Train, None).await.unwrap();
    coordinator.finalize_train_batch(1, None).await.unwrap();
    let mut kept = 0;
    for task in 0..40 {
        let detail = view.run(&RunKey { batch: "1".to_owned(), task, run: 0 }).unwrap();
        match &detail.experiences[..] {
            [] => assert!(detail.experiences_message.unwrap().contains("dropped")),
            _ => kept += 1,
        }
    }
    assert_eq!(view.overview().dropped["trajectories"] + kept, 40);
    assert!((14..=16).contains(&kept), "{kept}");
    history.close(JobState::Finished, None);
    let files = std::fs::read_dir(folder.path().join("history")).unwrap();
    let sizes = files.filter_map(|file| {
        let file = file.unwrap();
        let is_one = file.file_name().to_str().unwrap().starts_with("trajectories");
        is_one.then(|| file.metadata().unwrap().len())
    });
    assert!(sizes.sum::<u64>() <= max_trajectory_bytes + 8 * 8);
}

/// Sends the events of a batch whose runs all succeed.
fn observe_batch(history: &RunHistory, tasks: u32) {
    let event = |what| RunEvent { at: events::now(), what };
    let key = BatchKey(0);
    let one: (Arc<str>, u32) = ("well".into(), 1);
    history.observe(&[event(RunEventKind::BatchBegan {
        batch: 1.into(),
        key,
        kind: BatchType::Train,
        first: TaskId(0),
        tasks: vec![one; tasks as usize].into(),
    })]);
    for task in 0..tasks {
        let (attempt, runner) = (AttemptId(task.into()), RunnerId(task % 8));
        let runs = RunRange { first: 0, count: 1 };
        let (incarnation, timeout, task) = (Incarnation(1), Duration::from_secs(1), TaskId(task));
        let end = Ok(RunOutput { payload: None, metrics: Metrics::new() });
        let (run, how) = (RunId(0), RunEnd::Succeeded(()));
        history.observe(&[
            event(RunEventKind::AttemptSent {
                attempt,
                key,
                task,
                runs,
                runner,
                incarnation,
                timeout,
            }),
            event(RunEventKind::AttemptBegan { attempt }),
            event(RunEventKind::RunReported { attempt, run, end }),
            event(RunEventKind::RunEnded { key, task, run, how }),
            event(RunEventKind::AttemptEnded { attempt, lost: None }),
        ]);
    }
    history
        .observe(&[event(RunEventKind::BatchStateChanged { key, state: BatchState::Finalized })]);
}

#[test]
fn a_hundred_thousand_runs_are_queried_and_read_again() {
    const TASKS: u32 = 100_000;
    let folder = tempfile::tempdir().unwrap();
    let history = RunHistory::open(&options(folder.path())).unwrap();
    let view = live(&history);
    observe_batch(&history, TASKS);
    let query = |text: &str| RunQuery {
        text: Some(text.to_owned()),
        state: Some(RunState::Succeeded),
        limit: 10,
        ..RunQuery::default()
    };
    let page = view.runs(&query("1/9999"));
    // 9999 and 99990 to 99999.
    assert_eq!((page.total, page.runs.len()), (11, 10));
    let overview = view.overview();
    assert_eq!((overview.runs.succeeded, overview.dropped.get("events")), (TASKS.into(), None));
    history.close(JobState::Finished, None);
    let recorded = recorded_view(folder.path()).unwrap();
    assert_eq!(recorded.overview().runs.succeeded, u64::from(TASKS));
    assert_eq!(recorded.runs(&query("1/9999")), page);
    let key = RunKey { batch: "1".to_owned(), task: 99_999, run: 0 };
    assert_eq!(recorded.run(&key).unwrap().attempts.len(), 1);
}

#[test]
fn dropped_payloads_are_counted_for_metrics_and_alarms() {
    let folder = tempfile::tempdir().unwrap();
    let drops = DropCounters::default();
    let history = RunHistory::open_counted(&options(folder.path()), &drops).unwrap();
    assert_eq!(drops.read()["history"], 0);
    // Larger than the queue of experiences.
    let payload = Some(vec![0; (64 << 20) + 1].into());
    let end = Ok(RunOutput { payload, metrics: Metrics::new() });
    let what = RunEventKind::RunReported { attempt: AttemptId(1), run: RunId(0), end };
    history.observe(&[RunEvent { at: events::now(), what }]);
    assert_eq!(drops.read()["history"], 1);
    history.close(JobState::Finished, None);
    let what = RunEventKind::AttemptBegan { attempt: AttemptId(1) };
    history.observe(&[RunEvent { at: events::now(), what }]);
    assert_eq!(drops.read()["history"], 1, "a closed history expects nothing");
}
