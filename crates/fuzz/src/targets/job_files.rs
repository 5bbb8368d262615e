//! Files in the folder of a job: ledger, buffers and weights, read at the next start, whole or with
//! correct checksums around any records.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rollway_core::{
    BatchId, BatchKey, BatchType, FailureKind, RunEnd, RunFailure, RunId, RunOutput, TaskId,
};
use rollway_data::buffer::queue::QueueOptions;
use rollway_data::buffer::sql::SqlOptions;
use rollway_data::buffer::{
    Buffer, ExperienceQueue, JsonlBuffer, ParquetBuffer, ReadEnd, ReadRequest, SqliteBuffer,
};
use rollway_data::{Sample, WriteBatch};
use rollway_ledger::log::{FramePart, LogOptions, SegmentLog};
use rollway_ledger::{BatchMark, Ledger, LedgerEntry, LedgerOptions, TaskEntry};
use rollway_sync::tensor_files;
use rollway_tasksets::TasksetState;
use tempfile::TempDir;

use super::experience_payload::experiences;
use crate::FuzzTarget;
use crate::input::{choice, messages, with_bytes, with_messages};

pub(crate) const TARGET: FuzzTarget = FuzzTarget {
    name: "job_files",
    max_bytes: 16 << 10,
    memory: 64 << 20,
    per_byte: 4096,
    parse,
    seeds,
};

const JOB: &str = "job";

/// The kind of a file, in the first byte of an input.
const KINDS: [fn(&Path, &[u8]); 9] = [
    ledger_records,
    ledger_segment,
    queue_records,
    queue_segment,
    json_lines,
    parquet_file,
    sqlite_file,
    tensor_file,
    taskset_state,
];

/// Logs of a queue.
const QUEUE_LOGS: [&str; 2] = ["samples", "gone"];

/// First segment of a log.
const SEGMENT: &str = "00000000000000000001.log";

fn parse(input: &[u8]) {
    let (choice, rest) = choice(input);
    let folder = folder();
    KINDS[usize::from(choice) % KINDS.len()](folder.path(), rest);
}

/// Returns a folder in memory if there is one: nothing here must outlive the process.
pub(super) fn folder() -> TempDir {
    let memory = tempfile::tempdir_in("/dev/shm");
    memory.or_else(|_| tempfile::tempdir()).expect("a folder can be created")
}

fn ledger_options() -> LedgerOptions {
    LedgerOptions::new(JOB)
}

/// Writes frames with correct checksums.
fn write_frames(folder: &Path, kind: &'static str, owner: &str, input: &[u8]) {
    let options = LogOptions::new(kind, owner);
    let opened = SegmentLog::open(folder, options, &mut |_, _| {});
    let (log, _) = opened.expect("a new log is opened");
    for message in messages(input) {
        log.append(&[FramePart::Copy(message)]).expect("a small frame");
    }
    log.sync().expect("there is room");
}

fn ledger_records(folder: &Path, input: &[u8]) {
    write_frames(folder, "ledger", JOB, input);
    open_ledger(folder);
}

fn ledger_segment(folder: &Path, input: &[u8]) {
    write(folder, SEGMENT, input);
    write(folder, "start", b"1\n");
    open_ledger(folder);
}

/// Opens a ledger. One that was opened is opened again with the same content.
fn open_ledger(folder: &Path) {
    let Ok((ledger, recovered)) = Ledger::open(folder, ledger_options()) else { return };
    drop(ledger);
    let (_, again) =
        Ledger::open(folder, ledger_options()).expect("what was opened is opened again");
    assert_eq!(again.epoch, recovered.epoch + 1);
    assert_eq!(format!("{:?}", again.batches), format!("{:?}", recovered.batches));
}

/// Two parts, each after two bytes with its length: frames of samples, and of removals.
fn queue_records(folder: &Path, input: &[u8]) {
    let name = queue_options(folder).name;
    for (log, frames) in QUEUE_LOGS.iter().zip(messages(input)) {
        write_frames(&folder.join(log), "queue", &name, frames);
    }
    open_queue(folder);
}

