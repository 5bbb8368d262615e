//! Folders of datasets, as hubs and libraries write them.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow_array::StringArray;
use rollway_config::Taskset;
use rollway_tasksets::TasksetErrorKind;
use serde_json::{Value, json};

use crate::help::{arrow, assert_refused, columns, folder, read, refused, taskset, write};

fn prompts(taskset: Taskset) -> Vec<String> {
    let text = |row: Value| row["prompt"].as_str().unwrap().to_owned();
    read(taskset).into_iter().map(text).collect()
}

fn split(path: &Path, split: &str) -> Taskset {
    Taskset { split: split.to_owned(), ..taskset(path) }
}

fn subset(path: &Path, name: &str, split: &str) -> Taskset {
    let subset_name = Some(name.to_owned());
    Taskset { subset_name, split: split.to_owned(), ..taskset(path) }
}

fn line(text: &str) -> String {
    json!({"prompt": text}).to_string()
}

/// Writes what `save_to_disk` writes: streams, and a state that lists them.
fn save_to_disk(folder: &Path, split: Option<&str>, shards: &[&[&str]]) {
    fs::create_dir_all(folder).unwrap();
    let mut files = Vec::new();
    for (number, rows) in shards.iter().enumerate() {
        let name = format!("data-{number:05}-of-{:05}.arrow", shards.len());
        let batch = columns(&[("prompt", Arc::new(StringArray::from(rows.to_vec())))]);
        arrow(&folder.join(&name), &batch, 9);
        files.push(json!({"filename": name}));
    }
    let state = json!({"_data_files": files, "_split": split, "_format_type": null});
    fs::write(folder.join("state.json"), state.to_string()).unwrap();
    let info = json!({"features": {"prompt": {"dtype": "string", "_type": "Value"}}});
    fs::write(folder.join("dataset_info.json"), info.to_string()).unwrap();
}

#[test]
fn a_saved_dataset_is_read_shard_after_shard() {
    let folder = folder();
    save_to_disk(folder.path(), Some("test"), &[&["a", "b"], &["c"]]);
    assert_eq!(prompts(taskset(folder.path())), ["a", "b", "c"]);
    assert_eq!(prompts(split(folder.path(), "test")), ["a", "b", "c"]);
    let error = refused(split(folder.path(), "validation"));
    assert!(error.to_string().contains("no split `validation`"), "{error}");
    assert!(error.to_string().contains("only the split `test`"), "{error}");

    fs::remove_file(folder.path().join("data-00001-of-00002.arrow")).unwrap();
    let error = refused(taskset(folder.path()));
    assert_eq!(error.kind, TasksetErrorKind::Missing);
    assert!(error.location.ends_with("data-00001-of-00002.arrow"), "{error}");
}

#[test]
fn a_saved_dictionary_of_datasets_has_splits() {
    let folder = folder();
    write(&folder, "dataset_dict.json", r#"{"splits": ["train", "test"]}"#);
    save_to_disk(&folder.path().join("train"), Some("train"), &[&["a"]]);
    save_to_disk(&folder.path().join("test"), Some("test"), &[&["b"]]);
    assert_eq!(prompts(taskset(folder.path())), ["a"]);
    assert_eq!(prompts(split(folder.path(), "test")), ["b"]);
    assert_refused(split(folder.path(), "tset"), "did you mean `test`?");
}

#[test]
fn files_belong_to_the_split_that_they_name() {
    let folder = folder();
    write(&folder, "data/train-00000-of-00002.jsonl", line("a"));
    write(&folder, "data/train-00001-of-00002.jsonl", line("b"));
    write(&folder, "data/train_sft-00000-of-00001.jsonl", line("c"));
    write(&folder, "data/test-00000-of-00001.jsonl", line("d"));
    write(&folder, "README.md", "# words");
    write(&folder, "dataset_infos.json", "{}");
    let here = folder.path();
    assert_eq!(prompts(taskset(here)), ["a", "b"]);
    assert_eq!(prompts(split(here, "train_sft")), ["c"]);
    assert_eq!(prompts(split(here, "test")), ["d"]);
    assert_refused(split(here, "validation"), "available: test, train, train_sft");
    assert_refused(split(here, "train[:10%]"), "a part of a split");
}

#[test]
fn subsets_are_folders_and_must_be_chosen() {
    let folder = folder();
    write(&folder, "main/train.jsonl", line("a"));
    write(&folder, "main/dev.jsonl", line("b"));
    write(&folder, "socratic/train/0000.jsonl", line("c"));
    let here = folder.path();
    assert_eq!(prompts(subset(here, "main", "train")), ["a"]);
    assert_eq!(prompts(subset(here, "main", "validation")), ["b"]);
    assert_eq!(prompts(subset(here, "socratic", "train")), ["c"]);
    assert_refused(taskset(here), "several subsets: main, socratic");
    assert_refused(subset(here, "mian", "train"), "did you mean `main`?");
}

#[test]
fn a_folder_without_splits_is_one_split() {
    let folder = folder();
    write(&folder, "one.csv", "prompt\na\n");
    write(&folder, "two.csv", "prompt\nb\n");
    assert_eq!(prompts(taskset(folder.path())), ["a", "b"]);
    assert_eq!(refused(split(folder.path(), "test")).kind, TasksetErrorKind::Missing);
    write(&folder, "three.jsonl", line("c"));
    assert_refused(taskset(folder.path()), "as JSON and as CSV");
}
