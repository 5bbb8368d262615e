//! Batches with missing tasks.

use rollway::explorer::ExplorerError;

use crate::world::{EventLog, TestRun, Trainer, World, except_task_7};

#[tokio::test(flavor = "multi_thread")]
async fn failed_tasks_are_accepted_by_default() {
    let world = World::with(except_task_7(TestRun::Fails));
    let (explored, _) = world.explore(&[]).await;
    let counts = &explored.counts;
    // Ten tasks are an epoch: task 7 is among the first ten, and may be among the other two.
    assert!((1..=2).contains(&counts.tasks_failed), "{counts:?}");
    assert_eq!(counts.tasks_finished + counts.tasks_failed, 12);
    assert_eq!(counts.experiences_delivered, 2 * counts.tasks_finished);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_tasks_are_rerun_within_their_step() {
    let world = World::with(except_task_7(TestRun::Fails));
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
    assert_eq!(seen.metric(step, "rollout/rerun_count"), Some(1.0));
    assert_eq!(seen.metric(step, "rollout/finished_task_count"), Some(3.0));
    assert_eq!(seen.metric(step, "experience_pipeline/experience_count"), Some(6.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn job_ends_with_missing_tasks_and_resumes_with_reruns() {
    let world = World::with(except_task_7(TestRun::Fails));
    let seen = EventLog::default();
    let fail = ["explorer.batch.train.on_missing_tasks=fail"];
    let mut explorer = world.prepare(&fail, &seen).await;
    let trainer = Trainer::start(&explorer, &seen).await;
    let error = explorer.explore().await.unwrap_err();
    drop(trainer);
    let ExplorerError::Short { step, .. } = &error else { panic!("{error}") };
    assert!(error.to_string().contains("2 of 3 tasks have a successful run, 3 needed"), "{error}");
    let step = *step;
    explorer.shutdown().await.unwrap();
    drop(explorer);
    // Finished runs are kept; only the missing tasks are run again.
    let (explored, _) = world.explore(&["explorer.batch.train.on_missing_tasks=rerun"]).await;
    assert_eq!((explored.steps, explored.counts.tasks_failed), (4, 0));
    let ran = world.ran.lock().unwrap();
    assert_eq!(ran[&step.to_string()].len(), 6, "{ran:?}");
    assert_eq!(ran[&format!("{step}/again_1")], [7, 7]);
    drop(ran);
    assert!(world.delivered().values().all(|tasks| tasks.len() == 6));
}

#[tokio::test(flavor = "multi_thread")]
async fn over_rollout_truncates_slow_tasks() {
    let world = World::with(except_task_7(TestRun::Hangs));
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
async fn hanging_tasks_are_rerun() {
    let overrides = ["explorer.max_timeout=0.3", "explorer.batch.train.on_missing_tasks=rerun"];
    let world = World::with(except_task_7(TestRun::Hangs));
    let (explored, _) = world.explore(&overrides).await;
    assert_eq!((explored.counts.tasks_finished, explored.counts.tasks_failed), (12, 0));
    assert!(world.delivered().values().all(|tasks| tasks.len() == 6));
}

#[tokio::test(flavor = "multi_thread")]
async fn step_without_any_reward_ends_a_job_whose_algorithm_needs_rewards() {
    let world = World::with(|_, _, _| TestRun::Unrewarded);
    let seen = EventLog::default();
    let mut explorer = world.prepare(&["algorithm.algorithm_type=ppo"], &seen).await;
    let trainer = Trainer::start(&explorer, &seen).await;
    let error = explorer.explore().await.unwrap_err();
    drop(trainer);
    let ExplorerError::NoReward { step: 1, experiences: 6 } = error else { panic!("{error}") };
    assert_eq!(seen.metric(1, "experience_pipeline/unrewarded_count"), Some(6.0));
    explorer.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn rewards_are_needed_in_part_only_and_not_by_every_algorithm() {
    let world = World::with(|_, n, _| match n % 2 {
        0 => TestRun::Succeeds,
        _ => TestRun::Unrewarded,
    });
    let partly = ["algorithm.algorithm_type=ppo", "buffer.batch_size=10", "buffer.total_steps=1"];
    let (explored, seen) = world.explore(&partly).await;
    assert_eq!((explored.steps, explored.counts.experiences_delivered), (1, 20));
    assert_eq!(seen.metric(1, "experience_pipeline/unrewarded_count"), Some(10.0));
    for algorithm in ["sft", "dpo"] {
        let world = World::with(|_, _, _| TestRun::Unrewarded);
        let algorithm = format!("algorithm.algorithm_type={algorithm}");
        let (explored, _) = world.explore(&[&algorithm]).await;
        assert_eq!((explored.steps, explored.counts.experiences_delivered), (4, 24));
    }
}
