//! Resume after a stop and after a kill.

use std::collections::BTreeMap;

use rollway::explorer::{ExploreSummary, ExplorerError};

use crate::world::{EventLog, TestRun, Trainer, World, except_task_7};

/// Explores to the end. The runtime waits until the ledger is closed.
fn explore(world: &World, overrides: &[&str]) -> ExploreSummary {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(world.explore(overrides)).0
}

/// Returns the experiences of an uninterrupted job.
fn uninterrupted(overrides: &[&str]) -> BTreeMap<String, Vec<u64>> {
    let world = World::new();
    explore(&world, overrides);
    world.delivered()
}

/// Explores until an event, and ends like a killed process: nothing is closed.
fn kill_at(world: &World, overrides: &[&str], event: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let seen = EventLog::default();
        let mut explorer = world.prepare(overrides, &seen).await;
        let trainer = Trainer::start(&explorer, &seen).await;
        tokio::select! {
            explored = explorer.explore() => panic!("no event {event}: {explored:?}"),
            () = seen.until(event) => {}
        }
        drop((explorer, trainer));
    });
}

#[test]
fn missing_checkpoint_of_a_begun_job_is_refused() {
    for lost in [&["explorer_meta.json"][..], &["explorer_meta.json", "explorer_begun.txt"]] {
        let world = World::new();
        kill_at(&world, &[], "done 2");
        for name in lost {
            std::fs::remove_file(world.job_dir().join(name)).unwrap();
        }
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let opened = runtime.block_on(world.try_prepare(&[], &EventLog::default()));
        let message = opened.unwrap_err().to_string();
        assert!(message.contains("explorer_meta.json: the file is missing"), "{message}");
        assert!(message.contains("restore the file from a backup"), "{message}");
        let delivered = world.delivered();
        assert!(delivered.values().all(|tasks| tasks.len() == 6), "once: {delivered:?}");
    }
}

#[test]
fn killed_job_resumes_with_the_same_tasks_delivered_once() {
    for (style, synced) in [("fixed", "sync 1 v1"), ("fully_async", "done 2")] {
        let style = format!("synchronizer.sync_style={style}");
        let expected = uninterrupted(&[&style]);
        for events in [
            &["begin 1"][..],
            &["begin 2", "done 2", "begin 3"],
            &["done 1", "done 3"],
            &["eval 0 v0", synced, "done 4"],
        ] {
            let world = World::new();
            for event in events {
                kill_at(&world, &[&style], event);
            }
            let explored = explore(&world, &[&style]);
            assert_eq!((explored.steps, explored.version), (4, 4), "{events:?}");
            assert_eq!(explored.counts.tasks_submitted, 12, "{events:?}");
            assert_eq!(explored.counts.experiences_delivered, 24, "{events:?}");
            assert_eq!(world.delivered(), expected, "{events:?}");
        }
    }
}

#[test]
fn tasks_in_flight_are_run_again_without_a_ledger() {
    let overrides = ["ledger.enable=false"];
    let expected = uninterrupted(&overrides);
    let world = World::new();
    kill_at(&world, &overrides, "begin 2");
    let explored = explore(&world, &overrides);
    assert_eq!(explored.counts.tasks_submitted, 12);
    assert_eq!(world.delivered(), expected);
}

#[test]
fn tasks_are_rerun_once_after_any_kill() {
    let overrides = ["explorer.batch.train.on_missing_tasks=rerun"];
    let world = World::with(except_task_7(TestRun::Fails));
    for word in ["begin 1", "begin 2", "begin 3", "begin 4"] {
        kill_at(&world, &overrides, word);
    }
    let explored = explore(&world, &overrides);
    assert_eq!((explored.counts.tasks_finished, explored.counts.tasks_failed), (12, 0));
    assert!(world.delivered().values().all(|tasks| tasks.len() == 6), "{:?}", world.delivered());
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_job_ends_soon_and_resumes() {
    // The second step hangs until the job is stopped.
    let world = World::new();
    let slow =
        World::with(|batch, _, _| if batch == "2" { TestRun::Hangs } else { TestRun::Succeeds });
    let seen = EventLog::default();
    let mut explorer = slow.prepare(&["explorer.max_timeout=60"], &seen).await;
    let trainer = Trainer::start(&explorer, &seen).await;
    let stopper = explorer.stopper();
    let events = seen.clone();
    tokio::spawn(async move {
        events.until("begin 2").await;
        stopper.stop();
    });
    let explored = explorer.explore().await.unwrap();
    drop(trainer);
    assert_eq!((explored.steps, explored.stopped), (1, true));
    explorer.shutdown().await.unwrap();
    drop(explorer);
    // The same folder with tasks that end.
    let world = World { folder: slow.folder, ..world };
    let (explored, _) = world.explore(&[]).await;
    assert_eq!((explored.steps, explored.stopped), (4, false));
    assert_eq!(explored.counts.tasks_submitted, 12);
    let delivered = world.delivered();
    assert!(delivered.values().all(|tasks| tasks.len() == 6), "{delivered:?}");
    // A finished job does nothing.
    let (explored, seen) = world.explore(&[]).await;
    assert_eq!((explored.steps, explored.counts.tasks_submitted), (4, 12));
    assert!(!seen.messages().iter().any(|word| word.starts_with("begin")), "{:?}", seen.messages());
    // An extended job continues.
    let (explored, _) = world.explore(&["buffer.total_steps=5"]).await;
    assert_eq!((explored.steps, explored.counts.tasks_submitted), (5, 15));
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_checkpoint_is_an_error() {
    let world = World::new();
    world.explore(&["buffer.total_steps=1"]).await;
    let path = world.job_dir().join("explorer_meta.json");
    let whole = std::fs::read_to_string(&path).unwrap();
    let changed = |from: &str, to: &str| {
        assert!(whole.contains(from), "{whole}");
        whole.replace(from, to)
    };
    for (content, message) in [
        (whole[..whole.len() / 2].to_owned(), "the file is damaged"),
        (String::new(), "the file is damaged"),
        (
            changed("\"version\":1", "\"version\":9"),
            "the file has version 9, but this release reads version 1",
        ),
        (changed("\"begun\":1", "\"begun\":3"), "the file is damaged"),
        (changed("Rollway/job", "Rollway/other"), "belongs to the job \"Rollway/other\""),
        (changed("Rollway/job", "Rollway/other"), "set `project`, `group` and `name` back"),
        (r#"{"latest_iteration": 7, "taskset_states": []}"#.to_owned(), "Trinity-RFT"),
        ("{}".to_owned(), "not the checkpoint of an explorer"),
        // Without the file the job would not start either.
        ("{}".to_owned(), "restore a backup"),
    ] {
        std::fs::write(&path, &content).unwrap();
        let error = world.try_prepare(&[], &EventLog::default()).await.unwrap_err();
        assert!(matches!(error, ExplorerError::State { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(message) && text.contains("hint:"), "{text}");
        assert!(text.contains("explorer_meta.json"), "{text}");
    }
    std::fs::write(&path, &whole).unwrap();
    // A new job gets another name, and needs another table: the first one belongs to the old job.
    let seen = EventLog::default();
    let other = "buffer.trainer_input.experience_buffer.name=other";
    let mut explorer = world.prepare(&["continue_from_checkpoint=false", other], &seen).await;
    assert!(explorer.config().name.starts_with("job_2"), "{}", explorer.config().name);
    explorer.shutdown().await.unwrap();
}
