//! Readers of a buffer that is elsewhere: over sockets, cuts and restarts.

#![expect(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use rollway_base::{Address, Secret};
use rollway_data::buffer::queue::QueueOptions;
use rollway_data::buffer::{
    Buffer, BufferError, ExperienceQueue, ExperienceReader, JsonlBuffer, ParquetBuffer, ReadEnd,
    ReadRequest, ReadResult, SqliteBuffer, sql,
};
use rollway_data::reader::{
    ReaderServer, ReaderServerOptions, RemoteReader, RetryTimeouts, connect, serve,
};
use rollway_data::{Sample, WriteBatch};
use rollway_experience::{Eid, Experience, ExperienceFields};
use rollway_protocol::RefusalCode;
use rollway_protocol::reader::proto::{self, buffer_message, trainer_message};
use rollway_protocol::reader::{ReaderLimits, ReaderLink};

const LONG: Duration = Duration::from_secs(60);

fn ask(count: usize) -> ReadRequest {
    ReadRequest { count, timeout: LONG, min_model_version: 0, keep: false }
}

fn sample(number: usize) -> Sample {
    let fields = ExperienceFields {
        eid: Eid { run: number as u64, suffix: format!("{number:04}"), ..Eid::default() },
        tokens: vec![1, 2, number as i32].into(),
        prompt_length: 1,
        ..ExperienceFields::default()
    };
    Sample::new(&Experience::new(fields).unwrap()).unwrap()
}

/// Returns the number of a sample from its name.
fn number_of(id: &str) -> usize {
    id.rsplit('/').next().unwrap().parse().unwrap()
}

fn fill(buffer: &dyn Buffer, count: usize) {
    let mut writer = buffer.writer("explorer").unwrap();
    for first in (0..count).step_by(10) {
        let samples = (first..count.min(first + 10)).map(sample).collect();
        writer.write(&WriteBatch { key: first.to_string().into(), samples }).unwrap();
    }
    writer.close().unwrap();
}

fn queue(count: usize) -> Arc<ExperienceQueue> {
    let queue = ExperienceQueue::open(QueueOptions::default()).unwrap();
    fill(&*queue, count);
    queue
}

fn unix(folder: &Path) -> ReaderServerOptions {
    let address = Address::Unix(folder.join("buffer.sock"));
    ReaderServerOptions {
        address,
        secret: Some(Secret::new("s").unwrap()),
        ..ReaderServerOptions::default()
    }
}

fn join(served: &ReaderServer, name: &str) -> RemoteReader {
    connect(&served.url(), served.secret().clone(), name, RetryTimeouts::default()).unwrap()
}

fn ids(taken: &ReadResult) -> Vec<usize> {
    taken.samples.iter().map(|sample| number_of(&sample.id)).collect()
}

/// Reads to the end of data.
fn rest(reader: &mut dyn ExperienceReader, count: usize) -> Vec<usize> {
    let mut all = Vec::new();
    loop {
        let taken = reader.read(&ask(count)).unwrap();
        all.extend(ids(&taken));
        if taken.end == ReadEnd::Finished {
            return all;
        }
    }
}

#[test]
fn samples_come_whole_and_in_order_over_both_kinds_of_sockets() {
    let folder = tempfile::tempdir().unwrap();
    for options in [ReaderServerOptions::default(), unix(folder.path())] {
        let served = serve(queue(100), options).unwrap();
        let mut reader = join(&served, "trainer");
        let taken = reader.read(&ask(7)).unwrap();
        let expected: Vec<Sample> = (0..7).map(sample).collect();
        assert_eq!((taken.samples, taken.stale, taken.end), (expected, 0, ReadEnd::Full));
        assert_eq!(rest(&mut reader, 7), Vec::from_iter(7..100));
        assert_eq!(reader.read(&ask(7)).unwrap().end, ReadEnd::Finished);
    }
}

#[test]
fn large_samples_come_in_many_messages() {
    let queue = ExperienceQueue::open(QueueOptions::default()).unwrap();
    let large = |number: u8| Sample {
        payload: Bytes::from(vec![number; 700_000]),
        reward: Some(0.5),
        ..sample(number.into())
    };
    let samples: Vec<Sample> = (0..9).map(large).collect();
    let mut writer = queue.writer("explorer").unwrap();
    writer.write(&WriteBatch { key: "large".into(), samples: samples.clone() }).unwrap();
    let limits = ReaderLimits { in_flight_bytes: 1 << 20, ..ReaderLimits::default() };
    let served =
        serve(queue, ReaderServerOptions { limits, ..ReaderServerOptions::default() }).unwrap();
    assert_eq!(join(&served, "trainer").read(&ask(9)).unwrap().samples, samples);
}

