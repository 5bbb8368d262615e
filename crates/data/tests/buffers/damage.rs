//! Foreign, cut and missing files: reported by name, never skipped, never a panic.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use rollway_data::buffer::{BufferError, JsonlBuffer, ParquetBuffer};

use crate::support::{Bed, LONG, everything, lot, numbers, request, samples, take};

/// Writes two batches.
fn fill(bed: &Bed) -> PathBuf {
    let mut writer = bed.open().writer("w").unwrap();
    (0..2).for_each(|at| drop(writer.write(&lot(at * 3..at * 3 + 3)).unwrap()));
    writer.close().unwrap();
    bed.path()
}

fn shown(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<_> = files.filter(|file| file.extension().is_some()).collect();
    files.sort();
    files
}

fn assert_damaged(bed: &Bed, expected: &str) {
    match bed.try_open() {
        Err(error @ BufferError::Damaged { .. }) => {
            assert!(error.to_string().contains(expected), "{error}");
        }
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("it was opened"),
    }
}

#[test]
fn file_names_contain_order_and_key() {
    let files = shown(&fill(&Bed::parquet()));
    let name = files[1].file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("0000000002-lot_3-"), "{name}");
    assert_eq!(files.len(), 2);
}

#[test]
fn hidden_files_of_a_crashed_writer_are_shown_or_removed() {
    let bed = Bed::parquet();
    let path = fill(&bed);
    let files = shown(&path);
    // One writer crashed after indexing and before renaming, another one before indexing.
    let hidden = |name: &str| path.join(format!(".{name}.part"));
    let name = files[1].file_name().unwrap().to_str().unwrap();
    let buffer = bed.open();
    fs::rename(&files[1], hidden(name)).unwrap();
    fs::write(hidden("0000000003-x.parquet"), "PAR1").unwrap();
    // An existing reader finds the hidden file.
    assert_eq!(everything(&*buffer), samples([lot(0..3), lot(3..6)]));
    bed.open();
    assert_eq!(shown(&path), files);
}

#[test]
fn a_foreign_file_in_the_folder_is_named() {
    let bed = Bed::parquet();
    let path = fill(&bed);
    fs::write(path.join("mine.parquet"), "PAR1").unwrap();
    assert_damaged(&bed, "mine.parquet is damaged: it was not written through");
}

