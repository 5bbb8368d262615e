//! Two explorers of different speed, and one trainer.

use std::sync::Arc;
use std::time::Duration;

use rollway::explorer::ExploreSummary;
use rollway::synchronizer::Synchronizer;
use rollway::tiny::trainer::{self, FolderPublisher, SyncPublisher, TinyTrainer};
use rollway::{BufferTarget, config::Config};
use rollway_tiny_model::arithmetic;

use crate::world::{EventLog, TestRun, World};

const STEPS: u64 = 3;

async fn explorer(world: &World, config: &Config, seen: &EventLog) -> ExploreSummary {
    let opened = Box::pin(world.open(config, seen)).await;
    let mut explorer = opened.unwrap_or_else(|error| panic!("{error}"));
    let explored = explorer.explore().await.unwrap_or_else(|error| panic!("{error}"));
    explorer.shutdown().await.unwrap();
    explored
}

/// Starts the trainer of the embedded model.
async fn train(config: &Config) -> TinyTrainer {
    let options = trainer::TinyTrainerOptions {
        batch_size: config.buffer.train_batch_size as usize,
        on_demand: config.synchronizer.sync_style == rollway::config::SyncStyle::ExplorerDriven,
        read_timeout: Duration::from_secs(20),
        ..trainer::TinyTrainerOptions::new(config.job_dir())
    };
    let synchronizer = Synchronizer::open(config).await.unwrap();
    let folder = FolderPublisher::new(config.job_dir(), options.max_temporary);
    let outlet = SyncPublisher::enter(&synchronizer, "trainer", folder).await.unwrap();
    let buffer = BufferTarget::of_experiences(config).unwrap();
    let reader = tokio::task::spawn_blocking(move || buffer.open().unwrap().reader("trainer"));
    let reader = reader.await.unwrap().unwrap();
    TinyTrainer::start_with(options, arithmetic().0, reader, Box::new(outlet), |_| {}).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_explorers_share_a_trainer_in_every_style_and_method() {
    for style in ["fixed", "explorer_driven", "trainer_driven", "fully_async"] {
        for method in ["checkpoint", "memory"] {
            let world = World::new();
            let slow = World { rule: Arc::new(|_, _, _| TestRun::Delayed), ..World::new() };
            let config = |name: &str| {
                world.config(&[
                    "mode=explore",
                    &format!("explorer.name={name}"),
                    &format!("synchronizer.sync_style={style}"),
                    &format!("synchronizer.sync_method={method}"),
                    &format!("buffer.total_steps={STEPS}"),
                    "explorer.eval_interval=2",
                ])
            };
            let (fast_config, slow_config) = (config("fast"), config("slow"));
            let trainer = train(&fast_config).await;
            let (seen, other) = (EventLog::default(), EventLog::default());
            let (fast, slow) = tokio::join!(
                explorer(&world, &fast_config, &seen),
                explorer(&slow, &slow_config, &other),
            );
            let trained = tokio::task::spawn_blocking(|| trainer.join()).await.unwrap().unwrap();
            let case = format!("{style} {method}");
            assert_eq!(
                (fast.steps, slow.steps, trained.steps),
                (STEPS, STEPS, 2 * STEPS),
                "{case}"
            );
            assert!(fast.version >= 1 && slow.version == 2 * STEPS, "{case}: {fast:?} {slow:?}");
            let delivered = world.delivered();
            assert!(delivered.values().all(|tasks| tasks.len() == 12), "{case}: {delivered:?}");
        }
    }
}
