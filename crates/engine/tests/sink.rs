//! The sink of a job, with all kinds of buffers.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use rollway_config::Config;
use rollway_core::metrics::Metrics;
use rollway_core::{BatchKey, TaskId};
use rollway_data::buffer::{ReadEnd, ReadRequest};
use rollway_data::pipeline::{Operator, OperatorError, OperatorOutput, OperatorRegistry};
use rollway_engine::{BatchDelivery, BufferTarget, PipelineSink, Sink, SinkError, TaskPayloads};
use rollway_experience::{Eid, Experience, ExperienceFields, Json, serialize};
use serde_json::{Value, json};

fn experience(task: i64, run: u64, reward: f64) -> Experience {
    let fields = ExperienceFields {
        eid: Eid { batch: 1.into(), task: task.into(), run, step: 0, suffix: "00000a".into() },
        tokens: [1, 2, 3].into(),
        reward: Some(reward),
        info: Json::from_value(&json!({"task_index": {"taskset_id": 0, "index": task}}))
            .expect("an object"),
        ..ExperienceFields::default()
    };
    Experience::new(fields).expect("an experience")
}

/// Two tasks of two runs each.
fn delivery(key: u64) -> BatchDelivery {
    let results = [0, 1].map(|task| TaskPayloads {
        task_id: TaskId(task),
        status: Arc::default(),
        payloads: [0, 1]
            .map(|run| {
                serialize(&experience(i64::from(task), run, run as f64)).expect("it encodes")
            })
            .into(),
    });
    BatchDelivery { batch: 1.into(), key: BatchKey(key), results: results.into() }
}

fn config(folder: &Path, keys: Value) -> Config {
    let mut value = keys;
    value["checkpoint_root_dir"] = json!(folder);
    Config::from_value(&value).expect("a configuration")
}

fn sink(config: &Config) -> PipelineSink {
    PipelineSink::new(config, &OperatorRegistry::built_in()).expect("a sink")
}

/// Reads all samples of a configuration's buffer.
fn read(config: &Config) -> Vec<Experience> {
    let buffer = BufferTarget::of_experiences(config).expect("a target").open().expect("it opens");
    let mut reader = buffer.reader("test").expect("a reader");
    let ask =
        ReadRequest { count: 100, timeout: Duration::ZERO, min_model_version: 0, keep: false };
    let taken = reader.read(&ask).expect("an answer");
    assert_eq!(taken.end, ReadEnd::Finished);
    taken.samples.iter().map(|sample| sample.decode().expect("it decodes")).collect()
}

/// Returns the numbers of stored and of duplicate experiences.
fn counts(metrics: &Metrics) -> (f64, f64) {
    let count = |name: &str| metrics.get(&format!("experience_pipeline/{name}")).expect("a count");
    (count("stored_count"), count("known_count"))
}

fn storage(storage_type: &str, path: Option<&str>) -> Value {
    let ours = json!({ "storage_type": storage_type, "path": path });
    json!({ "buffer": { "trainer_input": { "experience_buffer": ours } } })
}

#[tokio::test]
async fn a_repeated_delivery_is_stored_once_in_every_kind_of_buffer() {
    let folder = tempfile::tempdir().unwrap();
    let parquet = folder.path().join("out.parquet").display().to_string();
    for (name, keys) in [
        ("queue", storage("queue", None)),
        ("sql", storage("sql", None)),
        ("file", storage("file", None)),
        ("parquet", storage("file", Some(&parquet))),
    ] {
        let mut config = config(folder.path(), keys);
        config.name = name.to_owned();
        let sink = sink(&config);
        let counts = counts(&sink.deliver(delivery(0)).await.unwrap());
        assert_eq!(counts, (4.0, 0.0), "{name}");
        let again = self::counts(&sink.deliver(delivery(0)).await.unwrap());
        assert_eq!(again, (0.0, 4.0), "{name}");
        // Experiences are deduplicated, not deliveries.
        let renamed = self::counts(&sink.deliver(delivery(1)).await.unwrap());
        assert_eq!(renamed.0, 0.0, "{name}");
        sink.close().await.unwrap();
        let stored = read(&config);
        assert_eq!(stored.len(), 4, "{name}");
        // The advantages of the algorithm are computed last.
        assert!(stored.iter().all(|one| one.advantages.is_some()), "{name}");
        assert!(sink.deliver(delivery(2)).await.unwrap_err().contains("closed"), "{name}");
    }
}

#[tokio::test]
async fn a_restarted_job_recovers_its_queue() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), json!({}));
    let dead = sink(&config);
    dead.deliver(delivery(0)).await.unwrap();
    drop(dead);
    let next = sink(&config);
    assert_eq!(counts(&next.deliver(delivery(0)).await.unwrap()), (0.0, 4.0));
    // Another content under the same batch id is another delivery.
    let other = serialize(&experience(5, 0, 1.0)).unwrap();
    assert_eq!(counts(&next.process(vec![other.clone()]).await.unwrap()).0, 1.0);
    assert_eq!(counts(&next.process(vec![other]).await.unwrap()).0, 0.0);
    next.close().await.unwrap();
    assert_eq!(read(&config).len(), 5);
    // The unprocessed experiences were stored.
    assert!(config.cache_dir().join("explorer_output.db").exists());
}

