//! Errors state location, problem and remedy.

use std::fs::File;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, StringArray};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use arrow_schema::{DataType, Field};
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use proptest::prelude::*;
use rollway_config::{DataSelector, Format, SelectorType, Taskset};
use rollway_tasksets::{TasksetErrorKind as Kind, TasksetOpener};
use serde_json::json;

use crate::help::{
    arrow, assert_refused, buffer, columns, folder, parquet, read, refused, rows, selected,
    taskset, write,
};

#[test]
fn a_path_that_is_not_there_names_the_nearest_one() {
    let folder = folder();
    write(&folder, "tasks.jsonl", "{}");
    let error = refused(taskset(&folder.path().join("task.jsonl")));
    assert_eq!(error.kind, Kind::Missing);
    assert!(error.hint.contains("tasks.jsonl`?"), "{error}");
    let error = refused(Taskset { path: Some("owner/nothing".into()), ..Taskset::default() });
    assert!(error.hint.contains("--repo-type dataset owner/nothing"), "{error}");
    assert_refused(Taskset::default(), "it has no `path`");
}

#[test]
fn a_set_without_rows_is_refused() {
    let folder = folder();
    for (name, text) in
        [("a.jsonl", "\n \n"), ("b.json", "[ ]"), ("c.csv", "prompt\n"), ("d.jsonl", "")]
    {
        let error = refused(taskset(&write(&folder, name, text)));
        assert_eq!(error.kind, Kind::Empty, "{error}");
        assert!(error.location.ends_with(name), "{error}");
    }
    let error = refused(taskset(&write(&folder, "empty/x.txt", "")));
    assert_eq!(error.kind, Kind::Unsupported, "{error}");
    let error = refused(taskset(&folder.path().join("empty")));
    assert!(error.what.contains("the folder has no data files"), "{error}");
}

#[test]
fn a_bad_row_is_named_with_its_line() {
    let folder = folder();
    for (name, text, line, expected) in [
        ("a.jsonl", "{\"prompt\": 1}\n\n{\"prompt\": }\n", 3, "correct the row"),
        ("b.jsonl", "{\"prompt\": 1}\n[1]\n", 2, "every row is an object"),
        ("c.jsonl", "{\"prompt\": NaN}\n", 1, "no NaN"),
        ("d.jsonl", "{\n\"prompt\": 1\n}", 1, "a line must be one whole object"),
        ("e.json", "[\n{\"prompt\": 1},\n{\"prompt\": x}\n]", 3, "correct the row"),
        ("f.json", "[{\"prompt\": 1},\n 3]", 2, "a list of objects is read"),
        ("g.json", "[{\"prompt\": 1},\n]", 2, "a list of objects is read"),
        ("h.json", "[{\"prompt\": 1}\n", 2, "a list of objects is read"),
        ("i.json", "[{\"prompt\": 1}]\n[]", 2, "a list of objects is read"),
        ("j.csv", "prompt,x\na,b\nc\n", 3, "into quotes"),
        ("k.csv", "prompt,prompt\na,b\n", 1, "rename one"),
    ] {
        let error = refused(taskset(&write(&folder, name, text)));
        assert_eq!(error.kind, Kind::Row, "{error}");
        assert!(error.location.ends_with(&format!("{name}, line {line}")), "{error}");
        assert!(error.hint.contains(expected), "{error}");
    }
    let error = refused(taskset(&write(&folder, "l.csv", b"prompt\n\xff\n")));
    assert!(error.hint.contains("UTF-8"), "{error}");
}

