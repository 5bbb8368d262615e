//! Weight updates during generation: every token carries the version of the weights that sampled
//! it.

use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::{join, join_all};
use rollway_experience::Experience;
use rollway_gateway::models::InFlightPolicy;
use rollway_tiny_model::{GrpoConfig, ModelTrainer, ModelWeights, Rate, TrainSample, arithmetic};
use serde_json::json;

use crate::gateway::World;

/// KL estimate between the recorded log-probabilities of a version and those of its weights.
fn drift(weights: &ModelWeights, experience: &Experience, version: u64) -> f32 {
    let versions = experience.model_versions.as_ref().unwrap();
    let mask: Vec<bool> = versions.iter().map(|label| label == Some(version)).collect();
    let sample = TrainSample {
        tokens: experience.tokens.iter().map(i32::cast_unsigned).collect(),
        prompt_length: experience.prompt_length,
        advantages: vec![1.0; mask.len()],
        logprobs: experience.logprobs.as_ref().unwrap().to_vec(),
        mask,
    };
    let mut trainer = ModelTrainer::new(weights.clone());
    trainer.reinforce(&[sample], &GrpoConfig::default(), &Rate::default()).drift
}

#[tokio::test(flavor = "multi_thread")]
async fn every_token_is_labelled_with_the_weights_that_sampled_it() {
    let shape = arithmetic().0.shape();
    // Random models generate long completions, so that updates hit them.
    let weights = [1, 2].map(|seed| ModelWeights::random(shape, seed));
    let folders = [0, 1].map(|_| tempfile::tempdir().unwrap());
    for (weights, folder) in weights.iter().zip(&folders) {
        weights.save(&folder.path().join("model.safetensors")).unwrap();
    }
    let world = World::new(0).await;
    let update = async |version: u64| {
        let folder = &folders[usize::try_from(version % 2).unwrap()];
        world.update(version, folder.path(), InFlightPolicy::Keep).await;
    };
    // A server takes part in updates after its first response.
    let (mut version, mut attempt, mut mixed) = (1, 1, 0);
    world.call(0, "/v1/completions", &json!({ "prompt": "1+1=" })).await;
    update(version).await;
    assert_eq!(&*world.server.version(), "1");
    for wave in 0.. {
        assert!(wave < 200, "no update hit a running completion");
        let body = json!({ "prompt": "1+1=", "max_tokens": 24, "stream": wave % 2 == 0 });
        let over = AtomicBool::new(false);
        let calls = async {
            let calls =
                (attempt..attempt + 16).map(|run| world.call(run, "/v1/completions", &body));
            let responses = join_all(calls).await;
            over.store(true, Ordering::Relaxed);
            responses
        };
        let updates = async {
            while !over.load(Ordering::Relaxed) {
                version += 1;
                update(version).await;
            }
        };
        let (responses, ()) = join(calls, updates).await;
        attempt += 16;
        for experience in responses.iter().flat_map(|(_, experiences)| experiences) {
            let versions = experience.model_versions.as_ref().unwrap();
            mixed += usize::from(versions.spans().len() > 1);
            for run in versions.spans() {
                let version = run.version.expect("the server knows");
                let weights = &weights[usize::try_from(version % 2).unwrap()];
                let drift = drift(weights, experience, version);
                assert!(drift < 1e-6, "{drift}: {experience:?}");
            }
        }
        if mixed > 8 {
            return;
        }
    }
}
