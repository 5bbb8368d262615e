//! Sampling, training and files of the model through its public interface.

use std::sync::Arc;

use rollway_tiny_model::{
    GenerateRequest, Generator, GrpoConfig, ModelShape, ModelTrainer, ModelWeights, Rate,
    SeededRng, StopReason, TrainSample, Vocabulary,
};

const SHAPE: ModelShape =
    ModelShape { vocabulary: 14, width: 16, layers: 2, heads: 4, context: 16 };

fn weights() -> Arc<ModelWeights> {
    Arc::new(ModelWeights::random(SHAPE, 7))
}

fn request(prompt: &[u32], seed: u64) -> GenerateRequest {
    let end = Vocabulary::END;
    GenerateRequest { prompt: prompt.into(), max_tokens: 9, temperature: 1.0, seed, end }
}

#[test]
fn sequences_are_independent_of_each_other() {
    let requests: Vec<GenerateRequest> =
        (0..40).map(|seed| request(&[0, 3, 4 + (seed % 9) as u32], seed)).collect();
    let together = Generator::new(weights()).complete(requests.clone());
    for (request, expected) in requests.iter().zip(&together) {
        let alone = Generator::new(weights()).complete(vec![request.clone()]);
        assert_eq!(&alone[0], expected);
    }
    // Coming and going changes nothing either.
    let mut generator = Generator::new(weights());
    generator.add(1, requests[1].clone());
    let mut tokens = vec![generator.step()[0].token];
    generator.add(2, requests[2].clone());
    while tokens.len() < together[1].tokens.len() {
        let sampled = generator.step();
        tokens.push(sampled.iter().find(|sampled| sampled.id == 1).unwrap().token);
        generator.remove(2);
    }
    assert_eq!(tokens, together[1].tokens);
}

#[test]
fn sampled_logprobs_equal_those_of_the_trainer() {
    let samples: Vec<TrainSample> = (0..16)
        .map(|seed| {
            let request = request(&[0, 5, 6], seed);
            let completion = Generator::new(weights()).complete(vec![request.clone()]).remove(0);
            let mask = vec![true; completion.tokens.len()];
            let tokens = [request.prompt, completion.tokens].concat();
            let logprobs = completion.logprobs;
            let advantages = vec![1.0; mask.len()];
            TrainSample { tokens, prompt_length: 3, mask, logprobs, advantages }
        })
        .collect();
    let mut trainer = ModelTrainer::new(ModelWeights::random(SHAPE, 7));
    let report = trainer.reinforce(&samples, &GrpoConfig::default(), &Rate::default());
    assert!(report.drift.abs() < 1e-6, "{report:?}");
    assert!((report.loss + 1.0).abs() < 1e-4, "every ratio is one: {report:?}");
    // One step later they are not any more.
    let report = trainer.reinforce(&samples, &GrpoConfig::default(), &Rate::default());
    assert!(report.drift > 1e-6, "{report:?}");
}

#[test]
fn sequences_end_with_the_end_token_or_at_a_limit() {
    let mut all = Vec::new();
    for seed in 0..60 {
        all.push(Generator::new(weights()).complete(vec![request(&[0; 12], seed)]).remove(0));
    }
    for one in &all {
        let marked = one.tokens.last() == Some(&Vocabulary::END);
        assert_eq!(one.stop, Some(if marked { StopReason::End } else { StopReason::Length }));
        assert!(one.tokens.len() <= 4, "12 and 4 fill a context of 16");
    }
    assert!(all.iter().any(|one| one.stop == Some(StopReason::Length)));
    let generator = Generator::new(weights());
    for (wrong, message) in [(request(&[], 0), "empty"), (request(&[0; 16], 0), "16 tokens")] {
        assert!(generator.refusal(&wrong).unwrap().contains(message));
    }
    assert!(generator.refusal(&request(&[99], 0)).unwrap().contains("no token 99"));
}

#[test]
fn a_cleared_cache_is_rebuilt_with_the_current_weights() {
    let greedy = |prompt: &[u32]| GenerateRequest { temperature: 0.0, ..request(prompt, 0) };
    let other = Arc::new(ModelWeights::random(SHAPE, 8));
    let mut generator = Generator::new(weights());
    generator.add(1, greedy(&[0, 3]));
    let first = generator.step()[0];
    assert_eq!(first.stop, None);
    generator.replace(Arc::clone(&other));
    assert!(Arc::ptr_eq(&other, generator.weights()));
    generator.clear_cache();
    let mut fresh = Generator::new(other);
    fresh.add(1, greedy(&[0, 3, first.token]));
    assert_eq!(generator.step(), fresh.step());
}

#[test]
fn files_restore_model_and_trainer() {
    let folder = tempfile::tempdir().unwrap();
    let (path, state) = (folder.path().join("model.safetensors"), folder.path().join("trainer"));
    let mut trainer = ModelTrainer::new(ModelWeights::random(SHAPE, 7));
    let mut chance = SeededRng::new(1);
    let mut sample = || TrainSample {
        tokens: (0..8).map(|_| chance.below(14)).collect(),
        prompt_length: 2,
        mask: vec![true; 6],
        logprobs: Vec::new(),
        advantages: Vec::new(),
    };
    let (first, second) = ([sample(), sample()], [sample()]);
    trainer.imitate(&first, &Rate::default());
    trainer.weights().save(&path).unwrap();
    trainer.save(&state).unwrap();
    assert!(ModelWeights::load(&path).unwrap().to_bytes() == trainer.weights().to_bytes());
    let mut resumed = ModelTrainer::load(&state).unwrap();
    assert_eq!(resumed.steps(), 1);
    for trainer in [&mut trainer, &mut resumed] {
        trainer.imitate(&second, &Rate::default());
    }
    assert!(resumed.weights().to_bytes() == trainer.weights().to_bytes());

    let torn = &trainer.weights().to_bytes()[..500];
    assert!(ModelWeights::from_bytes(torn).is_err());
    let error = ModelTrainer::load(&path).unwrap_err().to_string();
    assert!(error.contains("without a trainer"), "{error}");
    let error = ModelWeights::load(&folder.path().join("none")).unwrap_err().to_string();
    assert!(error.contains("none"), "{error}");
}
