//! A trainer that is killed again and again ends where one that is left alone does.

use std::io::{BufRead, BufReader};
use std::path::Path;

use rollway_data::buffer::{Buffer as _, JsonlBuffer};
use rollway_testkit::child_test;
use rollway_tiny::trainer::{self, TinyTrainer, TinyTrainerOptions, TinyTrainerSummary};
use rollway_tiny_model::{SeededRng, arithmetic};

use crate::sums::{experiences, lot, problems};

/// Names the folder to the process that is killed.
const FOLDER: &str = "ROLLWAY_TEST_TRAINER_KILL";

const STEPS: u64 = 24;
const RUNS: u64 = 4;

/// Writes what is to be learned.
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
        // Batches lie across lots, and a state is kept of every other step.
        batch_size: 4 * RUNS as usize,
        save_interval: 2,
        publish_interval: 3,
        ..TinyTrainerOptions::new(folder.join("job"))
    };
    let trainer = TinyTrainer::start(options, weights, reader, move |report| watch(report.step));
    trainer.unwrap().join().unwrap()
}

/// What the process does that is killed; nothing in the process that tests.
#[test]
fn train_until_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    train(folder.as_ref(), |step| println!("made step {step}"));
}

/// Everything that a trainer leaves behind, but for what depends on when it was killed.
fn left(folder: &Path) -> Vec<(String, Vec<u8>)> {
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
fn a_killed_trainer_ends_where_one_that_is_left_alone_does() {
    let alone = tempfile::tempdir().unwrap();
    fill(alone.path());
    let summary = train(alone.path(), |_| {});
    assert_eq!((summary.steps, summary.experiences), (STEPS, STEPS * 4 * RUNS));

    let killed = tempfile::tempdir().unwrap();
    fill(killed.path());
    let mut kills = 0;
    loop {
        let child = child_test("kill::train_until_killed", FOLDER, killed.path()).spawn();
        let mut child = child.unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        // Far enough to get on, at a moment that is another one every time.
        let steps = lines.filter(|line| line.contains("made step"));
        if steps.take(3 + kills % 3).count() == 3 + kills % 3 {
            child.kill().unwrap();
        }
        if child.wait().unwrap().success() {
            break;
        }
        kills += 1;
        assert!(kills < 3 * STEPS as usize, "it never gets to the end");
    }
    assert!(kills > 2, "it was killed {kills} times");
    assert!(left(alone.path()) == left(killed.path()), "every bit is the same");
}
