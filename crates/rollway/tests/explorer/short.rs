//! Batches that come up short.

use rollway::explorer::ExplorerError;

use crate::world::{EventLog, TestWorkflow, Trainer, World};

/// Task 7 of step 1 to 4 never goes well in its own batch.
fn unlucky(batch: &str, n: u64, _: u32) -> TestWorkflow {
    if n == 7 && !batch.contains('/') { TestWorkflow::Badly } else { TestWorkflow::Well }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_failed_is_accepted_unless_somebody_says_otherwise() {
    let world = World::with(unlucky);
    let (explored, _) = world.explore(&[]).await;
    let counts = &explored.counts;
    // Ten tasks in an epoch: the seventh is among the first ten, and may be among the two after.
    assert!((1..=2).contains(&counts.tasks_failed), "{counts:?}");
    assert_eq!(counts.tasks_finished + counts.tasks_failed, 12);
    assert_eq!(counts.experiences_delivered, 2 * counts.tasks_finished);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_failed_is_run_again_within_its_step() {
    let world = World::with(unlucky);
    let (explored, seen) = world.explore(&["explorer.batch.train.on_missing_tasks=rerun"]).await;
    let counts = &explored.counts;
    assert_eq!((counts.tasks_finished, counts.tasks_failed), (12, 0));
    assert_eq!(counts.experiences_delivered, 24);
    assert!(world.delivered().values().all(|tasks| tasks.len() == 6));
    let ran = world.ran.lock().unwrap();
    let again: Vec<_> = ran.iter().filter(|(batch, _)| batch.contains("again")).collect();
    assert!(!again.is_empty());
    assert!(
        again.iter().all(|(batch, tasks)| { batch.ends_with("/again_1") && **tasks == [7, 7] })
    );
    let step: u64 = again[0].0.split('/').next().unwrap().parse().unwrap();
    assert_eq!(seen.number(step, "rollout/rerun_count"), Some(1.0));
    assert_eq!(seen.number(step, "rollout/finished_task_count"), Some(3.0));
    assert_eq!(seen.number(step, "experience_pipeline/experience_count"), Some(6.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_may_not_be_short_ends_with_the_counts_and_goes_on_when_it_may() {
    let world = World::with(unlucky);
    let seen = EventLog::default();
    let fail = ["explorer.batch.train.on_missing_tasks=fail"];
    let mut explorer = world.prepare(&fail, &seen).await;
    let trainer = Trainer::start(&explorer, &seen).await;
    let error = explorer.explore().await.unwrap_err();
    drop(trainer);
    let ExplorerError::Short { step, .. } = &error else { panic!("{error}") };
    assert!(error.to_string().contains("2 of 3 tasks have a good run, 3 needed"), "{error}");
    let step = *step;
    explorer.shutdown().await.unwrap();
    drop(explorer);
    // What was finished is kept, and only the rest is run again.
    let (explored, _) = world.explore(&["explorer.batch.train.on_missing_tasks=rerun"]).await;
    assert_eq!((explored.steps, explored.counts.tasks_failed), (4, 0));
    let ran = world.ran.lock().unwrap();
    assert_eq!(ran[&step.to_string()].len(), 6, "{ran:?}");
    assert_eq!(ran[&format!("{step}/again_1")], [7, 7]);
    drop(ran);
    assert!(world.delivered().values().all(|tasks| tasks.len() == 6));
}

#[tokio::test(flavor = "multi_thread")]
async fn with_over_rollout_stragglers_are_cut() {
    let world = World::with(|batch, n, _| {
        if n == 7 && !batch.contains('/') { TestWorkflow::Never } else { TestWorkflow::Well }
    });
    let overrides = [
        "synchronizer.sync_style=explorer_driven",
        "explorer.over_rollout={ratio: 0.4, wait_after_min: 0.05}",
        "explorer.batch.train.on_missing_tasks=fail",
    ];
    let (explored, _) = world.explore(&overrides).await;
    let counts = &explored.counts;
    assert!((1..=2).contains(&counts.tasks_failed), "{counts:?}");
    assert_eq!(counts.tasks_finished + counts.tasks_failed, 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_that_hang_are_run_again_or_end_the_job() {
    let hangs = |batch: &str, n: u64, _: u32| {
        if n == 7 && !batch.contains('/') { TestWorkflow::Never } else { TestWorkflow::Well }
    };
    let overrides = ["explorer.max_timeout=0.3", "explorer.batch.train.on_missing_tasks=rerun"];
    let world = World::with(hangs);
    let (explored, _) = world.explore(&overrides).await;
    assert_eq!((explored.counts.tasks_finished, explored.counts.tasks_failed), (12, 0));
    assert!(world.delivered().values().all(|tasks| tasks.len() == 6));
}
