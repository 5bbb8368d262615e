//! The sink of a job: from parcels to the buffers that a configuration names.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use rollway_config::Config;
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
fn parcel(key: u64) -> BatchDelivery {
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

/// Reads everything that a configuration's buffer has.
fn read(config: &Config) -> Vec<Experience> {
    let buffer = BufferTarget::of_experiences(config).expect("a place").open().expect("it opens");
    let mut reader = buffer.reader("test").expect("a reader");
    let ask =
        ReadRequest { count: 100, timeout: Duration::ZERO, min_model_version: 0, keep: false };
    let taken = reader.read(&ask).expect("an answer");
    assert_eq!(taken.end, ReadEnd::Finished);
    taken.samples.iter().map(|sample| sample.decode().expect("it decodes")).collect()
}

fn storage(storage_type: &str, path: Option<&str>) -> Value {
    let ours = json!({ "storage_type": storage_type, "path": path });
    json!({ "buffer": { "trainer_input": { "experience_buffer": ours } } })
}

#[tokio::test]
async fn a_parcel_that_comes_twice_is_stored_once_wherever_it_goes() {
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
        let first = sink.deliver(parcel(0)).await.unwrap();
        assert_eq!(first.get("experience_pipeline/stored_count"), Some(4.0), "{name}");
        let again = sink.deliver(parcel(0)).await.unwrap();
        assert_eq!(again.get("experience_pipeline/known_count"), Some(4.0), "{name}");
        assert_eq!(again.get("experience_pipeline/stored_count"), Some(0.0), "{name}");
        // It is the experiences that count, not what the parcel is called.
        let renamed = sink.deliver(parcel(1)).await.unwrap();
        assert_eq!(renamed.get("experience_pipeline/stored_count"), Some(0.0), "{name}");
        sink.close().await.unwrap();
        let stored = read(&config);
        assert_eq!(stored.len(), 4, "{name}");
        // The algorithm's advantages were worked out last.
        assert!(stored.iter().all(|one| one.advantages.is_some()), "{name}");
        assert!(sink.deliver(parcel(2)).await.unwrap_err().contains("closed"), "{name}");
    }
}

#[tokio::test]
async fn a_job_that_dies_finds_its_queue_again() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), json!({}));
    let dead = sink(&config);
    dead.deliver(parcel(0)).await.unwrap();
    drop(dead);
    let next = sink(&config);
    let metrics = next.deliver(parcel(0)).await.unwrap();
    assert_eq!(metrics.get("experience_pipeline/known_count"), Some(4.0));
    // The same names of batches with other experiences are other lots.
    let other = serialize(&experience(5, 0, 1.0)).unwrap();
    let metrics = next.process(vec![other.clone()]).await.unwrap();
    assert_eq!(metrics.get("experience_pipeline/stored_count"), Some(1.0));
    let metrics = next.process(vec![other]).await.unwrap();
    assert_eq!(metrics.get("experience_pipeline/stored_count"), Some(0.0));
    next.close().await.unwrap();
    assert_eq!(read(&config).len(), 5);
    // The inputs were kept as they came.
    assert!(config.cache_dir().join("explorer_output.db").exists());
}

#[tokio::test]
async fn selectors_learn_from_every_parcel_once() {
    let folder = tempfile::tempdir().unwrap();
    let operators = json!([{ "name": "pass_rate_calculator" }]);
    let keys = json!({ "data_processor": { "experience_pipeline": { "operators": operators } } });
    let sink = sink(&config(folder.path(), keys));
    sink.deliver(parcel(0)).await.unwrap();
    sink.deliver(parcel(0)).await.unwrap();
    let feedback = sink.take_feedback();
    assert_eq!(feedback.len(), 1);
    assert_eq!(feedback[0].by_taskset()[&0], (vec![0, 1], vec![0.5, 0.5]));
    assert!(sink.take_feedback().is_empty());
}

/// Fails the first time; remembers in which threads it was.
struct Moody(Arc<AtomicUsize>, Arc<Mutex<Vec<String>>>);

