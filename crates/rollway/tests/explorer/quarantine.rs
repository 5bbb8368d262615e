//! Batches whose delivery keeps failing.

use std::sync::Arc;

use rollway::explorer::{Explorer, ExplorerOptions, JobObservers};
use rollway_data::pipeline::{Operator, OperatorError, OperatorOutput, OperatorRegistry};
use rollway_experience::Experience;

use crate::world::{EventLog, Trainer, World};

/// Fails for the experiences of step 2.
struct FailsForStep2;

impl Operator for FailsForStep2 {
    fn name(&self) -> &str {
        "picky"
    }

    fn process(&mut self, experiences: Vec<Experience>) -> Result<OperatorOutput, OperatorError> {
        match experiences.iter().any(|experience| experience.eid.batch == 2.into()) {
            true => Err(OperatorError::new("step 2 is not good enough")),
            false => Ok(OperatorOutput::new(experiences)),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_cannot_be_delivered_does_not_stop_the_job() {
    let world = World::new();
    let config = world.config(&[
        "data_processor.experience_pipeline.operators=[{name: picky}]",
        "explorer.delivery_attempts=2",
    ]);
    let mut operators = OperatorRegistry::built_in();
    operators.register("picky", |_| Ok(Box::new(FailsForStep2))).unwrap();
    let seen = EventLog::default();
    let options = ExplorerOptions {
        runtime: Some(world.runtime()),
        watchers: JobObservers::new(vec![Arc::new(seen.clone())]),
        operators: Some(Arc::new(operators)),
        ..ExplorerOptions::default()
    };
    let mut explorer = Explorer::prepare(&config, options).await.unwrap();
    let trainer = Trainer::start(&explorer, &seen).await;
    let explored = explorer.explore().await.unwrap_or_else(|error| panic!("{error}"));
    drop(trainer);
    explorer.shutdown().await.unwrap();
    assert_eq!(explored.steps, 4);
    let quarantined = |step| seen.metric(step, "experience_pipeline/quarantined_count");
    assert_eq!([1, 2, 3, 4].map(quarantined), [None, Some(6.0), None, None]);
    let steps: Vec<String> = world.delivered().into_keys().collect();
    assert_eq!(steps, ["1", "3", "4"]);
    let batches = std::fs::read_dir(world.job_dir().join("quarantine")).unwrap();
    let batches: Vec<_> = batches.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(batches.len(), 1, "{batches:?}");
    assert_eq!(std::fs::read_dir(&batches[0]).unwrap().count(), 7, "six runs and the reason");
}
