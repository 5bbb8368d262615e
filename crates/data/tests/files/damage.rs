//! Files that somebody else wrote, cut or took away: named, never skipped, never a panic.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use rollway_data::buffer::{Buffer, BufferError, JsonlBuffer, ParquetBuffer, ReadEnd};

use crate::support::{Kind, everything, lot, now, samples};

fn written(kind: Kind, folder: &Path) -> PathBuf {
    let mut writer = kind.open(folder).writer("w").unwrap();
    (0..2).for_each(|number| drop(writer.write(&lot(number, 4)).unwrap()));
    writer.close().unwrap();
    kind.path(folder)
}

fn shown(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<_> = files.filter(|file| file.extension().is_some()).collect();
    files.sort();
    files
}

fn refusal(kind: Kind, folder: &Path) -> String {
    match kind.try_open(folder) {
        Err(error @ BufferError::Damaged { .. }) => error.to_string(),
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("it was opened"),
    }
}

#[test]
fn names_of_files_tell_order_and_key() {
    let folder = tempfile::tempdir().unwrap();
    let files = shown(&written(Kind::Parquet, folder.path()));
    let name = files[1].file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("0000000002-batch_1-"), "{name}");
    assert_eq!(files.len(), 2);
}

#[test]
fn what_a_dead_writer_left_hidden_is_shown_or_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(Kind::Parquet, folder.path());
    let files = shown(&path);
    // It died after the lot was entered and before the file was shown; another one before that.
    let hidden = |name: &str| path.join(format!(".{name}.part"));
    let name = files[1].file_name().unwrap().to_str().unwrap();
    let buffer = Kind::Parquet.open(folder.path());
    fs::rename(&files[1], hidden(name)).unwrap();
    fs::write(hidden("0000000003-x.parquet"), "PAR1").unwrap();
    // A reader that was there already finds it where it is.
    assert_eq!(everything(&*buffer), samples(&[lot(0, 4), lot(1, 4)]));
    Kind::Parquet.open(folder.path());
    assert_eq!(shown(&path), files);
}

#[test]
fn a_foreign_file_in_the_folder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(Kind::Parquet, folder.path());
    fs::write(path.join("mine.parquet"), "PAR1").unwrap();
    let message = refusal(Kind::Parquet, folder.path());
    assert!(message.contains("mine.parquet is damaged: it was not written through"), "{message}");
}

#[test]
fn a_file_that_changed_or_went_away_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(Kind::Parquet, folder.path());
    let file = shown(&path)[1].clone();
    let bytes = fs::read(&file).unwrap();
    for changed in [bytes[..bytes.len() / 2].to_vec(), flipped(&bytes, bytes.len() / 2)] {
        fs::write(&file, changed).unwrap();
        let buffer = Kind::Parquet.open(folder.path());
        let mut reader = buffer.reader("r").unwrap();
        reader.seek("0:0").unwrap();
        // What is before it is not held back.
        assert_eq!(now(&mut *reader, 9).samples, lot(0, 4).samples);
        let error = reader.read(&crate::support::ask(9, crate::support::LONG)).unwrap_err();
        assert!(matches!(error, BufferError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("0000000002-batch_1-"), "{error}");
    }
    fs::remove_file(&file).unwrap();
    let message = refusal(Kind::Parquet, folder.path());
    assert!(message.ends_with("it was written and is not there any more"), "{message}");
}

#[test]
fn without_an_index_what_is_there_is_taken_in() {
    for kind in Kind::BOTH {
        let folder = tempfile::tempdir().unwrap();
        let path = written(kind, folder.path());
        let index = match kind {
            Kind::Parquet => path.join(".rollway"),
            Kind::JsonLines => folder.path().join("lots.jsonl.index"),
        };
        fs::remove_dir_all(index).unwrap();
        let buffer = kind.open(folder.path());
        assert_eq!(everything(&*buffer), samples(&[lot(0, 4), lot(1, 4)]), "{kind:?}");
        let written = buffer.writer("w").unwrap().write(&lot(1, 4)).unwrap();
        assert_eq!((written.stored, written.known), (0, 3), "{kind:?}");
    }
}