impl Operator for Moody {
    fn name(&self) -> &str {
        "moody"
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
async fn what_fails_once_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let keys = json!({ "data_processor": {
        "experience_pipeline": { "operators": [{ "name": "moody" }], "save_input": false },
    } });
    let config = config(folder.path(), keys);
    let (calls, threads) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
    let mut registry = OperatorRegistry::built_in();
    let seen = Arc::clone(&threads);
    registry
        .register("moody", move |_| Ok(Box::new(Moody(Arc::clone(&calls), Arc::clone(&seen)))))
        .unwrap();
    let sink = PipelineSink::new(&config, &registry).unwrap();
    let error = sink.deliver(parcel(0)).await.unwrap_err();
    assert_eq!(error, "operator `moody` failed: not today");
    let error = sink.deliver(parcel(0)).await.unwrap_err();
    assert_eq!(error, "operator `moody` panicked: lost my temper");
    sink.deliver(parcel(0)).await.unwrap();
    sink.close().await.unwrap();
    assert_eq!(read(&config).len(), 4);
    assert_eq!(*threads.lock().unwrap(), ["rollway-pipeline"; 3]);
}

#[tokio::test]
async fn what_does_not_open_is_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let path = format!("sqlite:///{}/out.db", missing.display());
    let config = config(folder.path(), storage("sql", Some(&path)));
    let sink = sink(&config);
    let error = sink.prepare().await.unwrap_err();
    assert!(error.contains("there is no folder") && error.contains("missing"), "{error}");
    assert!(sink.deliver(parcel(0)).await.is_err());
    std::fs::create_dir(&missing).unwrap();
    sink.deliver(parcel(0)).await.unwrap();
    sink.close().await.unwrap();
    assert_eq!(read(&config).len(), 4);
}

#[tokio::test]
async fn a_batch_without_experiences_does_not_touch_the_pipeline() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing/out.db").display().to_string();
    let sink = sink(&config(folder.path(), storage("sql", Some(&format!("sqlite:///{path}")))));
    let parcel = BatchDelivery { results: Vec::new(), ..parcel(0) };
    assert!(sink.deliver(parcel).await.unwrap().is_empty());
    // Rubbish is named, and nothing of it is stored.
    let sound = serialize(&experience(0, 0, 1.0)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), json!({}));
    let sink = self::sink(&config);
    let error = sink.process(vec![sound, Bytes::from_static(b"rubbish")]).await.unwrap_err();
    assert!(error.starts_with("payload 1 of 2 cannot be read: "), "{error}");
    sink.close().await.unwrap();
    assert!(read(&config).is_empty());
}

#[test]
fn what_cannot_be_is_refused_with_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |keys: Value| match PipelineSink::new(
        &config(folder.path(), keys),
        &OperatorRegistry::built_in(),
    ) {
        Err(SinkError::Config { key, message }) => (key, message),
        other => panic!("{other:?}"),
    };
    let buffer = "buffer.trainer_input.experience_buffer";
    let (key, message) = refused(storage("queue", Some("sqlite:///out.db")));
    assert_eq!(key, format!("{buffer}.path"));
    assert!(message.contains("leave it out"), "{message}");
    let (key, message) = refused(storage("sql", Some("mysql://me:secret@host/db")));
    assert_eq!(key, format!("{buffer}.path"));
    assert!(message.contains("postgresql://") && !message.contains("secret"), "{message}");
    let (key, message) = refused(storage("sql", Some("out.jsonl")));
    assert_eq!(key, format!("{buffer}.path"));
    assert!(message.contains("storage_type"), "{message}");
    let (key, message) = refused(json!({ "algorithm": { "advantage_fn": "grop" } }));
    assert_eq!(key, "algorithm.advantage_fn");
    assert!(message.contains("did you mean `grpo`?"), "{message}");
    let operators = json!([{ "name": "reward_filter", "args": { "treshold": 1 } }]);
    let keys = json!({ "data_processor": { "experience_pipeline": { "operators": operators } } });
    let (key, message) = refused(keys);
    assert_eq!(key, "data_processor.experience_pipeline.operators[0]");
    assert!(message.contains("threshold"), "{message}");
    let replay = json!({ "enable": true, "priority_fn_args": { "decay": -1 } });
    let keys = json!({ "replay_buffer": replay });
    let keys = json!({ "buffer": { "trainer_input": { "experience_buffer": keys } } });
    let (key, _) = refused(keys);
    assert_eq!(key, format!("{buffer}.replay_buffer.priority_fn_args.decay"));
}