/// Two parts: the file of samples, and that of removals.
fn queue_segment(folder: &Path, input: &[u8]) {
    for (log, file) in QUEUE_LOGS.iter().zip(messages(input)) {
        write(&folder.join(log), SEGMENT, file);
        write(&folder.join(log), "start", b"1\n");
    }
    open_queue(folder);
}

fn queue_options(folder: &Path) -> QueueOptions {
    QueueOptions { path: Some(folder.to_owned()), ..QueueOptions::default() }
}

fn open_queue(folder: &Path) {
    if let Ok(queue) = ExperienceQueue::open(queue_options(folder)) {
        read(&*queue);
        queue.close();
    }
}

/// Reads a buffer to its end, and closes its writer.
fn read(buffer: &dyn Buffer) {
    if let Ok(mut writer) = buffer.writer("writer") {
        let _ = writer.write(&batch(1));
        let _ = writer.close();
    }
    let Ok(mut reader) = buffer.reader("reader") else { return };
    let request = request();
    // Every read but the last one returns samples.
    while let Ok(result) = reader.read(&request) {
        for sample in &result.samples {
            let _ = sample.decode();
        }
        if result.samples.is_empty() || result.end == ReadEnd::Finished {
            break;
        }
    }
    let _ = reader.seek(&reader.position());
}

fn request() -> ReadRequest {
    ReadRequest { count: 8, timeout: Duration::ZERO, min_model_version: 0, keep: false }
}

fn json_lines(folder: &Path, input: &[u8]) {
    if let Ok(buffer) = JsonlBuffer::open(write(folder, "rows.jsonl", input)) {
        read(&buffer);
    }
}

fn parquet_file(folder: &Path, input: &[u8]) {
    write(folder, "rows/0000000001-a.parquet", input);
    if let Ok(buffer) = ParquetBuffer::open(folder.join("rows")) {
        read(&buffer);
    }
}

fn sqlite_file(folder: &Path, input: &[u8]) {
    let path = write(folder, "buffer.db", input);
    let options = SqlOptions { max_retry_times: 0, ..SqlOptions::default() };
    if let Ok(buffer) = SqliteBuffer::open(&format!("sqlite:///{}", path.display()), options) {
        read(&buffer);
    }
}

fn tensor_file(folder: &Path, input: &[u8]) {
    let path = write(folder, "model.safetensors", input);
    let is_valid = tensor_files::check(&path).is_ok();
    if tensor_files::read(&path, "w").is_ok() {
        assert!(is_valid, "a tensor of an invalid file");
    }
}

fn taskset_state(_: &Path, input: &[u8]) {
    let Ok(state) = serde_json::from_slice::<TasksetState>(input) else { return };
    let text = serde_json::to_string(&state).expect("a state is plain data");
    let again: TasksetState = serde_json::from_str(&text).expect("a written state is read");
    assert_eq!(serde_json::to_string(&again).expect("a state is plain data"), text);
}

pub(super) fn write(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().expect("a file has a folder")).expect("there is room");
    fs::write(&path, bytes).expect("there is room");
    path
}

fn batch(number: u64) -> WriteBatch {
    let samples = experiences().into_iter().map(|mut experience| {
        experience.eid.suffix = format!("{number}");
        Sample::new(&experience).expect("a valid experience")
    });
    WriteBatch { key: Arc::from(format!("batch-{number}")), samples: samples.collect() }
}

/// Returns the frames of a log: its records.
fn frames(folder: &Path, kind: &'static str, owner: &str) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let opened = SegmentLog::open(folder, LogOptions::new(kind, owner), &mut |_, frame| {
        frames.push(frame.to_vec());
    });
    opened.expect("a log of this process");
    frames
}

