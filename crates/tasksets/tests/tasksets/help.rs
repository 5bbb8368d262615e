//! Files and configurations for the tests.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_ipc::writer::{FileWriter, StreamWriter};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use rollway_config::{BufferConfig, DataSelector, SelectorType, Taskset};
use rollway_tasksets::{SelectedTask, TaskStream, TasksetError, TasksetOpener};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

pub(crate) fn write(folder: &TempDir, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.path().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    path
}

/// Writes rows with a prompt, an answer and two features.
pub(crate) fn rows(folder: &TempDir, name: &str, count: usize) -> PathBuf {
    let row = |at: usize| {
        let easy = at as f64 / count as f64;
        let prompt = format!("{name} {at}");
        json!({"prompt": prompt, "response": at, "weak": easy / 2.0, "strong": easy})
    };
    let lines: Vec<String> = (0..count).map(|at| row(at).to_string() + "\n").collect();
    write(folder, name, lines.concat())
}

pub(crate) fn columns(columns: &[(&str, ArrayRef)]) -> RecordBatch {
    let columns = columns.iter().map(|(name, array)| (*name, Arc::clone(array), true));
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

pub(crate) fn parquet(path: &Path, batch: &RecordBatch, properties: WriterProperties) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let file = File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

/// Writes an Arrow stream, or a file with a footer for `.feather`, `rows` rows per batch.
pub(crate) fn arrow(path: &Path, batch: &RecordBatch, rows: usize) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let (file, schema) = (File::create(path).unwrap(), batch.schema());
    let starts = (0..batch.num_rows()).step_by(rows);
    let parts = starts.map(|start| batch.slice(start, rows.min(batch.num_rows() - start)));
    if path.extension().is_some_and(|extension| extension == "feather") {
        let mut writer = FileWriter::try_new(file, &schema).unwrap();
        parts.for_each(|part| writer.write(&part).unwrap());
        writer.finish().unwrap();
    } else {
        let mut writer = StreamWriter::try_new(file, &schema).unwrap();
        parts.for_each(|part| writer.write(&part).unwrap());
        writer.finish().unwrap();
    }
}

pub(crate) fn taskset(path: &Path) -> Taskset {
    Taskset { path: Some(path.to_str().unwrap().to_owned()), ..Taskset::default() }
}

pub(crate) fn selected(path: &Path, selector_type: SelectorType, seed: u64) -> Taskset {
    let keys: &[&str] = match selector_type {
        SelectorType::DifficultyBased => &["weak", "strong"],
        SelectorType::OfflineEasy2hard => &["strong"],
        _ => &[],
    };
    let feature_keys = keys.iter().map(|key| (*key).to_owned()).collect();
    let data_selector = DataSelector { selector_type, seed, feature_keys, ..Default::default() };
    Taskset { data_selector, ..taskset(path) }
}

pub(crate) fn buffer(tasksets: Vec<Taskset>) -> BufferConfig {
    let mut buffer = BufferConfig::default();
    buffer.explorer_input.tasksets = tasksets;
    buffer
}

pub(crate) fn epochs(tasksets: Vec<Taskset>, total_epochs: u32) -> TaskStream {
    TasksetOpener::new(&BufferConfig { total_epochs, ..buffer(tasksets) }).train().unwrap()
}

pub(crate) fn steps(tasksets: Vec<Taskset>, total_steps: u32) -> TaskStream {
    TasksetOpener::new(&BufferConfig { total_steps: Some(total_steps), ..buffer(tasksets) })
        .train()
        .unwrap()
}

/// Opens a file for rows of any shape and reads all of them.
pub(crate) fn read(taskset: Taskset) -> Vec<Value> {
    let buffer = buffer(vec![taskset]);
    let mut tasks = TasksetOpener::new(&buffer).without_prompts().train().unwrap();
    tasks.all().map(|drawn| Value::Object(drawn.unwrap().task.raw)).collect()
}

pub(crate) fn refused(taskset: Taskset) -> TasksetError {
    TasksetOpener::new(&buffer(vec![taskset])).train().unwrap_err()
}

/// Asserts that a taskset is refused with a message.
pub(crate) fn assert_refused(taskset: Taskset, expected: &str) {
    let error = refused(taskset).to_string();
    assert!(error.contains(expected), "{error}");
}

/// Taskset and row of each task.
pub(crate) fn picks(batch: &[SelectedTask]) -> Vec<(usize, u64)> {
    batch.iter().map(|drawn| (drawn.source.taskset_id, drawn.index)).collect()
}

/// Takes batches to the end.
pub(crate) fn drain(tasks: &mut TaskStream, size: u32) -> Vec<(usize, u64)> {
    let batches = std::iter::from_fn(|| tasks.next_batch(size).unwrap());
    batches.flat_map(|batch| picks(&batch)).collect()
}

pub(crate) const SELECTORS: [SelectorType; 5] = [
    SelectorType::Sequential,
    SelectorType::Shuffle,
    SelectorType::Random,
    SelectorType::OfflineEasy2hard,
    SelectorType::DifficultyBased,
];