#[tokio::test]
async fn selectors_get_the_feedback_of_every_delivery_once() {
    let folder = tempfile::tempdir().unwrap();
    let operators = json!([{ "name": "pass_rate_calculator" }]);
    let keys = json!({ "data_processor": { "experience_pipeline": { "operators": operators } } });
    let sink = sink(&config(folder.path(), keys));
    sink.deliver(delivery(0)).await.unwrap();
    sink.deliver(delivery(0)).await.unwrap();
    let feedback = sink.take_feedback();
    assert_eq!(feedback.len(), 1);
    assert_eq!(feedback[0].by_taskset()[&0], (vec![0, 1], vec![0.5, 0.5]));
    assert!(sink.take_feedback().is_empty());
}

/// Fails first, then panics, then succeeds; records its threads.
struct Flaky(Arc<AtomicUsize>, Arc<Mutex<Vec<String>>>);

impl Operator for Flaky {
    fn name(&self) -> &str {
        "flaky"
    }

    fn process(&mut self, experiences: Vec<Experience>) -> Result<OperatorOutput, OperatorError> {
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        self.1.lock().expect("no panic").push(thread);
        match self.0.fetch_add(1, Ordering::Relaxed) {
            0 => Err(OperatorError::new("not today")),
            1 => panic!("lost my temper"),
            _ => Ok(OperatorOutput::new(experiences)),
        }
    }
}

#[tokio::test]
async fn a_failed_delivery_can_be_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let keys = json!({ "data_processor": {
        "experience_pipeline": { "operators": [{ "name": "flaky" }], "save_input": false },
    } });
    let config = config(folder.path(), keys);
    let (calls, threads) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
    let mut registry = OperatorRegistry::built_in();
    let seen = Arc::clone(&threads);
    registry
        .register("flaky", move |_| Ok(Box::new(Flaky(Arc::clone(&calls), Arc::clone(&seen)))))
        .unwrap();
    let sink = PipelineSink::new(&config, &registry).unwrap();
    let error = sink.deliver(delivery(0)).await.unwrap_err();
    assert_eq!(error, "operator `flaky` failed: not today (attempt 1)");
    let error = sink.deliver(delivery(0)).await.unwrap_err();
    assert_eq!(error, "operator `flaky` panicked: lost my temper (attempt 2)");
    sink.deliver(delivery(0)).await.unwrap();
    sink.close().await.unwrap();
    assert_eq!(read(&config).len(), 4);
    assert_eq!(*threads.lock().unwrap(), ["rollway-pipeline"; 3]);
}

/// Fails for experiences of task 1.
struct Picky;

impl Operator for Picky {
    fn name(&self) -> &str {
        "picky"
    }

    fn process(&mut self, experiences: Vec<Experience>) -> Result<OperatorOutput, OperatorError> {
        match experiences.iter().any(|experience| experience.eid.task == 1.into()) {
            true => Err(OperatorError::new("I do not like task 1")),
            false => Ok(OperatorOutput::new(experiences)),
        }
    }
}

#[tokio::test]
async fn a_batch_that_keeps_failing_is_put_into_the_quarantine() {
    let folder = tempfile::tempdir().unwrap();
    let keys = json!({
        "explorer": { "delivery_attempts": 2 },
        "data_processor": {
            "experience_pipeline": { "operators": [{ "name": "picky" }], "save_input": false },
        },
    });
    let config = config(folder.path(), keys);
    let mut registry = OperatorRegistry::built_in();
    registry.register("picky", |_| Ok(Box::new(Picky))).unwrap();
    let sink = PipelineSink::new(&config, &registry).unwrap();
    assert!(sink.deliver(delivery(0)).await.is_err());
    let metrics = sink.deliver(delivery(0)).await.unwrap();
    assert_eq!(metrics.get(rollway_engine::QUARANTINED), Some(4.0));
    // The next batch is delivered.
    let mut good = delivery(1);
    good.results.truncate(1);
    sink.deliver(good).await.unwrap();
    sink.close().await.unwrap();
    assert_eq!(read(&config).len(), 2);
    let quarantine = config.job_dir().join("quarantine");
    let batches: Vec<_> = std::fs::read_dir(quarantine).unwrap().map(Result::unwrap).collect();
    let [batch] = &batches[..] else { panic!("{batches:?}") };
    let reason = std::fs::read_to_string(batch.path().join("reason.txt")).unwrap();
    assert!(reason.contains("operator `picky` failed: I do not like task 1"), "{reason}");
    let payload = std::fs::read(batch.path().join("000003.payload")).unwrap();
    let kept = rollway_experience::deserialize_many(payload.into()).unwrap();
    assert_eq!(kept, [experience(1, 1, 1.0)]);
}

