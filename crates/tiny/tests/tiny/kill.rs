//! A trainer that is killed repeatedly ends with the same state as an uninterrupted one.

use std::io::{BufRead, BufReader};
use std::path::Path;

use rollway_data::buffer::{Buffer as _, JsonlBuffer};
use rollway_testkit::child_test;
use rollway_tiny::trainer::{self, TinyTrainer, TinyTrainerOptions, TinyTrainerSummary};
use rollway_tiny_model::{SeededRng, arithmetic};

use crate::sums::{experiences, lot, problems};

/// Variable with the folder for the process that is killed.
const FOLDER: &str = "ROLLWAY_TEST_TRAINER_KILL";

const STEPS: u64 = 24;
const RUNS: u64 = 4;

/// Writes the experiences.
fn fill(folder: &Path) {
    let (weights, vocabulary) = arithmetic();
    let buffer = JsonlBuffer::open(folder.join("buffer.jsonl")).unwrap();
    let mut writer = buffer.writer("explorer").unwrap();
    let mut chance = SeededRng::new(1);
    for number in 0..STEPS {
        let batch = experiences(&weights, &vocabulary, &problems(&mut chance, 4), RUNS, number);
        writer.write(&lot(number, &batch)).unwrap();
    }
    writer.close().unwrap();
}

fn train(folder: &Path, mut watch: impl FnMut(u64) + Send + 'static) -> TinyTrainerSummary {
    let (weights, _) = arithmetic();
    let buffer = JsonlBuffer::open(folder.join("buffer.jsonl")).unwrap();
    let reader = buffer.reader("trainer").unwrap();
    let options = TinyTrainerOptions {
        // Batches span write batches, and only every other step is saved.
        batch_size: 4 * RUNS as usize,
        save_interval: 2,
        publish_interval: 3,
        ..TinyTrainerOptions::new(folder.join("job"))
    };
    let trainer = TinyTrainer::start(options, weights, reader, move |report| watch(report.step));
    trainer.unwrap().join().unwrap()
}

/// Body of the process that is killed; does nothing in the test process.
#[test]
fn train_until_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    train(folder.as_ref(), |step| println!("made step {step}"));
}

/// Files of a finished trainer that do not depend on the kills.
fn final_files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let job = folder.join("job");
    let latest = trainer::latest(&job).unwrap().unwrap();
    let weights = trainer::directory(&job, latest).join(trainer::MODEL);
    let files = ["trainer_meta.json".into(), format!("trainer_state_{STEPS}.safetensors")];
    let files = files.map(|name| (std::fs::read(job.join(&name)).unwrap(), name));
    let mut all = vec![(format!("weights of {latest}"), std::fs::read(weights).unwrap())];
    all.extend(files.map(|(bytes, name)| (name, bytes)));
    all
}

#[test]
fn a_killed_trainer_ends_like_an_uninterrupted_one() {
    let alone = tempfile::tempdir().unwrap();
    fill(alone.path());
    let summary = train(alone.path(), |_| {});
    assert_eq!((summary.steps, summary.experiences), (STEPS, STEPS * 4 * RUNS));
    assert_eq!(summary.consumed, Some(STEPS * 4 * RUNS));

    let killed = tempfile::tempdir().unwrap();
    fill(killed.path());
    let mut kills = 0;
    loop {
        let child = child_test("kill::train_until_killed", FOLDER, killed.path()).spawn();
        let mut child = child.unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        // After a few steps, varying from kill to kill.
        let steps = lines.filter(|line| line.contains("made step"));
        if steps.take(3 + kills % 3).count() == 3 + kills % 3 {
            child.kill().unwrap();
        }
        if child.wait().unwrap().success() {
            break;
        }
        kills += 1;
        assert!(kills < 3 * STEPS as usize, "no progress");
    }
    assert!(kills > 2, "it was killed {kills} times");
    assert!(final_files(alone.path()) == final_files(killed.path()), "every bit is the same");
}
