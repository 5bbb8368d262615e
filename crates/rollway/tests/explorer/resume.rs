//! Stopped, killed, and started again.

use std::collections::BTreeMap;

use rollway::explorer::ExplorerError;

use crate::world::{EventLog, TestWorkflow, Trainer, World};

/// What a job that nobody disturbs delivers.
fn undisturbed(overrides: &[&str]) -> BTreeMap<String, Vec<u64>> {
    let world = World::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(world.explore(overrides));
    world.delivered()
}

/// Explores until something was said, and then ends like a process that is killed: nothing is
/// closed, nobody is told.
fn killed_at(world: &World, overrides: &[&str], word: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let seen = EventLog::default();
        let mut explorer = world.prepare(overrides, &seen).await;
        let trainer = Trainer::start(&explorer, &seen).await;
        tokio::select! {
            explored = explorer.explore() => panic!("{word} was never said: {explored:?}"),
            () = seen.until(word) => {}
        }
        drop((explorer, trainer));
    });
    // It waits until the ledger is let go.
    drop(runtime);
}

#[test]
fn a_job_that_is_killed_goes_on_with_the_same_tasks_each_delivered_once() {
    for (style, exchanged) in [("fixed", "sync 1 v1"), ("fully_async", "done 2")] {
        let style = format!("synchronizer.sync_style={style}");
        let expected = undisturbed(&[&style]);
        for words in [
            &["begin 1"][..],
            &["begin 2", "done 2", "begin 3"],
            &["done 1", "done 3"],
            &["eval 0 v0", exchanged, "done 4"],
        ] {
            let world = World::new();
            for word in words {
                killed_at(&world, &[&style], word);
            }
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let (explored, _) = runtime.block_on(world.explore(&[&style]));
            drop(runtime);
            assert_eq!((explored.steps, explored.version), (4, 4), "{words:?}");
            assert_eq!(explored.counts.tasks_submitted, 12, "{words:?}");
            assert_eq!(explored.counts.experiences_delivered, 24, "{words:?}");
            assert_eq!(world.delivered(), expected, "{words:?}");
        }
    }
}

#[test]
fn without_a_ledger_what_was_in_flight_is_run_anew() {
    let overrides = ["ledger.enable=false"];
    let expected = undisturbed(&overrides);
    let world = World::new();
    killed_at(&world, &overrides, "begin 2");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (explored, _) = runtime.block_on(world.explore(&overrides));
    assert_eq!(explored.counts.tasks_submitted, 12);
    assert_eq!(world.delivered(), expected);
}

#[test]
fn tasks_that_are_run_again_are_so_once_whenever_the_job_is_killed() {
    let unlucky = |batch: &str, n: u64, _: u32| {
        if n == 7 && !batch.contains('/') { TestWorkflow::Badly } else { TestWorkflow::Well }
    };
    let overrides = ["explorer.batch.train.on_missing_tasks=rerun"];
    let world = World::with(unlucky);
    for word in ["begin 1", "begin 2", "begin 3", "begin 4"] {
        killed_at(&world, &overrides, word);
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (explored, _) = runtime.block_on(world.explore(&overrides));
    assert_eq!((explored.counts.tasks_finished, explored.counts.tasks_failed), (12, 0));
    assert!(world.delivered().values().all(|tasks| tasks.len() == 6), "{:?}", world.delivered());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_stopped_ends_soon_and_goes_on() {
    // The second step hangs until the job was stopped.
    let world = World::with(|_, _, _| TestWorkflow::Well);
    let slow = World::with(
        |batch, _, _| if batch == "2" { TestWorkflow::Never } else { TestWorkflow::Well },
    );
    let seen = EventLog::default();
    let mut explorer = slow.prepare(&["explorer.max_timeout=60"], &seen).await;
    let trainer = Trainer::start(&explorer, &seen).await;
    let stopper = explorer.stopper();
    let heard = seen.clone();
    tokio::spawn(async move {
        heard.until("begin 2").await;
        stopper.stop();
    });
    let explored = explorer.explore().await.unwrap();
    drop(trainer);
    assert_eq!((explored.steps, explored.stopped), (1, true));
    explorer.shutdown().await.unwrap();
    drop(explorer);
    // The same folder, and tasks that end.
    let world = World { folder: slow.folder, ..world };
    let (explored, _) = world.explore(&[]).await;
    assert_eq!((explored.steps, explored.stopped), (4, false));
    assert_eq!(explored.counts.tasks_submitted, 12);
    let delivered = world.delivered();
    assert!(delivered.values().all(|tasks| tasks.len() == 6), "{delivered:?}");
    // A job that is done stays so.
    let (explored, seen) = world.explore(&[]).await;
    assert_eq!((explored.steps, explored.counts.tasks_submitted), (4, 12));
    assert!(!seen.messages().iter().any(|word| word.starts_with("begin")), "{:?}", seen.messages());
    // And goes on if it is made longer.
    let (explored, _) = world.explore(&["buffer.total_steps=5"]).await;
    assert_eq!((explored.steps, explored.counts.tasks_submitted), (5, 15));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_that_is_not_right_is_an_error_and_never_a_new_beginning() {
    let world = World::new();
    world.explore(&["buffer.total_steps=1"]).await;
    let path = world.job_dir().join("explorer_meta.json");
    let whole = std::fs::read_to_string(&path).unwrap();
    let changed = |from: &str, to: &str| {
        assert!(whole.contains(from), "{whole}");
        whole.replace(from, to)
    };
    for (text, words) in [
        (whole[..whole.len() / 2].to_owned(), "it is damaged"),
        (String::new(), "it is damaged"),
        (changed("\"version\":1", "\"version\":9"), "it has version 9, but 1 is read"),
        (changed("\"begun\":1", "\"begun\":3"), "it is damaged"),
        (changed("Rollway/job", "Rollway/other"), "belongs to the job \"Rollway/other\""),
        (r#"{"latest_iteration": 7, "taskset_states": []}"#.to_owned(), "Trinity-RFT"),
        ("{}".to_owned(), "not the state of an explorer"),
    ] {
        std::fs::write(&path, &text).unwrap();
        let error = world.try_prepare(&[], &EventLog::default()).await.unwrap_err();
        assert!(matches!(error, ExplorerError::State { .. }), "{error}");
        let said = error.to_string();
        assert!(said.contains(words) && said.contains("hint:"), "{said}");
        assert!(said.contains("explorer_meta.json"), "{said}");
    }
    std::fs::write(&path, &whole).unwrap();
    // A new beginning is one by its name.
    let seen = EventLog::default();
    let mut explorer = world.prepare(&["continue_from_checkpoint=false"], &seen).await;
    assert!(explorer.config().name.starts_with("job_2"), "{}", explorer.config().name);
    explorer.shutdown().await.unwrap();
}
