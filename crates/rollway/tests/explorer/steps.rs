//! Order of steps, evaluations and weight syncs by style.

use std::sync::Arc;

use rollway::explorer::{Explorer, ExplorerOptions, JobEvent, JobObservers};

use crate::world::{EventLog, Trainer, World};

#[tokio::test(flavor = "multi_thread")]
async fn fixed_style_syncs_after_every_interval() {
    let world = World::new();
    let (explored, seen) = world.explore(&["synchronizer.sync_interval=2"]).await;
    assert_eq!((explored.steps, explored.version, explored.stopped), (4, 4, false));
    let (start, events): (Vec<_>, Vec<_>) =
        seen.messages().into_iter().partition(|it| it == "eval 0 v0");
    assert_eq!(start.len(), 1, "its end is not ordered");
    let expected = [
        "begin 1",
        "begin 2",
        "done 1",
        "done 2",
        "eval 2 v0",
        "sync 2 v2",
        "begin 3",
        "begin 4",
        "done 3",
        "done 4",
        "sync 4 v4",
        "eval 4 v4",
    ];
    assert_eq!(events, expected);
    let counts = &explored.counts;
    assert_eq!((counts.tasks_submitted, counts.tasks_finished, counts.tasks_failed), (12, 12, 0));
    assert_eq!(counts.experiences_delivered, 24);
    assert_eq!(counts.first_eval.as_ref().map(|it| (it.step, it.mean())), Some((0, Some(1.0))));
    assert_eq!(counts.last_eval.as_ref().map(|it| (it.step, it.mean())), Some((4, Some(1.0))));
    assert!(counts.seconds > 0.0);
    // Every task was run twice, and its experiences are in the buffer.
    let mut ran = world.ran.lock().unwrap().clone();
    ran.retain(|batch, _| !batch.contains('/'));
    ran.values_mut().for_each(|tasks| tasks.sort_unstable());
    assert_eq!(ran.len(), 4);
    assert_eq!(world.delivered(), ran);
    assert_eq!(seen.metric(1, "rollout/model_version"), Some(0.0));
    assert_eq!(seen.metric(3, "rollout/model_version"), Some(2.0));
    assert_eq!(seen.metric(3, "rollout/finished_task_count"), Some(3.0));
    assert!(seen.metric(3, "explorer/time/wait_explore_step").is_some());
    assert!(seen.metric(3, "explorer/time/sync_interval").is_none());
    assert!(seen.metric(4, "explorer/time/sync_interval").is_some());
    let events = seen.events();
    let eval = events.iter().find_map(|event| match event {
        JobEvent::Evaluated { metrics, step: 2, .. } => Some(metrics),
        _ => None,
    });
    assert!(eval.is_some_and(|metrics| metrics.get("eval/held/finished_task_count") == Some(2.0)));
    assert!(eval.is_some_and(|metrics| metrics.get("time/eval").is_some()));
}

#[tokio::test(flavor = "multi_thread")]
async fn experiences_have_the_version_of_the_trained_model() {
    // The built-in workflow calls the embedded model through the gateway.
    let world = World::new();
    let overrides = [
        "buffer.explorer_input.default_workflow_type=simple_workflow",
        "buffer.explorer_input.default_reward_fn_type=exact_match",
        "buffer.total_steps=2",
        "explorer.eval_interval=1",
        "buffer.explorer_input.taskset.format.response_key=n",
        "buffer.explorer_input.eval_tasksets=[]",
    ];
    let seen = EventLog::default();
    let watchers = JobObservers::new(vec![Arc::new(seen.clone())]);
    let options = ExplorerOptions { watchers, ..ExplorerOptions::default() };
    let mut explorer = Explorer::prepare(&world.config(&overrides), options).await.unwrap();
    let trainer = Trainer::start(&explorer, &seen).await;
    let stats = explorer.live_stats();
    let explored = explorer.explore().await.unwrap_or_else(|error| panic!("{error}"));
    drop(trainer);
    assert_eq!((explored.steps, explored.version), (2, 2));
    for (step, version) in [(1, 0.0), (2, 1.0)] {
        for stat in ["", "/min", "/max", "/mean"] {
            let key = format!("rollout/model_version{stat}");
            assert_eq!(seen.metric(step, &key), Some(version), "{step} {key}");
        }
    }
    let sample = stats.sample().await;
    assert_eq!((sample.done, sample.pending, sample.running, sample.failed), (12, 0, 0, 0));
    assert_eq!((sample.runners, sample.busy), (4, 0));
    assert!(sample.prompt_tokens > 12 && sample.answer_tokens > 12, "{sample:?}");
    explorer.shutdown().await.unwrap();
    assert_eq!(stats.sample().await.done, 12, "the last sample is kept");
    // A second shutdown does nothing.
    explorer.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn fully_async_bounds_batches_in_flight_and_staleness() {
    let world = World::new();
    let overrides = [
        "synchronizer.sync_style=fully_async",
        "buffer.total_steps=6",
        "buffer.explorer_input.eval_tasksets=[]",
        "synchronizer.max_staleness=1",
        "explorer.max_inflight_batches=2",
    ];
    let (explored, seen) = world.explore(&overrides).await;
    assert_eq!((explored.steps, explored.version), (6, 6));
    let (mut done, mut version) = (0, 0);
    for event in seen.events().iter() {
        match event {
            JobEvent::StepBegun { step, .. } => {
                assert!(step - done <= 2, "more than max_inflight_batches");
                assert!(step - 1 - version <= 1, "step {step} is too stale with v{version}");
            }
            JobEvent::StepDone { step, .. } => done = *step,
            JobEvent::Synced { version: newer, .. } => version = *newer,
            _ => {}
        }
    }
    assert_eq!(world.delivered().len(), 6);
}