#[test]
fn strangers_are_refused_and_counted() {
    let served = serve(queue(1), ReaderServerOptions::default()).unwrap();
    let wrong = Secret::new("wrong").unwrap();
    let error = connect(&served.url(), wrong, "trainer", RetryTimeouts::default()).unwrap_err();
    assert!(matches!(error, BufferError::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("secret"), "{error}");
    assert_eq!(served.refused(), [(RefusalCode::BadSecret, 1)]);
}

#[test]
fn there_are_limits() {
    let limits = ReaderLimits { connections: 1, ..ReaderLimits::default() };
    let options = ReaderServerOptions {
        limits,
        count: 5,
        names: 1,
        held_bytes: 0,
        ..ReaderServerOptions::default()
    };
    let served = serve(queue(20), options).unwrap();
    let mut first = join(&served, "trainer");
    let once = RetryTimeouts { reconnect_timeout: Duration::ZERO, ..RetryTimeouts::default() };
    let another = connect(&served.url(), served.secret().clone(), "trainer", once.clone());
    assert!(another.unwrap_err().to_string().contains("1 connections"));
    assert!(matches!(first.read(&ask(6)), Err(BufferError::Unsupported { .. })));
    assert_eq!(ids(&first.read(&ask(5)).unwrap()), [0, 1, 2, 3, 4]);
    let keep = ReadRequest { keep: true, ..ask(5) };
    assert!(matches!(first.read(&keep), Err(BufferError::Full { .. })));
    assert_eq!(ids(&first.read(&ask(5)).unwrap()), [5, 6, 7, 8, 9]);
    drop(first);
    // The server may not have heard yet that the first one is gone.
    let error = loop {
        let other = connect(&served.url(), served.secret().clone(), "other", once.clone());
        let error = other.unwrap_err().to_string();
        if !error.contains("1 connections") {
            break error;
        }
    };
    assert!(error.contains("names"), "{error}");
}

#[test]
fn a_reader_goes_on_after_a_restart_of_its_server() {
    type Open = fn(&Path) -> Arc<dyn Buffer>;
    let storages: [Open; 4] = [
        |folder| {
            let path = folder.join("x.db");
            Arc::new(
                SqliteBuffer::open(path.to_str().unwrap(), sql::SqlOptions::default()).unwrap(),
            )
        },
        |folder| {
            let path = Some(folder.join("queue"));
            ExperienceQueue::open(QueueOptions { path, ..QueueOptions::default() }).unwrap()
        },
        |folder| Arc::new(JsonlBuffer::open(folder.join("x.jsonl")).unwrap()),
        |folder| Arc::new(ParquetBuffer::open(folder.join("x.parquet")).unwrap()),
    ];
    for (at, open) in storages.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let mut buffer = open(folder.path());
        fill(&*buffer, 60);
        let mut served = serve(Arc::clone(&buffer), unix(folder.path())).unwrap();
        let mut reader = join(&served, "trainer");
        let (mut all, mut positions) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            all.extend(ids(&reader.read(&ask(8)).unwrap()));
            positions.push(reader.position());
            drop(served);
            drop(buffer);
            buffer = open(folder.path());
            served = serve(Arc::clone(&buffer), unix(folder.path())).unwrap();
        }
        // A queue counts its writers anew.
        buffer.writer("explorer").unwrap().close().unwrap();
        all.extend(rest(&mut reader, 8));
        assert_eq!(all, Vec::from_iter(0..60));

        drop(reader);
        // What was acknowledged has left a queue; elsewhere one can go back to it.
        if at != 1 {
            let mut again = join(&served, "trainer");
            again.seek(&positions[1]).unwrap();
            assert_eq!(rest(&mut again, 8), Vec::from_iter(16..60));
        }
    }
}

/// A trainer that says exactly what a test wants it to say.
struct Raw {
    runtime: tokio::runtime::Runtime,
    link: ReaderLink,
}

