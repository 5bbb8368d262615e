//! Files of tasks in every format, read to the end.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_ipc::writer::{FileWriter, StreamWriter};
use parquet::arrow::ArrowWriter;
use rollway_config::{BufferConfig, DataSelector, SelectorType, Taskset};
use rollway_tasksets::TasksetOpener;

use super::job_files::{folder, write};
use crate::FuzzTarget;
use crate::input::{choice, with_bytes};

pub(crate) const TARGET: FuzzTarget = FuzzTarget {
    name: "taskset_files",
    max_bytes: 16 << 10,
    memory: 96 << 20,
    per_byte: 8192,
    parse,
    seeds,
};

/// File name of each format, by the first byte of an input.
const NAMES: [&str; 6] =
    ["rows.jsonl", "rows.json", "rows.csv", "rows.parquet", "rows.arrow", "rows.feather"];

fn parse(input: &[u8]) {
    let (choice, rest) = choice(input);
    let folder = folder();
    let path = write(folder.path(), NAMES[usize::from(choice) % NAMES.len()], rest);
    let selector_type = match choice / 16 {
        0 => SelectorType::Sequential,
        1 => SelectorType::Shuffle,
        _ => SelectorType::OfflineEasy2hard,
    };
    let is_sorted = selector_type == SelectorType::OfflineEasy2hard;
    let feature_keys = if is_sorted { vec!["difficulty".to_owned()] } else { Vec::new() };
    let taskset = Taskset {
        path: path.to_str().map(str::to_owned),
        data_selector: DataSelector { selector_type, feature_keys, ..DataSelector::default() },
        ..Taskset::default()
    };
    let mut buffer = BufferConfig { total_steps: Some(3), ..BufferConfig::default() };
    buffer.explorer_input.tasksets = vec![taskset];
    let Ok(mut tasks) = TasksetOpener::new(&buffer).without_prompts().train() else { return };
    while let Ok(Some(batch)) = tasks.next_batch(4) {
        assert!(!batch.is_empty() && batch.len() <= 4);
    }
}

fn batch() -> RecordBatch {
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["What?", "Why?"]));
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
    let columns = [("prompt", texts, true), ("difficulty", numbers, true)];
    RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length")
}

fn file(folder: &Path, name: &str, put: impl FnOnce(File)) -> Vec<u8> {
    let path = folder.join(name);
    put(File::create(&path).expect("there is room"));
    std::fs::read(path).expect("a file of this process")
}

fn seeds() -> Vec<Vec<u8>> {
    let folder = folder();
    let batch = batch();
    let parquet = file(folder.path(), "a", |file| {
        let writer = ArrowWriter::try_new(file, batch.schema(), None);
        let mut writer = writer.expect("a schema of plain columns");
        writer.write(&batch).expect("there is room");
        writer.close().expect("there is room");
    });
    let stream = file(folder.path(), "b", |file| {
        let mut writer = StreamWriter::try_new(file, &batch.schema()).expect("there is room");
        writer.write(&batch).expect("there is room");
        writer.finish().expect("there is room");
    });
    let feather = file(folder.path(), "c", |file| {
        let mut writer = FileWriter::try_new(file, &batch.schema()).expect("there is room");
        writer.write(&batch).expect("there is room");
        writer.finish().expect("there is room");
    });
    let rows = concat!(
        "{\"prompt\":\"What?\",\"response\":4,\"difficulty\":0.5}\n",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"difficulty\":1}\n",
    );
    let table = "prompt,response,difficulty\nWhat?,\"a, \"\"b\"\"\",0.5\nWhy?,c,1\n";
    let list = "[{\"prompt\":\"What?\",\"difficulty\":1},{\"prompt\":\"Why?\",\"difficulty\":2}]";
    vec![
        with_bytes(0, rows),
        with_bytes(16, rows),
        with_bytes(32, rows),
        with_bytes(1, list),
        with_bytes(2, table),
        with_bytes(34, table),
        with_bytes(3, &parquet),
        with_bytes(35, &parquet),
        with_bytes(4, stream),
        with_bytes(5, feather),
    ]
}