#[test]
fn rows_that_could_not_be_read_later_are_refused_at_the_start() {
    let folder = folder();
    let deep = format!("{{\"prompt\": 1}}\n{{\"prompt\": {}{}}}", "[".repeat(127), "]".repeat(127));
    for (name, text, expected) in [
        ("a.jsonl", &b"{\"prompt\": 1}\n{\"prompt\": \"\xff\"}"[..], "UTF-8"),
        ("b.jsonl", b"{\"prompt\": 1}\n{\"prompt\": {\"\xff\": 1}}", "UTF-8"),
        ("c.jsonl", deep.as_bytes(), "127 levels"),
        ("d.jsonl", b"{\"prompt\": 1}\n{\"prompt\": 1e999}", "correct the row"),
        ("e.jsonl", b"{\"prompt\": 1}\n{\"prompt\": \"\\ud800\"}", "correct the row"),
    ] {
        let error = refused(taskset(&write(&folder, name, text)));
        assert_eq!(error.kind, Kind::Row, "{error}");
        assert!(error.location.ends_with(&format!("{name}, line 2")), "{error}");
        assert!(error.hint.contains(expected), "{error}");
    }
    let deep = format!("{{\"prompt\": \"a\", \"x\": {}{}}}", "[".repeat(126), "]".repeat(126));
    let buffer = buffer(vec![taskset(&write(&folder, "f.jsonl", deep))]);
    let mut tasks = TasksetOpener::new(&buffer).without_prompts().train().unwrap();
    assert_eq!(tasks.all().map(Result::unwrap).count(), 1);
}

#[test]
fn a_pipe_is_refused_at_once() {
    let folder = folder();
    for name in ["a.jsonl", "a.csv", "a.parquet", "a.arrow", "a"] {
        let path = folder.path().join(name);
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let error = refused(taskset(&path));
        assert_eq!(error.what, "not a regular file", "{error}");
    }
    // In a folder it is a file of the dataset.
    let inner = folder.path().join("set");
    std::fs::create_dir(&inner).unwrap();
    let made = std::process::Command::new("mkfifo").arg(inner.join("train.jsonl")).status();
    assert!(made.unwrap().success());
    let error = refused(taskset(&inner));
    assert!(error.what.contains("not a regular file"), "{error}");
}