#[test]
fn no_damage_to_a_foreign_parquet_file_is_more_than_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(Kind::Parquet, folder.path());
    let bytes = fs::read(&shown(&path)[0]).unwrap();
    let foreign = tempfile::tempdir().unwrap();
    let file = foreign.path().join("x.parquet");
    let step = bytes.len() / 150;
    let cut = (0..bytes.len()).step_by(step).map(|end| bytes[..end].to_vec());
    let flips = (0..bytes.len()).step_by(step).map(|at| flipped(&bytes, at));
    for damaged in cut.chain(flips) {
        fs::write(&file, damaged).unwrap();
        // A flipped bit may be in a value: then it is another value.
        match ParquetBuffer::open(foreign.path()) {
            Ok(_) => fs::remove_dir_all(foreign.path().join(".rollway")).unwrap(),
            Err(BufferError::Damaged { storage, .. }) => assert!(storage.ends_with("x.parquet")),
            Err(error) => panic!("another error: {error}"),
        }
    }
}

#[test]
fn what_is_behind_the_last_lot_is_cut_off_and_kept_aside() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(Kind::JsonLines, folder.path());
    let whole = fs::read(&path).unwrap();
    File::options().append(true).open(&path).unwrap().write_all(b"{\"eid\":{\"ba").unwrap();
    let buffer = Kind::JsonLines.open(folder.path());
    assert_eq!(fs::read(&path).unwrap(), whole);
    let cut = folder.path().join("lots.jsonl.index/cut");
    assert_eq!(fs::read_to_string(cut).unwrap(), "{\"eid\":{\"ba");
    assert_eq!(everything(&*buffer), samples(&[lot(0, 4), lot(1, 4)]));
}

#[test]
fn lines_that_are_missing_or_no_experiences_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(Kind::JsonLines, folder.path());
    File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
    let message = refusal(Kind::JsonLines, folder.path());
    assert!(message.contains("lots.jsonl is damaged: it has 100 bytes where"), "{message}");

    fs::remove_dir_all(folder.path().join("lots.jsonl.index")).unwrap();
    let message = refusal(Kind::JsonLines, folder.path());
    assert!(message.ends_with("line 1 is cut off"), "{message}");
    fs::write(&path, "{\"task\":1}\n").unwrap();
    let message = refusal(Kind::JsonLines, folder.path());
    assert!(message.contains("line 1: missing field `eid`"), "{message}");
}

#[test]
fn lines_are_plain_json_and_those_for_people_cannot_be_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.json");
    let buffer = JsonlBuffer::open_plain(&path).unwrap();
    let mut writer = buffer.writer("w").unwrap();
    writer.write(&lot(7, 2)).unwrap();
    writer.close().unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let expected: Vec<serde_json::Value> =
        lot(7, 2).samples.iter().map(|sample| sample.decode().unwrap().to_json()).collect();
    assert_eq!(lines, expected);
    let mut reader = buffer.reader("r").unwrap();
    let error = reader.read(&crate::support::ask(1, crate::support::LONG)).unwrap_err();
    assert!(matches!(error, BufferError::Unsupported { .. }), "{error}");

    let whole = JsonlBuffer::open(folder.path().join("whole.jsonl")).unwrap();
    whole.writer("w").unwrap().write(&lot(7, 2)).unwrap();
    let text = fs::read_to_string(folder.path().join("whole.jsonl")).unwrap();
    for (line, mut expected) in text.lines().zip(expected) {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        expected["payload"] = line["payload"].clone();
        assert_eq!(line, expected);
    }
    assert_eq!(now(&mut *whole.reader("r").unwrap(), 9).end, ReadEnd::TimedOut);
}

#[test]
fn other_paths_are_refused_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("lots.txt");
    let message = JsonlBuffer::open(&file).unwrap_err().to_string();
    assert!(message.ends_with("has to end with .jsonl or .json"), "{message}");
    fs::write(&file, "").unwrap();
    let message = ParquetBuffer::open(&file).unwrap_err().to_string();
    assert!(message.ends_with("it is a file; give the folder in which it is"), "{message}");
}

fn flipped(bytes: &[u8], at: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at] ^= 0x10;
    bytes
}