#[test]
fn a_file_that_changed_or_went_away_is_named() {
    let bed = Bed::parquet();
    let path = fill(&bed);
    let file = shown(&path)[1].clone();
    let bytes = fs::read(&file).unwrap();
    for changed in [bytes[..bytes.len() / 2].to_vec(), flipped(&bytes, bytes.len() / 2)] {
        fs::write(&file, changed).unwrap();
        let buffer = bed.open();
        let mut reader = buffer.reader("r").unwrap();
        reader.seek("0:0").unwrap();
        // Samples before the damage are returned.
        assert_eq!(numbers(&take(&mut *reader, 9)), [0, 1, 2]);
        let error = reader.read(&request(9, LONG)).unwrap_err();
        assert!(matches!(error, BufferError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("0000000002-lot_3-"), "{error}");
    }
    fs::remove_file(&file).unwrap();
    assert_damaged(&bed, "it is missing although it was written; restore it");
}

#[test]
fn files_without_an_index_are_indexed() {
    for bed in Bed::files() {
        let path = fill(&bed);
        let parquet = path.is_dir();
        let index = if parquet { path.join(".rollway") } else { index_of(&path) };
        fs::remove_dir_all(index).unwrap();
        let buffer = bed.open();
        assert_eq!(everything(&*buffer), samples([lot(0..3), lot(3..6)]), "{bed:?}");
        let written = buffer.writer("w").unwrap().write(&lot(3..6)).unwrap();
        assert_eq!((written.stored, written.known), (0, 3), "{bed:?}");
    }
}

#[test]
fn no_damage_to_a_foreign_parquet_file_is_more_than_an_error() {
    let bed = Bed::parquet();
    let path = fill(&bed);
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
fn data_behind_the_last_batch_is_cut_off_and_saved() {
    let bed = Bed::jsonl();
    let path = fill(&bed);
    let whole = fs::read(&path).unwrap();
    File::options().append(true).open(&path).unwrap().write_all(b"{\"eid\":{\"ba").unwrap();
    let buffer = bed.open();
    assert_eq!(fs::read(&path).unwrap(), whole);
    let cut = index_of(&path).join("cut");
    assert_eq!(fs::read_to_string(cut).unwrap(), "{\"eid\":{\"ba");
    assert_eq!(everything(&*buffer), samples([lot(0..3), lot(3..6)]));
}

#[test]
fn an_index_that_lost_acknowledged_batches_is_refused_and_cuts_nothing() {
    for bed in Bed::files() {
        let path = bed.path();
        let buffer = bed.open();
        let mut writer = buffer.writer("w").unwrap();
        writer.write(&lot(0..3)).unwrap();
        // Read while the database is open, as a killed process leaves the files.
        let index = if path.is_dir() { path.join(".rollway") } else { index_of(&path) };
        let (database, log) = (index.join("index.sqlite"), index.join("index.sqlite-wal"));
        let early = (fs::read(&database).unwrap(), fs::read(&log).unwrap());
        writer.write(&lot(3..6)).unwrap();
        drop((writer, buffer));
        let data = || if path.is_dir() { shown(&path) } else { vec![path.clone()] };
        let content = || -> Vec<_> { data().iter().map(|file| fs::read(file).unwrap()).collect() };
        let whole = content();
        for log_content in [None, Some(&early.1)] {
            fs::write(&database, &early.0).unwrap();
            let _ = fs::remove_file(&log);
            let _ = fs::remove_file(index.join("index.sqlite-shm"));
            if let Some(bytes) = log_content {
                fs::write(&log, bytes).unwrap();
            }
            assert_damaged(&bed, "but batch 2 was acknowledged");
            assert_eq!(content(), whole, "{bed:?}");
        }
    }
}

#[test]
fn changed_bytes_of_the_file_are_noticed_at_opening() {
    let bed = Bed::jsonl();
    let path = fill(&bed);
    let bytes = fs::read(&path).unwrap();
    for at in [10, bytes.len() / 2, bytes.len() - 10] {
        fs::write(&path, flipped(&bytes, at)).unwrap();
        assert_damaged(&bed, "are not those that were written");
    }
    fs::write(&path, bytes).unwrap();
    assert_eq!(everything(&*bed.open()), samples([lot(0..3), lot(3..6)]));
}

#[test]
fn lines_that_are_missing_or_no_experiences_are_reported() {
    let bed = Bed::jsonl();
    let path = fill(&bed);
    File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
    assert_damaged(&bed, "lots.jsonl is damaged: it has 100 bytes where");

    fs::remove_dir_all(index_of(&path)).unwrap();
    assert_damaged(&bed, "line 1 is truncated");
    fs::write(&path, "{\"task\":1}\n").unwrap();
    assert_damaged(&bed, "line 1: missing field `eid`");
}

#[test]
fn lines_are_plain_json_and_need_their_payload() {
    let bed = Bed::jsonl();
    bed.open().writer("w").unwrap().write(&lot(7..9)).unwrap();
    let text = fs::read_to_string(bed.path()).unwrap();
    let mut plain = String::new();
    for (line, sample) in text.lines().zip(lot(7..9).samples) {
        let mut line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(line.as_object_mut().unwrap().remove("payload").is_some());
        assert_eq!(line, sample.decode().unwrap().to_json());
        plain += &format!("{line}\n");
    }
    let bed = Bed::jsonl();
    fs::write(bed.path(), plain).unwrap();
    let error = bed.open().reader("r").unwrap().read(&request(1, LONG)).unwrap_err();
    assert!(matches!(error, BufferError::Unsupported { .. }), "{error}");
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

fn index_of(path: &Path) -> PathBuf {
    path.with_extension("jsonl.index")
}

fn flipped(bytes: &[u8], at: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at] ^= 0x10;
    bytes
}
