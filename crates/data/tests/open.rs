//! Opening whatever an address names.

use std::path::Path;
use std::time::Duration;

use rollway_data::buffer::{
    BufferAddress, BufferOptions, ReadEnd, ReadRequest, open, queue, sql, table,
};
use rollway_data::{Sample, WriteBatch};
use rollway_experience::{Eid, Experience, ExperienceFields};

fn lot(key: &str) -> WriteBatch {
    let fields = ExperienceFields {
        eid: Eid { batch: 1.into(), task: 2.into(), run: 3, step: 0, suffix: key.to_owned() },
        tokens: [1, 2].into(),
        ..ExperienceFields::default()
    };
    let experience = Experience::new(fields).expect("an experience");
    WriteBatch { key: key.into(), samples: vec![Sample::new(&experience).expect("it encodes")] }
}

fn address(folder: &Path, name: &str) -> BufferAddress {
    name.replace("FOLDER", &folder.display().to_string()).parse().expect("an address")
}

fn ask(count: usize) -> ReadRequest {
    ReadRequest { count, timeout: Duration::ZERO, min_model_version: 0, keep: false }
}

#[test]
fn every_address_opens_and_gives_back_what_it_got() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in
        ["sqlite:///FOLDER/a.db", "FOLDER/a.jsonl", "FOLDER/a.parquet", "FOLDER/b/", "queue:a"]
    {
        let address = address(folder.path(), name);
        let buffer = open(&address, &BufferOptions::default()).expect(name);
        let mut writer = buffer.writer("w").expect(name);
        assert_eq!(writer.write(&lot("00000a")).expect(name).stored, 1, "{name}");
        writer.close().expect(name);
        let taken = buffer.reader("r").and_then(|mut reader| reader.read(&ask(2))).expect(name);
        assert_eq!(
            (taken.samples.as_slice(), taken.end),
            (&lot("00000a").samples[..], ReadEnd::Finished)
        );
    }
}

#[test]
fn a_queue_is_one_for_the_whole_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = Some(folder.path().join("queue"));
    let kept = BufferOptions {
        queue: queue::QueueOptions { path, ..Default::default() },
        ..Default::default()
    };
    for (options, remembers) in [(BufferOptions::default(), false), (kept, true)] {
        let address = BufferAddress::Queue("shared".to_owned());
        let one = open(&address, &options).expect("it opens");
        let other = open(&address, &options).expect("it is the same");
        let mut writer = one.writer("w").expect("a writer");
        writer.write(&lot("00000a")).expect("room");
        let mut reader = other.reader("r").expect("a reader");
        assert_eq!(reader.read(&ask(1)).expect("a sample").samples.len(), 1);
        drop((reader, writer, one, other));
        // What was not acknowledged is there again where it is kept, and gone from memory.
        let again = open(&address, &options).expect("it opens again");
        let taken = again.reader("r").and_then(|mut reader| reader.read(&ask(1)));
        assert_eq!(taken.expect("an answer").samples.len(), usize::from(remembers));
    }
}

#[test]
fn tables_have_names_that_databases_take() {
    assert_eq!(table("experience_buffer"), sql::SqlOptions::default().table);
    assert_eq!(table("gsm8k-Buffer.2"), "gsm8k_buffer_2");
    assert_eq!(table("8k"), "_8k");
}