#[tokio::test]
async fn a_step_of_serve_mode_that_keeps_failing_is_put_into_the_quarantine() {
    let folder = tempfile::tempdir().unwrap();
    let keys = json!({
        "explorer": { "delivery_attempts": 2 },
        "data_processor": {
            "experience_pipeline": { "operators": [{ "name": "picky" }], "save_input": false },
        },
    });
    let config = config(folder.path(), keys);
    let mut registry = OperatorRegistry::built_in();
    registry.register("picky", |_| Ok(Box::new(Picky))).unwrap();
    let sink = PipelineSink::new(&config, &registry).unwrap();
    let payload = |task| vec![serialize(&experience(task, 0, 1.0)).unwrap()];
    let commit = |number: u64, task| sink.step(number, format!("step/{number}"), payload(task));
    assert!(commit(1, 1).await.is_err());
    let metrics = commit(1, 1).await.unwrap();
    assert_eq!(metrics.get(rollway_engine::QUARANTINED), Some(1.0));
    commit(2, 0).await.unwrap();
    sink.close().await.unwrap();
    assert_eq!(read(&config).len(), 1);
    assert_eq!(std::fs::read_dir(config.job_dir().join("quarantine")).unwrap().count(), 1);
}

#[tokio::test]
async fn a_failed_open_is_retried() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let path = format!("sqlite:///{}/out.db", missing.display());
    let config = config(folder.path(), storage("sql", Some(&path)));
    let sink = sink(&config);
    let error = sink.prepare().await.unwrap_err();
    assert!(error.contains("there is no folder") && error.contains("missing"), "{error}");
    assert!(sink.deliver(delivery(0)).await.is_err());
    std::fs::create_dir(&missing).unwrap();
    sink.deliver(delivery(0)).await.unwrap();
    sink.close().await.unwrap();
    assert_eq!(read(&config).len(), 4);
}

#[tokio::test]
async fn a_batch_without_experiences_does_not_touch_the_pipeline() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing/out.db").display().to_string();
    let sink = sink(&config(folder.path(), storage("sql", Some(&format!("sqlite:///{path}")))));
    let delivery = BatchDelivery { results: Vec::new(), ..delivery(0) };
    assert!(sink.deliver(delivery).await.unwrap().is_empty());
    // An invalid payload is dropped alone, and counted.
    let sound = serialize(&experience(0, 0, 1.0)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), json!({}));
    let sink = self::sink(&config);
    let metrics = sink.process(vec![sound, Bytes::from_static(b"invalid")]).await.unwrap();
    assert_eq!(metrics.get("experience_pipeline/decode/filtered/invalid"), Some(1.0));
    sink.close().await.unwrap();
    assert_eq!(read(&config).len(), 1);
}

#[test]
fn invalid_configurations_are_refused_with_their_key() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |keys: Value| match PipelineSink::new(
        &config(folder.path(), keys),
        &OperatorRegistry::built_in(),
    ) {
        Err(SinkError::Config { key, message }) => (key, message),
        other => panic!("{other:?}"),
    };
    let path = "buffer.trainer_input.experience_buffer.path";
    let operators = json!([{ "name": "reward_filter", "args": { "treshold": 1 } }]);
    let operators =
        json!({ "data_processor": { "experience_pipeline": { "operators": operators } } });
    let replay = json!({ "enable": true, "priority_fn_args": { "decay": -1 } });
    let replay = json!({ "experience_buffer": { "replay_buffer": replay } });
    for (keys, expected_key, expected) in [
        (storage("queue", Some("sqlite:///out.db")), path, "remove `path`"),
        (storage("sql", Some("mysql://me:secret@host/db")), path, "postgresql://"),
        (storage("sql", Some("out.jsonl")), path, "storage_type"),
        (
            json!({ "algorithm": { "advantage_fn": "grop" } }),
            "algorithm.advantage_fn",
            "did you mean `grpo`?",
        ),
        (operators, "data_processor.experience_pipeline.operators[0]", "threshold"),
        (
            json!({ "buffer": { "trainer_input": replay } }),
            "buffer.trainer_input.experience_buffer.replay_buffer.priority_fn_args.decay",
            "",
        ),
    ] {
        let (key, message) = refused(keys);
        assert_eq!(key, expected_key);
        assert!(message.contains(expected) && !message.contains("secret"), "{message}");
    }
}

/// Two jobs with default names on one address must not train on each other's experiences.
#[tokio::test]
async fn another_job_on_the_same_address_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    for (kind, path) in [("sql", format!("sqlite:///{}", file("a.db"))), ("file", file("a.jsonl"))]
    {
        let job = |name: &str, shared: bool| {
            let mut keys = storage(kind, Some(&path));
            keys["name"] = json!(name);
            keys["buffer"]["trainer_input"]["experience_buffer"]["shared"] = json!(shared);
            config(folder.path(), keys)
        };
        let first = sink(&job("first", false));
        first.prepare().await.expect("it opens");
        let error = sink(&job("second", false)).prepare().await.expect_err("it is refused");
        for part in ["/first`", "/second`", "`shared: true`"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        sink(&job("second", true)).prepare().await.expect("sharing is allowed");
        sink(&job("first", false)).prepare().await.expect("a restart opens it again");
    }
}