/// Mostly invalid lists of objects.
fn nearly_a_list() -> impl Strategy<Value = String> {
    let parts = ["{\"a\": 1}", "{}", ",", ",", "[", "]", "{", "}", "\"", "\\", " ", "\n", "3"];
    let whole = r#"{"b": ["]},{[\"\\", {"c": [1, {}]}]}"#;
    let part = prop_oneof![3 => prop::sample::select(parts.to_vec()), 2 => Just(whole)];
    let separated = prop::collection::vec(Just(whole), 1..4).prop_map(|it| it.join(", "));
    let loose = prop::collection::vec(part, 0..8).prop_map(|it| it.concat());
    (prop_oneof![loose, separated], "[ ]?").prop_map(|(text, end)| format!("[{text}]{end}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_list_is_read_if_and_only_if_it_is_json(text in nearly_a_list()) {
        let folder = folder();
        let buffer = buffer(vec![taskset(&write(&folder, "a.json", &text))]);
        let opened = TasksetOpener::new(&buffer).without_prompts().train();
        match serde_json::from_str::<Vec<serde_json::Map<_, _>>>(&text) {
            Ok(rows) if rows.is_empty() => prop_assert_eq!(opened.unwrap_err().kind, Kind::Empty),
            Ok(rows) => {
                let mut tasks = opened.unwrap();
                let found: Vec<_> = tasks.all().map(|drawn| drawn.unwrap().task.raw).collect();
                prop_assert_eq!(found, rows);
            }
            Err(_) => prop_assert_eq!(opened.unwrap_err().kind, Kind::Row),
        }
    }

    #[test]
    fn a_damaged_stream_is_read_or_refused(at in 0_usize..3000, byte in any::<u8>(), cut: bool) {
        let folder = folder();
        let texts = StringArray::from_iter((0..40).map(|at| Some("x".repeat(at))));
        let batch = columns(&[("prompt", Arc::new(texts))]);
        let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        let mut bytes = writer.into_inner().unwrap();
        let at = at % bytes.len();
        bytes[at] = byte;
        bytes.truncate(if cut { at } else { bytes.len() });
        let buffer = buffer(vec![taskset(&write(&folder, "a.arrow", bytes))]);
        match TasksetOpener::new(&buffer).without_prompts().train() {
            Ok(mut tasks) => prop_assert!(tasks.all().count() as u64 == tasks.len()),
            Err(error) => prop_assert!(error.location.ends_with("a.arrow"), "{}", error),
        }
    }
}

#[test]
fn damaged_files_of_columns_are_refused_without_a_panic() {
    let folder = folder();
    for name in ["a.parquet", "a.arrow", "b.arrow"] {
        let text: &[u8] = if name == "b.arrow" { b"ARROW1\0\0rest" } else { b"PAR1 and the rest" };
        let error = refused(taskset(&write(&folder, name, text)));
        assert_eq!(error.kind, Kind::Row, "{error}");
        assert!(error.location.ends_with(name), "{error}");
    }
}

#[test]
fn a_key_that_no_row_has_names_the_nearest_one() {
    let folder = folder();
    for (name, text) in [
        ("a.jsonl", json!({"question": "x", "answer": 1}).to_string()),
        ("a.csv", "question,answer\nx,1\n".to_owned()),
    ] {
        let path = write(&folder, name, text);
        let error = refused(taskset(&path));
        assert_eq!(error.kind, Kind::Key, "{error}");
        assert_eq!(error.what, "`format.prompt_key` is `prompt`, but no row has that field");
        assert_eq!(error.hint, "available: answer, question");
        let format = Format { prompt_key: "qestion".into(), ..Format::default() };
        let error = refused(Taskset { format, ..taskset(&path) });
        assert_eq!(error.hint, "did you mean `question`?");
        // A workflow that reads the row itself needs no prompt.
        assert_eq!(read(taskset(&path)).len(), 1);
    }
}

#[test]
fn a_row_without_a_prompt_is_found_before_the_first_batch() {
    let folder = folder();
    let parts = arrow_array::StructArray::from(vec![(
        Arc::new(Field::new("x", DataType::Int64, true)),
        Arc::new(Int64Array::from(vec![None, None, Some(1)])) as _,
    )]);
    let texts = StringArray::from(vec![Some("a"), None, Some("b")]);
    let batch = columns(&[("parts", Arc::new(parts)), ("prompt", Arc::new(texts))]);
    parquet(&folder.path().join("a.parquet"), &batch, WriterProperties::default());
    arrow(&folder.path().join("a.arrow"), &batch, 3);
    arrow(&folder.path().join("a.feather"), &batch, 3);
    write(&folder, "a.csv", "prompt,x\na,1\n,2\nb,3\n");
    for (name, location) in [
        ("a.parquet", "a.parquet, row 2"),
        ("a.arrow", "a.arrow, row 2"),
        ("a.feather", "a.feather, row 2"),
        ("a.csv", "a.csv, record 2"),
    ] {
        let error = refused(taskset(&folder.path().join(name)));
        assert_eq!((error.kind, error.what.as_str()), (Kind::Row, "the row has no `prompt`"));
        assert!(error.location.ends_with(location), "{error}");
    }
}

#[test]
fn a_footer_that_names_more_than_the_file_is_refused_before_memory_is_allocated() {
    let folder = folder();
    let path = folder.path().join("a.feather");
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
    arrow(&path, &columns(&[("prompt", texts)]), 2);
    let bytes = std::fs::read(&path).unwrap();
    // The length of the footer stands before the magic.
    let at = bytes.len() - 10;
    let size = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let forged = |at: usize, number: u32| {
        let mut forged = bytes.clone();
        forged[at..at + 4].copy_from_slice(&number.to_le_bytes());
        std::fs::write(&path, forged).unwrap();
        assert_refused(taskset(&path), "beyond the end of the file");
    };
    forged(at, 1 << 30);
    forged(at, u32::MAX);
    // The length of the only batch: the last eight bytes of its block, which is the only place of
    // the footer with this number.
    let footer = &bytes[at - size..at];
    let body = (0..footer.len() - 8).rev().find(|at| {
        let number = u64::from_le_bytes(footer[*at..*at + 8].try_into().unwrap());
        number > 0 && number.is_multiple_of(64) && number < bytes.len() as u64
    });
    forged(at - size + body.unwrap(), 1 << 30);
}

#[test]
fn selectors_refuse_what_they_do_not_know() {
    let folder = folder();
    let path = rows(&folder, "a.jsonl", 3);
    let with = |selector_type, keys: &[&str], kwargs: serde_json::Value| {
        let data_selector = DataSelector {
            selector_type,
            feature_keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            kwargs: kwargs.as_object().unwrap().clone(),
            ..DataSelector::default()
        };
        refused(Taskset { data_selector, ..taskset(&path) }).to_string()
    };
    let (difficulty, easy) = (SelectorType::DifficultyBased, SelectorType::OfflineEasy2hard);
    let pair = &["weak", "strong"];
    for (error, expected) in [
        (with(difficulty, pair, json!({"lambda": 1})), "did you mean `lamb`?"),
        (with(difficulty, pair, json!({"rho": 2})), "from 0 to 1"),
        (with(difficulty, pair, json!({"tau": -1})), "not below 0"),
        (with(difficulty, pair, json!({"do_sample": 1})), "true or false"),
        (with(difficulty, &["weak"], json!({})), "2 are needed"),
        (with(difficulty, &["weak", "stong"], json!({})), "did you mean `strong`?"),
        (with(easy, &[], json!({})), "1 is needed"),
        (with(easy, &["prompt"], json!({})), "needs a number"),
        (with(SelectorType::Shuffle, &[], json!({"m": 1})), "takes no kwargs"),
    ] {
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_batch_that_can_never_be_full_is_refused() {
    let folder = folder();
    let path = rows(&folder, "a.jsonl", 3);
    let mut tasks = TasksetOpener::new(&buffer(vec![taskset(&path)])).train().unwrap();
    let error = tasks.next_batch(4).unwrap_err();
    assert_eq!(error.location, "buffer.batch_size");
    assert!(error.what.contains("3 rows × 1 epochs"), "{error}");
    assert!(tasks.next_batch(0).is_err());
    assert_eq!(tasks.next_batch(3).unwrap().unwrap().len(), 3);
}

#[test]
fn a_file_that_changes_in_use_is_an_error_and_nothing_is_skipped() {
    let folder = folder();
    let path = rows(&folder, "a.jsonl", 10);
    let text = std::fs::read(&path).unwrap();
    let set = selected(&path, SelectorType::Shuffle, 3);
    let mut tasks = TasksetOpener::new(&buffer(vec![set])).train().unwrap();
    let before = tasks.state();
    std::fs::write(&path, &text[..5]).unwrap();
    let error = tasks.next_batch(4).unwrap_err();
    assert_eq!(error.kind, Kind::Io);
    assert!(error.what.contains("changed while it was in use"), "{error}");
    assert_eq!(tasks.state(), before);
    std::fs::write(&path, &text).unwrap();
    assert!(tasks.next_batch(4).unwrap().is_some());

    // Changed rows of the same length are detected.
    let set = || TasksetOpener::new(&buffer(vec![taskset(&path)])).train().unwrap();
    let mut tasks = set();
    let changed = String::from_utf8(text).unwrap().replace("a.jsonl 3", "A.jsonl 3");
    std::fs::write(&path, changed).unwrap();
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(9);
    File::options().append(true).open(&path).unwrap().set_modified(later).unwrap();
    assert_eq!(tasks.next_batch(4).unwrap_err().kind, Kind::Io);
    assert!(set().next_batch(4).unwrap().is_some());
}

/// Replaces the one occurrence of some bytes.
fn patch(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    let found: Vec<usize> =
        (0..=bytes.len() - from.len()).filter(|at| bytes[*at..].starts_with(from)).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    bytes[found[0]..][..to.len()].copy_from_slice(to);
}

#[test]
fn sizes_after_decompression_are_checked_before_it() {
    let folder = folder();
    // In Arrow each compressed buffer begins with its size.
    let text = "x".repeat(1_234_567);
    let batch = columns(&[("prompt", Arc::new(StringArray::from(vec![text.as_str()])))]);
    let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::ZSTD));
    let options = options.unwrap();
    let mut stream =
        StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options.clone()).unwrap();
    stream.write(&batch).unwrap();
    let mut file = FileWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
    file.write(&batch).unwrap();
    for (name, mut bytes) in
        [("a.arrow", stream.into_inner().unwrap()), ("b.arrow", file.into_inner().unwrap())]
    {
        let path = write(&folder, name, &bytes);
        assert_eq!(read(taskset(&path)), [json!({ "prompt": text })]);
        // The limit of the taskset.
        let error = refused(Taskset { max_unpacked_bytes: 1_000_000, ..taskset(&path) });
        let expected = "above the limit of 1000000 (`max_unpacked_bytes` of the taskset)";
        assert!(error.what.contains(expected), "{error}");
        // The size stands before the magic number of ZSTD.
        let buffer = [&1_234_567_i64.to_le_bytes()[..], &[0x28, 0xb5, 0x2f, 0xfd]].concat();
        patch(&mut bytes, &buffer, &(1_i64 << 40).to_le_bytes());
        let error = refused(taskset(&write(&folder, name, bytes)));
        assert_eq!(error.kind, Kind::Row, "{error}");
        assert!(
            error.what.contains("a batch has 1099511627776 bytes after decompression"),
            "{error}"
        );
    }
}

