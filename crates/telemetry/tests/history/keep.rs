//! Recovery: killed processes, incomplete files, resumed jobs.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use rollway_core::BatchType;
use rollway_engine::events::RunObservers;
use rollway_engine::{LocalRunners, RolloutCoordinator};
use rollway_ledger as ledger;
use rollway_telemetry::history::{RunHistory, recorded_view};
use rollway_telemetry::view::{JobState, RunKey, RunState};

use crate::help::{all, config, live, local, options, registry, tasks, until};

#[tokio::test]
async fn an_incomplete_frame_loses_only_itself() {
    let folder = tempfile::tempdir().unwrap();
    let history = RunHistory::open(&options(folder.path())).unwrap();
    let coordinator = local(&history).await;
    coordinator.submit_batch(1, tasks("well", 5, 1), BatchType::Train, None).await.unwrap();
    coordinator.finalize_train_batch(1, None).await.unwrap();
    history.close(JobState::Stopped, None);
    drop((coordinator, history));
    let dir = folder.path().join("history");
    for file in ["events", "runs-000001"] {
        let mut file = OpenOptions::new().append(true).open(dir.join(file)).unwrap();
        file.write_all(&[200, 0, 0, 0, 1, 2, 3, 4, b'{']).unwrap();
    }
    let recorded = recorded_view(folder.path()).unwrap();
    assert_eq!(all(&*recorded).len(), 5);

    // The next process continues after the complete frames.
    let history = RunHistory::open(&options(folder.path())).unwrap();
    let (coordinator, view) = (local(&history).await, live(&history));
    coordinator.submit_batch(2, tasks("well", 3, 1), BatchType::Train, None).await.unwrap();
    coordinator.finalize_train_batch(2, None).await.unwrap();
    assert_eq!(all(&*view).len(), 8);
    history.close(JobState::Finished, None);
    let recorded = recorded_view(folder.path()).unwrap();
    let runs = all(&*recorded);
    assert_eq!(runs.len(), 8);
    assert!(runs.values().all(|run| run.state == RunState::Succeeded), "{runs:?}");
    let names: Vec<String> = recorded.batches().into_iter().map(|batch| batch.batch).collect();
    assert_eq!(names, ["2", "1"]);
    let detail = recorded.run(&RunKey { batch: "1".to_owned(), task: 4, run: 0 }).unwrap();
    assert_eq!((detail.attempts.len(), detail.experiences.len()), (1, 1));
}

#[tokio::test]
async fn failed_writes_are_counted_and_new_files_are_used() {
    let folder = tempfile::tempdir().unwrap();
    let history = RunHistory::open(&options(folder.path())).unwrap();
    for file in ["runs-000001", "trajectories-000001"] {
        // A folder in place of the file makes writes fail.
        fs::create_dir(folder.path().join("history").join(file)).unwrap();
    }
    let (coordinator, view) = (local(&history).await, live(&history));
    coordinator.submit_batch(1, tasks("well", 3, 1), BatchType::Train, None).await.unwrap();
    coordinator.finalize_train_batch(1, None).await.unwrap();
    let is_counted = |what: &str| view.overview().dropped.get(what).is_some_and(|it| *it > 0);
    while !(is_counted("records") && is_counted("trajectories")) {
        // The writer thread needs time.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    coordinator.submit_batch(2, tasks("well", 3, 1), BatchType::Train, None).await.unwrap();
    coordinator.finalize_train_batch(2, None).await.unwrap();
    history.close(JobState::Finished, None);
    for file in ["runs-000001", "trajectories-000001"] {
        fs::remove_dir(folder.path().join("history").join(file)).unwrap();
    }
    let recorded = recorded_view(folder.path()).unwrap();
    for task in 0..3 {
        let detail = recorded.run(&RunKey { batch: "2".to_owned(), task, run: 0 }).unwrap();
        assert_eq!((detail.attempts.len(), detail.experiences.len()), (1, 1), "{detail:?}");
        let lost = recorded.run(&RunKey { batch: "1".to_owned(), task, run: 0 }).unwrap();
        assert_eq!((lost.attempts.len(), lost.experiences.len()), (0, 0), "{lost:?}");
    }
}

#[tokio::test]
async fn a_second_writer_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let history = RunHistory::open(&options(folder.path())).unwrap();
    let error = RunHistory::open(&options(folder.path())).unwrap_err().to_string();
    assert!(error.contains("another process"), "{error}");
    // Readers are accepted.
    assert_eq!(recorded_view(folder.path()).unwrap().job().state, JobState::Running);
    history.close(JobState::Finished, None);
    drop(history);
    assert_eq!(recorded_view(folder.path()).unwrap().job().state, JobState::Finished);
    let nothing = recorded_view(&folder.path().join("history")).unwrap_err().to_string();
    assert!(nothing.contains("no history"), "{nothing}");
}

