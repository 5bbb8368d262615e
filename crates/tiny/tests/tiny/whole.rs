//! The whole loop: calls through the gateway, rewards, a buffer, the trainer, and its weights back
//! into the server. The same seed gives the same weights in any order of arrival.

use futures_util::future::join_all;
use rollway_data::buffer::Buffer as _;
use rollway_data::buffer::queue::{self, ExperienceQueue};
use rollway_experience::{Eid, Experience};
use rollway_gateway::models::InFlightPolicy;
use rollway_tiny::trainer::{self, TinyTrainer, TinyTrainerOptions};
use rollway_tiny_model::{SeededRng, Vocabulary, arithmetic};
use serde_json::json;
use tokio::sync::mpsc;

use crate::gateway::World;
use crate::sums::{Problem, lot, problems, question};

const STEPS: u64 = 4;
const TASKS: usize = 6;
const RUNS: u64 = 6;

/// Executes one run and computes its reward.
async fn run(world: &World, step: u64, (task, problem): (u64, Problem), run: u64) -> Experience {
    let (_, vocabulary) = arithmetic();
    let messages = [json!({ "role": "user", "content": question(problem) })];
    let body = json!({ "model": "trained", "messages": messages, "max_tokens": 5 });
    let attempt = (step * TASKS as u64 + task) * RUNS + run;
    let (_, mut experiences) = world.call(attempt, "/v1/chat/completions", &body).await;
    let mut experience = experiences.remove(0);
    let versions: Vec<_> = experience.model_versions.as_ref().unwrap().iter().collect();
    assert!(versions.iter().all(|version| *version == Some(step)), "{versions:?}");
    let tokens: Vec<u32> = experience.tokens.iter().map(i32::cast_unsigned).collect();
    let completion = &tokens[experience.prompt_length..];
    let is_right = vocabulary.decode(completion) == format!("{:03}", problem.0 + problem.1);
    experience.reward =
        Some(f64::from(u8::from(is_right && completion.last() == Some(&Vocabulary::END))));
    let (batch, task) = (i64::try_from(step).unwrap(), i64::try_from(task).unwrap());
    let suffix = format!("{attempt:06x}");
    experience.eid = Eid { batch: batch.into(), task: task.into(), run, step: 0, suffix };
    experience
}

/// Returns the final weights and the rewards of the steps.
async fn learn(seed: u64) -> (Vec<u8>, Vec<f64>) {
    let folder = tempfile::tempdir().unwrap();
    let (weights, _) = arithmetic();
    let world = World::new(seed).await;
    let queue = ExperienceQueue::open(queue::QueueOptions::default()).unwrap();
    let mut writer = queue.writer("explorer").unwrap();
    let (sender, mut reports) = mpsc::unbounded_channel();
    let options = TinyTrainerOptions {
        batch_size: TASKS * RUNS as usize,
        total_steps: Some(STEPS),
        ..TinyTrainerOptions::new(folder.path())
    };
    let reader = queue.reader("trainer").unwrap();
    let watch = move |report: &trainer::TrainStepMetrics| sender.send(report.clone()).unwrap();
    let trainer = TinyTrainer::start(options, weights, reader, watch).unwrap();
    let mut chance = SeededRng::new(seed);
    let mut rewards = Vec::new();
    for step in 0..STEPS {
        let tasks: Vec<_> = (0_u64..).zip(problems(&mut chance, TASKS)).collect();
        let runs = tasks.iter().flat_map(|task| (0..RUNS).map(|number| (*task, number)));
        let runs = runs.map(|(task, number)| run(&world, step, task, number));
        let batch = join_all(runs).await;
        writer.write(&lot(step, &batch)).unwrap();
        rewards.push(reports.recv().await.unwrap().reward.unwrap());
        let weights = trainer::directory(folder.path(), step + 1);
        world.update(step + 1, &weights, InFlightPolicy::Keep).await;
        assert_eq!(&*world.server.version(), (step + 1).to_string());
    }
    assert_eq!(trainer.join().unwrap().steps, STEPS);
    let last = trainer::directory(folder.path(), STEPS).join(trainer::MODEL);
    (std::fs::read(last).unwrap(), rewards)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_seed_gives_the_same_curve() {
    let (first, second, other) = (learn(1).await, learn(1).await, learn(2).await);
    assert_eq!(first.1, second.1);
    assert!(first.0 == second.0, "every bit is the same");
    assert!(first.0 != other.0, "another seed gives other weights");
}