fn write_ledger(folder: &Path) {
    let (ledger, _) = Ledger::open(folder, ledger_options()).expect("a new ledger");
    let (key, batch) = (BatchKey(1), BatchId::from("3"));
    let entry = |text: &'static [u8]| TaskEntry {
        workflow: "workflow".into(),
        common: Some(bytes::Bytes::from_static(b"common")),
        repeat_times: 2,
        bytes: bytes::Bytes::from_static(text),
    };
    let tasks = [entry(b"one"), entry(b"two")];
    let output = RunOutput {
        payload: Some(bytes::Bytes::from_static(b"payload")),
        metrics: [(Arc::<str>::from("reward"), 1.0)].into_iter().collect(),
    };
    let failure = RunFailure { kind: FailureKind::ALL[0], message: "no".into() };
    let ends = [RunEnd::Succeeded(output), RunEnd::Failed(failure)];
    let kind = BatchType::Train;
    let submitted =
        LedgerEntry::Submitted { key, batch: &batch, kind, min_wait_num: Some(1), tasks: &tasks };
    ledger.append(submitted).expect("there is room");
    for (run, end) in ends.iter().enumerate() {
        let run = RunId(run as u32);
        let ended = LedgerEntry::RunEnded { key, task: TaskId(0), run, end };
        ledger.append(ended).expect("there is room");
    }
    let note = BatchMark::DeliveryStarted;
    ledger.append(LedgerEntry::Noted { key, note: &note }).expect("there is room");
    ledger.append(LedgerEntry::Version(7)).expect("there is room");
    ledger.sync().expect("there is room");
}

fn write_buffer(buffer: &dyn Buffer) {
    let mut writer = buffer.writer("writer").expect("a new buffer has a writer");
    writer.write(&batch(0)).expect("there is room");
    writer.close().expect("the buffer is open");
}

fn seeds() -> Vec<Vec<u8>> {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let file = |path: PathBuf| fs::read(path).expect("a file of this process");
    write_ledger(&path("ledger"));
    let queue = ExperienceQueue::open(queue_options(&path("queue"))).expect("a new queue");
    write_buffer(&*queue);
    // Reads one sample, so that something is removed.
    let mut reader = queue.reader("reader").expect("a queue has a reader");
    for count in [1, 0] {
        let request = ReadRequest { count, ..request() };
        reader.read(&request).expect("the queue is open");
    }
    drop(reader);
    queue.close();
    drop(queue);
    write_buffer(&JsonlBuffer::open(path("rows.jsonl")).expect("a new buffer"));
    write_buffer(&ParquetBuffer::open(path("rows")).expect("a new buffer"));
    let address = format!("sqlite:///{}", path("buffer.db").display());
    write_buffer(&SqliteBuffer::open(&address, SqlOptions::default()).expect("a new buffer"));
    let files = fs::read_dir(path("rows")).expect("a folder of this process");
    let mut files = files.map(|file| file.expect("a file").path());
    let parquet = files.find(|file| file.extension().is_some_and(|it| it == "parquet"));
    let head = br#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let tensors = [&(head.len() as u64).to_le_bytes(), &head[..], &[0; 4]].concat();
    let queue_logs = QUEUE_LOGS.map(|log| path("queue").join(log));
    let queue_frames = |log: PathBuf| frames(&log, "queue", &QueueOptions::default().name);
    vec![
        with_messages(0, &frames(&path("ledger"), "ledger", JOB)),
        with_bytes(1, file(path("ledger").join(SEGMENT))),
        with_messages(
            2,
            &queue_logs.clone().map(|log| with_messages(0, &queue_frames(log))[1..].to_vec()),
        ),
        with_messages(3, &queue_logs.map(|log| file(log.join(SEGMENT)))),
        with_bytes(4, file(path("rows.jsonl"))),
        with_bytes(5, file(parquet.expect("a batch is a file"))),
        with_bytes(6, file(path("buffer.db"))),
        with_bytes(7, tensors),
        with_bytes(8, STATE),
    ]
}

const STATE: &str = include_str!("../../seeds/taskset_state.json");