impl Raw {
    fn join(served: &ReaderServer, session: &str) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let hello = proto::Hello {
            name: "trainer".to_owned(),
            session: session.to_owned(),
            ..proto::Hello::default()
        };
        let link = ReaderLink::connect(served.address(), served.secret(), hello, LONG, 1 << 20);
        let (link, _) = runtime.block_on(link).unwrap();
        Self { runtime, link }
    }

    fn ask(&mut self, number: u64, count: u64) {
        let read = proto::Read { number, count, timeout_ms: 60_000, ..proto::Read::default() };
        let read = trainer_message::Kind::Read(read);
        self.runtime.block_on(self.link.send(read)).unwrap();
    }

    fn read(&mut self, number: u64, count: u64) -> Vec<usize> {
        self.ask(number, count);
        let mut ids = Vec::new();
        loop {
            match self.runtime.block_on(self.link.recv()).unwrap() {
                buffer_message::Kind::Samples(samples) => {
                    ids.extend(samples.samples.iter().map(|sample| number_of(&sample.id)));
                }
                buffer_message::Kind::Done(_) => return ids,
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn an_answer_that_was_lost_comes_again_and_what_was_acknowledged_does_not() {
    let served = serve(queue(30), ReaderServerOptions::default()).unwrap();
    let mut raw = Raw::join(&served, "one");
    assert_eq!(raw.read(1, 4), [0, 1, 2, 3]);
    assert_eq!(raw.read(2, 4), [4, 5, 6, 7]);
    drop(raw);
    let mut raw = Raw::join(&served, "one");
    assert_eq!(raw.read(2, 4), [4, 5, 6, 7]);
    // Also if fewer are asked for now, and then none is passed over.
    drop(raw);
    let mut raw = Raw::join(&served, "one");
    assert_eq!(raw.read(2, 3), [4, 5, 6]);
    assert_eq!(raw.read(3, 4), [7, 8, 9, 10]);
}

#[test]
fn what_a_lost_trainer_held_goes_to_the_next_of_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.db");
    let database = SqliteBuffer::open(path.to_str().unwrap(), sql::SqlOptions::default()).unwrap();
    fill(&database, 30);
    let buffers: [Arc<dyn Buffer>; 2] = [queue(30), Arc::new(database)];
    for buffer in buffers {
        let options =
            ReaderServerOptions { grace: Duration::ZERO, ..ReaderServerOptions::default() };
        let served = serve(buffer, options).unwrap();
        let mut raw = Raw::join(&served, "one");
        assert_eq!(raw.read(1, 4), [0, 1, 2, 3]);
        assert_eq!(raw.read(2, 4), [4, 5, 6, 7]);
        let mut other = join(&served, "trainer");
        assert_eq!(ids(&other.read(&ask(4)).unwrap()), [8, 9, 10, 11]);
        drop(raw);
        // Data does not end before it has come, whenever the loss is noticed.
        let mut all = rest(&mut other, 5);
        all.sort_unstable();
        let expected: Vec<usize> = (4..8).chain(12..30).collect();
        assert_eq!(all, expected);
    }
}

#[test]
fn readers_of_one_name_share() {
    let served = serve(queue(200), ReaderServerOptions::default()).unwrap();
    let read = || {
        let mut reader = join(&served, "trainer");
        let all = rest(&mut reader, 3);
        reader.read(&ask(0)).unwrap();
        all
    };
    let all: Vec<usize> = thread::scope(|scope| {
        let readers = [scope.spawn(read), scope.spawn(read)];
        readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect()
    });
    assert_eq!(all.len(), 200);
    assert_eq!(all.into_iter().collect::<BTreeSet<_>>().len(), 200);
}

#[test]
fn what_any_of_them_acknowledged_does_not_come_again() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Arc::new(JsonlBuffer::open(folder.path().join("x.jsonl")).unwrap());
    let buffer = open();
    fill(&*buffer, 20);
    let served = serve(buffer, ReaderServerOptions::default()).unwrap();
    let (mut one, mut two) = (join(&served, "trainer"), join(&served, "trainer"));
    assert_eq!(ids(&one.read(&ask(4)).unwrap()), [0, 1, 2, 3]);
    assert_eq!(ids(&two.read(&ask(4)).unwrap()), [4, 5, 6, 7]);
    one.read(&ask(0)).unwrap();
    drop(one);
    assert_eq!(ids(&two.read(&ask(4)).unwrap()), [8, 9, 10, 11]);
    two.read(&ask(0)).unwrap();
    drop(two);
    drop(served);
    let mut reader = open().reader("trainer").unwrap();
    assert_eq!(rest(&mut *reader, 9), Vec::from_iter(12..20));
}

#[test]
fn a_position_leaves_out_nothing_that_others_hold() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.db");
    let database = SqliteBuffer::open(path.to_str().unwrap(), sql::SqlOptions::default()).unwrap();
    fill(&database, 30);
    let served = serve(Arc::new(database), ReaderServerOptions::default()).unwrap();
    let (mut one, mut two) = (join(&served, "trainer"), join(&served, "trainer"));
    assert_eq!(ids(&one.read(&ask(4)).unwrap()), [0, 1, 2, 3]);
    assert_eq!(ids(&two.read(&ask(4)).unwrap()), [4, 5, 6, 7]);
    // The first four are in the hands of another.
    let position = two.position();
    two.seek(&position).unwrap();
    assert_eq!(ids(&two.read(&ask(2)).unwrap()), [0, 1]);
    // What that one held was taken back.
    assert_eq!(ids(&one.read(&ask(2)).unwrap()), [2, 3]);
}