/// A coordinator with a ledger, whose runs are in the history.
async fn durable(folder: &std::path::Path, history: &Arc<RunHistory>) -> RolloutCoordinator {
    let workers = LocalRunners::new(registry());
    let (at, options) = (folder.join("ledger"), ledger::LedgerOptions::new("test"));
    let sink = None;
    let opened = RolloutCoordinator::with_ledger(config(4, 1), workers, sink, &at, options).await;
    let observers = RunObservers::new(vec![Arc::clone(history) as _]);
    let coordinator = opened.unwrap().0.with_observers(observers);
    coordinator.prepare().await.unwrap();
    coordinator
}

#[tokio::test]
async fn a_resumed_job_continues_its_batches() {
    resume(false).await;
}

#[tokio::test]
async fn the_ledger_replaces_lost_records() {
    resume(true).await;
}

async fn resume(is_lost: bool) {
    let folder = tempfile::tempdir().unwrap();
    let history = RunHistory::open(&options(folder.path())).unwrap();
    let view = live(&history);
    let coordinator = durable(folder.path(), &history).await;
    coordinator.submit_batch("1/q", tasks("whimsical", 1, 4), BatchType::Eval, None).await.unwrap();
    until(&*view, RunState::Succeeded, 2).await;
    until(&*view, RunState::Failed, 1).await;
    coordinator.shutdown(Duration::ZERO).await.unwrap();
    history.close(JobState::Stopped, None);
    drop((coordinator, view, history));
    if is_lost {
        fs::remove_file(folder.path().join("history/runs-000001")).unwrap();
    }

    let history = RunHistory::open(&options(folder.path())).unwrap();
    let view = live(&history);
    let coordinator = durable(folder.path(), &history).await;
    history.follow(&coordinator);
    until(&*view, RunState::Running, 1).await;
    let runs = all(&*view);
    let states: Vec<RunState> = runs.values().map(|run| run.state).collect();
    let ended = [RunState::Succeeded, RunState::Succeeded, RunState::Failed];
    assert_eq!((&states[..3], states[3]), (&ended[..], RunState::Running));
    assert_eq!(view.overview().runs.submitted, 4);
    assert_eq!(view.batches().len(), 1);
    coordinator.abort_batch("1/q", "enough", false).await.unwrap();
    let overview = view.overview();
    assert_eq!((overview.runs.pending, overview.runs.running), (0, 0));
    assert_eq!(
        overview.runs.cancelled.into_iter().collect::<Vec<_>>(),
        [("aborted".to_owned(), 1)]
    );
    let before = all(&*view);
    history.close(JobState::Stopped, None);
    assert_eq!(all(&*recorded_view(folder.path()).unwrap()), before);
}

#[test]
fn a_history_in_another_format_is_refused_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    fs::create_dir_all(&options.dir).unwrap();
    let events = options.dir.join("events");
    fs::write(&events, b"rwhist1\nrecords").unwrap();
    let error = RunHistory::open(&options).unwrap_err().to_string();
    assert!(error.contains("not a history of this version"), "{error}");
    assert_eq!(fs::read(&events).unwrap(), b"rwhist1\nrecords");
}