#[test]
fn pages_that_claim_too_much_are_refused_before_they_are_unpacked() {
    let folder = folder();
    let path = folder.path().join("a.parquet");
    // Long enough that the size in the header has as many bytes as a larger one.
    let text = "x".repeat(135 << 20);
    let batch = columns(&[("prompt", Arc::new(StringArray::from(vec![text.as_str()])))]);
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .build();
    parquet(&path, &batch, properties);
    let small = Taskset { max_unpacked_bytes: 1 << 20, ..taskset(&path) };
    let small = buffer(vec![small]);
    let error = TasksetOpener::new(&small).train().and_then(|mut tasks| tasks.next_batch(1));
    assert!(error.unwrap_err().what.contains("above the limit of 1048576"));
    let mut bytes = std::fs::read(&path).unwrap();
    let size = |size: u64| {
        let zigzag = size << 1;
        let groups = (0..5).map(|group| (zigzag >> (7 * group)) as u8 & 0x7f);
        let mut bytes: Vec<u8> = groups.map(|group| group | 0x80).collect();
        bytes[4] &= 0x7f;
        [&[0x15][..], &bytes].concat()
    };
    let len = text.len() as u64;
    let is_there = |size: &Vec<u8>| bytes.windows(6).any(|window| window == size);
    // The page has the length of the text and the levels, too.
    let found = (len..len + 64).map(size).find(is_there).unwrap();
    patch(&mut bytes, &found, &size(2_000_000_000));
    let buffer = buffer(vec![taskset(&write(&folder, "b.parquet", bytes))]);
    let opened = TasksetOpener::new(&buffer).train();
    let error = opened.and_then(|mut tasks| tasks.next_batch(1)).unwrap_err();
    assert_eq!(error.kind, Kind::Row, "{error}");
    assert!(error.what.contains("a page has 2000000000 bytes after decompression"), "{error}");
}
