//! Trainers that never come, die, or end early.

use rollway::explorer::ExplorerError;

use crate::world::{EventLog, Trainer, World, publish};

#[tokio::test(flavor = "multi_thread")]
async fn a_trainer_that_never_comes_ends_the_job_within_the_deadline() {
    for style in ["fixed", "explorer_driven", "trainer_driven"] {
        let world = World::new();
        let seen = EventLog::default();
        let style = format!("synchronizer.sync_style={style}");
        let overrides = [style.as_str(), "synchronizer.sync_timeout=0.3"];
        let mut explorer = world.prepare(&overrides, &seen).await;
        let error = explorer.explore().await.unwrap_err();
        let ExplorerError::NoWeights { step: 1, .. } = error else { panic!("{error}") };
        let words = error.to_string();
        assert!(words.contains("synchronizer.sync_timeout"), "{words}");
        assert!(words.contains("see whether the trainer is running"), "{words}");
        explorer.shutdown().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trainer_that_fails_ends_the_job_with_its_words() {
    for style in ["fixed", "fully_async"] {
        let world = World::new();
        let seen = EventLog::default();
        let style = format!("synchronizer.sync_style={style}");
        let mut explorer = world.prepare(&[&style], &seen).await;
        let synchronizer = explorer.synchronizer().unwrap().clone();
        let seat = synchronizer.enter_trainer("trainer").await.unwrap();
        let heard = seen.clone();
        tokio::spawn(async move {
            heard.until("done 1").await;
            publish(&synchronizer, 1).await;
            heard.until("done 2").await;
            seat.failed("out of memory").await.unwrap();
        });
        let error = explorer.explore().await.unwrap_err();
        assert!(matches!(error, ExplorerError::TrainerFailed(_)), "{error}");
        assert!(error.to_string().contains("out of memory"), "{error}");
        explorer.shutdown().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trainer_that_is_done_early_ends_the_job_well() {
    let world = World::new();
    let seen = EventLog::default();
    let mut explorer = world.prepare(&[], &seen).await;
    let trainer = Trainer::until(&explorer, &seen, 2).await;
    let explored = explorer.explore().await.unwrap();
    drop(trainer);
    // It comes to know after the step that it begins with the last weights.
    assert_eq!((explored.steps, explored.version, explored.stopped), (3, 2, false));
    explorer.shutdown().await.unwrap();
}
