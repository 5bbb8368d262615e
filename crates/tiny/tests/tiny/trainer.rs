//! The trainer on a buffer: steps, skipped experiences, learning, resumption.

use std::sync::mpsc;
use std::time::Duration;

use rollway_data::buffer::queue::{self, ExperienceQueue};
use rollway_data::buffer::{Buffer as _, ReadEnd, ReadRequest};
use rollway_data::pipeline::Operator as _;
use rollway_data::pipeline::operators::Grpo;
use rollway_tiny::trainer::{
    self, TinyTrainer, TinyTrainerError, TinyTrainerOptions, TrainConfig, step,
};
use rollway_tiny_model::{ModelTrainer, ModelWeights, SeededRng, arithmetic};

use crate::sums::{Problem, answers, experiences, lot, problems, reward};

#[test]
fn a_step_does_not_depend_on_the_order_of_experiences() {
    let (weights, vocabulary) = arithmetic();
    let problems = problems(&mut SeededRng::new(1), 6);
    let batch = experiences(&weights, &vocabulary, &problems, 8, 0);
    let after = |batch: &[_]| {
        let mut trainer = ModelTrainer::new(weights.clone());
        let report = step(&mut trainer, batch, &TrainConfig::default());
        (trainer.weights().to_bytes(), report)
    };
    let (bytes, report) = after(&batch);
    assert!(bytes != weights.to_bytes());
    assert_eq!((report.experiences, report.tasks), (48, 6));
    let mut reversed = batch.clone();
    reversed.reverse();
    assert_eq!(after(&reversed), (bytes.clone(), report.clone()));
    // The operator computes the same advantages.
    let outcome = Grpo::default().process(batch).unwrap();
    assert!(outcome.experiences.iter().all(|one| one.advantages.is_some()));
    assert_eq!(after(&outcome.experiences), (bytes, report));
}

#[test]
fn skipped_experiences_are_counted_by_reason() {
    let (weights, vocabulary) = arithmetic();
    let mut batch = experiences(&weights, &vocabulary, &[(1, 2)], 5, 0);
    batch[0].reward = None;
    batch[1].logprobs = None;
    batch[2].tokens = batch[2].tokens.iter().map(|token| token + 100).collect();
    batch[3].tokens = vec![3; 40].into_iter().collect();
    batch.truncate(4);
    let mut trainer = ModelTrainer::new(weights.clone());
    let report = step(&mut trainer, &batch, &TrainConfig::default());
    let skipped: Vec<_> = report.skipped.into_iter().collect();
    let expected = [("no_logprobs", 1), ("no_reward", 1), ("too_long", 1), ("unknown_token", 1)];
    assert_eq!(skipped, expected);
    assert_eq!(report.learned, 0);
    assert!(trainer.weights().to_bytes() == weights.to_bytes());
}

/// Fraction of problems solved by greedy completions.
fn score(weights: &ModelWeights, problems: &[Problem]) -> f64 {
    let (_, vocabulary) = arithmetic();
    let completions = answers(weights, &vocabulary, problems, 1, (0.0, 0));
    let rewards =
        problems.iter().zip(&completions).map(|(p, runs)| reward(&vocabulary, *p, &runs[0]));
    rewards.sum::<f64>() / problems.len() as f64
}

fn unacknowledged(queue: &ExperienceQueue) -> (usize, ReadEnd) {
    let timeout = Duration::ZERO;
    let request = ReadRequest { count: 5, timeout, min_model_version: 0, keep: false };
    let batch = queue.reader("trainer").unwrap().read(&request).unwrap();
    (batch.samples.len(), batch.end)
}

#[test]
fn the_trainer_learns_from_a_buffer_and_publishes_weights() {
    const STEPS: u64 = 20;
    let folder = tempfile::tempdir().unwrap();
    let (weights, vocabulary) = arithmetic();
    let queue = ExperienceQueue::open(queue::QueueOptions::default()).unwrap();
    let mut writer = queue.writer("explorer").unwrap();
    let (sender, reports) = mpsc::channel();
    let options = TinyTrainerOptions {
        batch_size: 128,
        total_steps: Some(STEPS),
        full_interval: Some(10),
        ..TinyTrainerOptions::new(folder.path())
    };
    let reader = queue.reader("trainer").unwrap();
    let trainer = TinyTrainer::start(options, weights.clone(), reader, move |report| {
        sender.send(report.clone()).unwrap();
    })
    .unwrap();
    let mut chance = SeededRng::new(3);
    let mut current = weights.clone();
    for number in 0..STEPS {
        // Second numbers that end with 9 are held out.
        let mut problems = problems(&mut chance, 16);
        problems.iter_mut().for_each(|(_, b)| *b = *b / 10 * 10 + *b % 9);
        let batch = experiences(&current, &vocabulary, &problems, 8, number);
        writer.write(&lot(number, &batch)).unwrap();
        let report = reports.recv().unwrap();
        assert_eq!((report.step, report.experiences), (number + 1, 128));
        assert_eq!(report.oldest_version, Some(number));
        assert!(report.model.drift.abs() < 1e-4, "sampled by the trained model: {report:?}");
        assert_eq!(trainer::latest(folder.path()).unwrap(), Some(report.step));
        let place = trainer::directory(folder.path(), report.step);
        current = ModelWeights::load(&place.join(trainer::MODEL)).unwrap();
    }
    assert_eq!(trainer.join().unwrap().steps, STEPS);
    let all: Vec<Problem> =
        (0..100).flat_map(|a| (0..100).step_by(7).map(move |b| (a, b))).collect();
    let (before, after) = (score(&weights, &all), score(&current, &all));
    assert!(before < 0.4, "{before}");
    assert!(after > before + 0.3, "{before} became {after}");
    let mut steps: Vec<u64> = std::fs::read_dir(folder.path())
        .unwrap()
        .filter_map(|entry| {
            entry.unwrap().file_name().to_str()?.strip_prefix("global_step_")?.parse().ok()
        })
        .collect();
    steps.sort_unstable();
    assert_eq!(steps, [0, 10, 18, 19, 20], "those for good, and the last two");
    writer.close().unwrap();
    let (samples, end) = unacknowledged(&queue);
    assert!(samples == 0 && end == ReadEnd::Finished);
}

