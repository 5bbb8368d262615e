//! Evaluation of checkpoints and of the current weights.

use rollway::synchronizer::tensor_files::NamedTensor;
use rollway_tiny_model::arithmetic;

use crate::world::{EventLog, TestRun, World};

/// Writes the checkpoint of a step.
fn checkpoint(world: &World, step: u64) {
    let folder = world.job_dir().join(format!("global_step_{step}"));
    std::fs::create_dir_all(&folder).unwrap();
    arithmetic().0.save(&folder.join("model.safetensors")).unwrap();
    let latest = world.job_dir().join("latest_state_dict_iteration.txt");
    std::fs::write(latest, step.to_string()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn initial_model_and_every_checkpoint_are_evaluated() {
    let world = World::with(|_, n, _| if n == 1 { TestRun::Fails } else { TestRun::Succeeds });
    for step in [0, 2, 10] {
        checkpoint(&world, step);
    }
    let seen = EventLog::default();
    let mut explorer = world.prepare(&["mode=bench"], &seen).await;
    let rows = explorer.benchmark().await.unwrap();
    let shown: Vec<_> = rows.iter().map(|row| (row.step, &*row.set, row.score)).collect();
    let expected = [0, 2, 10].map(|step| (step, "held", Some(1.0)));
    assert_eq!(shown, expected);
    assert!(rows.iter().all(|row| (row.tasks, row.failed) == (2, 1)));
    assert_eq!(rows[1].metrics.get("bench/held/ok_task_count"), Some(1.0));
    assert!(rows[1].metrics.get("time/bench").is_some());
    assert_eq!(seen.messages(), ["eval 0 v0", "eval 2 v2", "eval 10 v10"]);
    let loaded = explorer.get_weight("head.weight").await;
    let start = arithmetic().0;
    let name = start.names().next().unwrap().to_owned();
    assert!(loaded.is_err() || name == "head.weight");
    let NamedTensor { shape, bytes, .. } = explorer.get_weight(&name).await.unwrap();
    let (expected, numbers) = start.tensor(&name).unwrap();
    assert_eq!((shape.as_slice(), bytes.len()), (expected, 4 * numbers.len()));
    explorer.explore().await.unwrap_err();
    explorer.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn latest_checkpoint_is_evaluated_alone() {
    let world = World::new();
    let overrides = ["mode=bench", "explorer.bench_on_latest_checkpoint=true"];
    let mut explorer = world.prepare(&overrides, &EventLog::default()).await;
    let error = explorer.benchmark().await.unwrap_err().to_string();
    assert!(error.contains("there is no checkpoint") && error.contains("hint:"), "{error}");
    for step in [2, 10] {
        checkpoint(&world, step);
    }
    let rows = explorer.benchmark().await.unwrap();
    assert_eq!(rows.iter().map(|row| row.step).collect::<Vec<_>>(), [10]);
    explorer.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_can_be_evaluated_at_any_time() {
    let world = World::new();
    let seen = EventLog::default();
    let mut explorer = world.prepare(&[], &seen).await;
    for _ in 0..2 {
        let rows = explorer.eval().await.unwrap();
        assert_eq!((rows.len(), rows[0].score, rows[0].tasks), (1, Some(1.0), 2));
    }
    assert_eq!(seen.messages(), ["eval 0 v0", "eval 0 v0"]);
    // Rank 0 is the trainer; each GPU of a server is a further rank.
    let tensors = vec![rollway_core::sync::TensorSpec {
        name: "w".to_owned(),
        dtype: "float32".to_owned(),
        shape: vec![2],
    }];
    assert_eq!(explorer.setup_weight_sync_group("trainer", 29500, tensors).await.unwrap(), 2);
    explorer.setup_weight_sync_group("trainer", 29500, Vec::new()).await.unwrap_err();
    explorer.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_server_is_named() {
    let world = World::new();
    let overrides = [
        "explorer.rollout_model={engine_type: vllm, base_url: 'http://127.0.0.1:9/v1'}",
        "synchronizer.sync_timeout=0.3",
    ];
    let error = world.try_prepare(&overrides, &EventLog::default()).await.unwrap_err().to_string();
    assert!(error.contains("http://127.0.0.1:9"), "{error}");
    assert!(error.contains("explorer.rollout_model.base_url"), "{error}");
    let overrides = ["explorer.rollout_model={engine_type: vllm}"];
    let error = world.try_prepare(&overrides, &EventLog::default()).await.unwrap_err().to_string();
    assert!(error.contains("no inference server is given"), "{error}");
    // The echo model needs no server.
    let mut explorer =
        world.prepare(&["explorer.rollout_model.engine_type=echo"], &EventLog::default()).await;
    assert_eq!(explorer.eval().await.unwrap()[0].score, Some(1.0));
    explorer.shutdown().await.unwrap();
}
