//! Trainers that never start, fail, or end early.

use rollway::explorer::ExplorerError;

use crate::world::{EventLog, Trainer, World, publish};

#[tokio::test(flavor = "multi_thread")]
async fn missing_trainer_ends_the_job_within_the_timeout() {
    for style in ["fixed", "explorer_driven", "trainer_driven"] {
        let world = World::new();
        let seen = EventLog::default();
        let style = format!("synchronizer.sync_style={style}");
        let overrides = [style.as_str(), "synchronizer.sync_timeout=0.3"];
        let mut explorer = world.prepare(&overrides, &seen).await;
        let error = explorer.explore().await.unwrap_err();
        let ExplorerError::NoWeights { step: 1, .. } = error else { panic!("{error}") };
        let message = error.to_string();
        assert!(message.contains("synchronizer.sync_timeout"), "{message}");
        assert!(message.contains("check whether the trainer is running"), "{message}");
        explorer.shutdown().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mode_explore_ends_without_a_trainer() {
    for style in ["fixed", "explorer_driven", "trainer_driven", "fully_async"] {
        for method in ["checkpoint", "memory"] {
            let world = World::new();
            let seen = EventLog::default();
            let style = format!("synchronizer.sync_style={style}");
            let method = format!("synchronizer.sync_method={method}");
            let join_timeout = "synchronizer.trainer_join_timeout=0.2";
            let overrides = ["mode=explore", &style, &method, join_timeout];
            let mut explorer = world.prepare(&overrides, &seen).await;
            let explored = explorer.explore().await.unwrap();
            assert_eq!((explored.version, explored.stopped), (0, false), "{style} {method}");
            assert_eq!(explored.steps, 4, "{style} {method}");
            explorer.shutdown().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trainer_that_only_publishes_is_enough_in_mode_explore() {
    let world = World::new();
    let seen = EventLog::default();
    let overrides = ["mode=explore", "synchronizer.trainer_join_timeout=2"];
    let mut explorer = world.prepare(&overrides, &seen).await;
    let synchronizer = explorer.synchronizer().unwrap().clone();
    let events = seen.clone();
    tokio::spawn(async move {
        for step in 1..=4 {
            events.until(&format!("done {step}")).await;
            publish(&synchronizer, step).await;
        }
    });
    let explored = explorer.explore().await.unwrap();
    assert_eq!((explored.steps, explored.version), (4, 4));
    explorer.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_trainer_ends_the_job_with_its_message() {
    for style in ["fixed", "fully_async"] {
        let world = World::new();
        let seen = EventLog::default();
        let style = format!("synchronizer.sync_style={style}");
        let mut explorer = world.prepare(&[&style], &seen).await;
        let synchronizer = explorer.synchronizer().unwrap().clone();
        let membership = synchronizer.join_trainer("trainer").await.unwrap();
        let events = seen.clone();
        tokio::spawn(async move {
            events.until("done 1").await;
            publish(&synchronizer, 1).await;
            events.until("done 2").await;
            membership.failed("out of memory").await.unwrap();
        });
        let error = explorer.explore().await.unwrap_err();
        assert!(matches!(error, ExplorerError::TrainerFailed(_)), "{error}");
        assert!(error.to_string().contains("out of memory"), "{error}");
        explorer.shutdown().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trainer_that_is_done_early_ends_the_job() {
    let world = World::new();
    let seen = EventLog::default();
    let mut explorer = world.prepare(&[], &seen).await;
    let trainer = Trainer::until(&explorer, &seen, 2).await;
    let explored = explorer.explore().await.unwrap();
    drop(trainer);
    // The explorer learns it after the step that begins with the last weights.
    assert_eq!((explored.steps, explored.version, explored.stopped), (3, 2, false));
    explorer.shutdown().await.unwrap();
}