#[test]
fn a_read_that_waits_ends_with_data_and_with_its_trainer() {
    let queue = ExperienceQueue::open(QueueOptions::default()).unwrap();
    let mut writer = queue.writer("explorer").unwrap();
    let shared: Arc<dyn Buffer> = Arc::<ExperienceQueue>::clone(&queue);
    let options = ReaderServerOptions { grace: Duration::ZERO, ..ReaderServerOptions::default() };
    let served = serve(shared, options).unwrap();
    let mut gone = Raw::join(&served, "gone");
    gone.ask(1, 3);
    drop(gone);
    let mut reader = join(&served, "trainer");
    let reading = thread::spawn(move || {
        let samples = ids(&reader.read(&ask(5)).unwrap());
        let end = reader.read(&ask(1)).unwrap().end;
        (samples, end)
    });
    // The first to ask is gone before or after it got them; either way they come to the second.
    writer.write(&WriteBatch { key: "a".into(), samples: (0..3).map(sample).collect() }).unwrap();
    writer.close().unwrap();
    let (mut samples, end) = reading.join().unwrap();
    samples.sort_unstable();
    assert_eq!((samples, end), (vec![0, 1, 2], ReadEnd::Finished));
}

#[test]
fn old_versions_are_passed_over_and_counted() {
    let queue = ExperienceQueue::open(QueueOptions::default()).unwrap();
    let mut writer = queue.writer("explorer").unwrap();
    let versions = (0..10).map(|n| Sample { model_version: n as u64, ..sample(n) }).collect();
    writer.write(&WriteBatch { key: "a".into(), samples: versions }).unwrap();
    let served = serve(queue, ReaderServerOptions::default()).unwrap();
    let mut reader = join(&served, "trainer");
    let taken = reader.read(&ReadRequest { min_model_version: 4, ..ask(3) }).unwrap();
    assert_eq!((ids(&taken), taken.stale), (vec![4, 5, 6], 4));
    let short = ReadRequest { timeout: Duration::ZERO, ..ask(9) };
    let taken = reader.read(&short).unwrap();
    assert_eq!((ids(&taken), taken.end), (vec![7, 8, 9], ReadEnd::TimedOut));
}

#[test]
fn errors_of_the_buffer_arrive_as_what_they_are() {
    let served = serve(queue(3), ReaderServerOptions::default()).unwrap();
    let mut reader = join(&served, "trainer");
    let error = reader.seek("nowhere").unwrap_err();
    assert!(matches!(&error, BufferError::Unsupported { storage, .. } if storage == "queue"));
    assert_eq!(ids(&reader.read(&ask(3)).unwrap()), [0, 1, 2]);
    let url = served.url();
    let secret = served.secret().clone();
    drop(served);
    let once = RetryTimeouts { reconnect_timeout: Duration::ZERO, ..RetryTimeouts::default() };
    let error = connect(&url, secret, "trainer", once).unwrap_err();
    assert!(matches!(error, BufferError::Unavailable { .. }), "{error}");
}