#[test]
fn a_timeout_fails_and_a_stop_leaves_the_experiences() {
    let folder = tempfile::tempdir().unwrap();
    let (weights, vocabulary) = arithmetic();
    let queue = ExperienceQueue::open(queue::QueueOptions::default()).unwrap();
    let mut writer = queue.writer("explorer").unwrap();
    let batch = experiences(&weights, &vocabulary, &[(1, 2)], 5, 0);
    writer.write(&lot(0, &batch)).unwrap();
    let start = |options: TinyTrainerOptions| {
        let reader = queue.reader("trainer").unwrap();
        TinyTrainer::start(options, weights.clone(), reader, |_| {}).unwrap()
    };
    let options = TinyTrainerOptions { batch_size: 8, ..TinyTrainerOptions::new(folder.path()) };
    let hurried = TinyTrainerOptions { read_timeout: Duration::from_millis(1), ..options.clone() };
    match start(hurried).join() {
        Err(TinyTrainerError::NoExperiences { step: 1, wanted: 8, got: 5, .. }) => {}
        other => panic!("{other:?}"),
    }
    let trainer = start(options);
    trainer.stop();
    assert_eq!(trainer.join().unwrap().experiences, 0);
    assert_eq!(unacknowledged(&queue).0, 5);
}

#[test]
fn damaged_state_is_refused_with_a_remedy_that_works() {
    let folder = tempfile::tempdir().unwrap();
    let (weights, vocabulary) = arithmetic();
    let queue = ExperienceQueue::open(queue::QueueOptions::default()).unwrap();
    let mut writer = queue.writer("explorer").unwrap();
    let mut train = |number: u64| {
        let batch = experiences(&weights, &vocabulary, &[(1, 2)], 5, number);
        writer.write(&lot(number, &batch)).unwrap();
        let options = TinyTrainerOptions {
            batch_size: 5,
            total_steps: Some(number + 1),
            ..TinyTrainerOptions::new(folder.path())
        };
        let reader = queue.reader("trainer").unwrap();
        TinyTrainer::start(options, weights.clone(), reader, |_| {}).unwrap().join()
    };
    assert_eq!(train(0).unwrap().steps, 1);
    let state = folder.path().join("trainer_state_1.safetensors");
    let mut bytes = std::fs::read(&state).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&state, bytes).unwrap();
    let message = train(1).unwrap_err().to_string();
    assert!(message.contains("trainer_state_1.safetensors: the file is damaged"), "{message}");
    assert!(message.contains("remove it to continue with the weights of step 1"), "{message}");
    std::fs::remove_file(&state).unwrap();
    assert_eq!(train(1).unwrap().steps, 2);
    std::fs::write(folder.path().join("trainer_meta.json"), "{").unwrap();
    let message = train(2).unwrap_err().to_string();
    assert!(message.contains("restore it from a backup"), "{message}");
}

#[test]
fn another_buffer_is_refused_on_resume() {
    let folder = tempfile::tempdir().unwrap();
    let (weights, vocabulary) = arithmetic();
    let start = |queue: &ExperienceQueue| {
        let options =
            TinyTrainerOptions { batch_size: 5, ..TinyTrainerOptions::new(folder.path()) };
        let reader = queue.reader("trainer").unwrap();
        TinyTrainer::start(options, weights.clone(), reader, |_| {}).unwrap().join()
    };
    let queue = ExperienceQueue::open(queue::QueueOptions::default()).unwrap();
    let mut writer = queue.writer("explorer").unwrap();
    let batch = experiences(&weights, &vocabulary, &[(1, 2)], 5, 0);
    writer.write(&lot(0, &batch)).unwrap();
    writer.close().unwrap();
    assert_eq!(start(&queue).unwrap().steps, 1);
    let error = start(&ExperienceQueue::open(queue::QueueOptions::default()).unwrap()).unwrap_err();
    assert!(matches!(error, TinyTrainerError::Position { step: 1, .. }), "{error}");
}
