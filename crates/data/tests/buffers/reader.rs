//! Readers of served buffers: over sockets, lost connections and restarts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rollway_base::tls::{CertificateSource, TlsMode, TlsOptions};
use rollway_base::{Address, Secret};
use rollway_data::buffer::queue::QueueOptions;
use rollway_data::buffer::{Buffer, BufferError, ExperienceReader, ReadEnd, ReadRequest};
use rollway_data::reader::{
    ReaderServer, ReaderServerOptions, RemoteReader, RetryTimeouts, connect, serve,
};
use rollway_data::{Sample, WriteBatch};
use rollway_protocol::RefusalCode;
use rollway_protocol::reader::proto::{self, buffer_message, trainer_message};
use rollway_protocol::reader::{ReaderLimits, ReaderLink};

use crate::support::{Bed, LONG, lot, now, numbers, open_queue, request, sample, until, writer};

fn ask(count: usize) -> ReadRequest {
    request(count, LONG)
}

fn fill(buffer: &dyn Buffer, count: u64) {
    let mut writer = buffer.writer("explorer").unwrap();
    for first in (0..count).step_by(10) {
        writer.write(&lot(first..count.min(first + 10))).unwrap();
    }
    writer.close().unwrap();
}

fn queue(count: u64) -> Arc<dyn Buffer> {
    let queue = open_queue(QueueOptions::default());
    fill(&*queue, count);
    queue
}

/// Serves a buffer with a random TCP port and without a grace period.
fn serve_tcp(buffer: Arc<dyn Buffer>) -> ReaderServer {
    let grace = Duration::ZERO;
    serve(buffer, ReaderServerOptions { grace, ..ReaderServerOptions::default() }).unwrap()
}

fn unix(bed: &Bed) -> ReaderServerOptions {
    let address = Address::Unix(bed.path().with_file_name("buffer.sock"));
    let secret = Some(Secret::new("s").unwrap());
    ReaderServerOptions { address, secret, ..ReaderServerOptions::default() }
}

fn join(served: &ReaderServer, name: &str) -> RemoteReader {
    connect(&served.url(), served.secret().clone(), name, RetryTimeouts::default()).unwrap()
}

/// Reads to the end of data.
fn rest(reader: &mut dyn ExperienceReader, count: usize) -> Vec<u64> {
    let mut all = Vec::new();
    loop {
        let taken = reader.read(&ask(count)).unwrap();
        all.extend(numbers(&taken));
        if taken.end == ReadEnd::Finished {
            return all;
        }
    }
}

/// A TCP port with TLS and a certificate in the folder.
fn tls(folder: &tempfile::TempDir) -> ReaderServerOptions {
    let source = CertificateSource::Folder(folder.path().to_owned());
    let tls = TlsOptions { mode: TlsMode::Required, source, hosts: Vec::new() };
    ReaderServerOptions { tls, ..ReaderServerOptions::default() }
}

#[test]
fn samples_come_whole_and_in_order_over_all_kinds_of_sockets() {
    let (bed, folder) = (Bed::sqlite(), tempfile::tempdir().unwrap());
    for options in [ReaderServerOptions::default(), unix(&bed), tls(&folder)] {
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
    let queue = open_queue(QueueOptions::default());
    let large =
        |number: u8| Sample { payload: vec![number; 700_000].into(), ..sample(number.into()) };
    let samples: Vec<Sample> = (0..9).map(large).collect();
    let large = WriteBatch { key: "large".into(), samples: samples.clone() };
    writer(&queue).write(&large).unwrap();
    let limits = ReaderLimits { in_flight_bytes: 1 << 20, ..ReaderLimits::default() };
    let served =
        serve(queue, ReaderServerOptions { limits, ..ReaderServerOptions::default() }).unwrap();
    assert_eq!(join(&served, "trainer").read(&ask(9)).unwrap().samples, samples);
}

#[test]
fn a_wrong_secret_is_refused_and_counted() {
    let served = serve_tcp(queue(1));
    let wrong = Secret::new("wrong").unwrap();
    let error = connect(&served.url(), wrong, "trainer", RetryTimeouts::default()).unwrap_err();
    assert!(matches!(error, BufferError::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("secret"), "{error}");
    until(|| !served.refused().is_empty());
    assert_eq!(served.refused(), [(RefusalCode::BadSecret, 1)]);
}

#[test]
fn a_buffer_with_another_certificate_is_refused() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let served = serve(queue(1), tls(&folder)).unwrap();
    let expected = serve(queue(1), tls(&other)).unwrap().address().fingerprint().unwrap();
    let found = served.address().fingerprint().unwrap();
    let url = served.url().replace(&found.to_string(), &expected.to_string());
    let refused = |url: &str| {
        let secret = served.secret().clone();
        let error = connect(url, secret, "trainer", RetryTimeouts::default()).unwrap_err();
        assert!(matches!(error, BufferError::Unsupported { .. }), "{error}");
        error.to_string()
    };
    let error = refused(&url);
    for part in [&found.to_string(), &expected.to_string(), "running job"] {
        assert!(error.contains(part), "{error}");
    }
    // Clear text is not tried.
    let clear = serve_tcp(queue(1));
    let host_port = clear.address().host_port().unwrap();
    let error = refused(&format!("rollway+tls://{host_port}#{found}"));
    assert!(error.contains("does not speak TLS"), "{error}");
}

#[test]
fn limits_are_enforced() {
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
    assert_eq!(numbers(&first.read(&ask(5)).unwrap()), [0, 1, 2, 3, 4]);
    let keep = ReadRequest { keep: true, ..ask(5) };
    assert!(matches!(first.read(&keep), Err(BufferError::Full { .. })));
    assert_eq!(numbers(&first.read(&ask(5)).unwrap()), [5, 6, 7, 8, 9]);
    drop(first);
    // The server may not have noticed yet that the first one disconnected.
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
fn a_reader_continues_after_a_server_restart() {
    for bed in Bed::files().into_iter().chain([Bed::sqlite(), Bed::queue()]) {
        let mut buffer = bed.open();
        fill(&*buffer, 60);
        let mut served = serve(Arc::clone(&buffer), unix(&bed)).unwrap();
        let mut reader = join(&served, "trainer");
        let (mut all, mut positions) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            all.extend(numbers(&reader.read(&ask(8)).unwrap()));
            positions.push(reader.position());
            drop(served);
            drop(buffer);
            buffer = bed.open();
            served = serve(Arc::clone(&buffer), unix(&bed)).unwrap();
        }
        // A queue counts its writers anew.
        buffer.writer("explorer").unwrap().close().unwrap();
        all.extend(rest(&mut reader, 8));
        assert_eq!(all, Vec::from_iter(0..60));

        drop(reader);
        // Acknowledged samples have left a queue; other buffers can seek back to them.
        if !bed.address.starts_with("queue:") {
            let mut again = join(&served, "trainer");
            again.seek(&positions[1]).unwrap();
            assert_eq!(rest(&mut again, 8), Vec::from_iter(16..60));
        }
    }
}

/// A trainer with full control over its messages.
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

    fn read(&mut self, number: u64, count: u64) -> Vec<u64> {
        self.ask(number, count);
        let mut ids = Vec::new();
        loop {
            match self.runtime.block_on(self.link.recv()).unwrap() {
                buffer_message::Kind::Samples(samples) => {
                    ids.extend(samples.samples.iter().map(|sample| {
                        u64::from_str_radix(sample.id.rsplit('/').next().unwrap(), 16).unwrap()
                    }));
                }
                buffer_message::Kind::Done(_) => return ids,
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_lost_response_is_repeated() {
    let served = serve_tcp(queue(30));
    let mut raw = Raw::join(&served, "one");
    assert_eq!(raw.read(1, 4), [0, 1, 2, 3]);
    assert_eq!(raw.read(2, 4), [4, 5, 6, 7]);
    drop(raw);
    let mut raw = Raw::join(&served, "one");
    assert_eq!(raw.read(2, 4), [4, 5, 6, 7]);
    // Also with a smaller count; then no sample is skipped.
    drop(raw);
    let mut raw = Raw::join(&served, "one");
    assert_eq!(raw.read(2, 3), [4, 5, 6]);
    assert_eq!(raw.read(3, 4), [7, 8, 9, 10]);
}

#[test]
fn samples_of_a_lost_trainer_go_to_the_next_of_its_name() {
    for bed in [Bed::queue(), Bed::sqlite()] {
        let buffer = bed.open();
        fill(&*buffer, 30);
        let served = serve_tcp(buffer);
        let mut raw = Raw::join(&served, "one");
        assert_eq!(raw.read(1, 4), [0, 1, 2, 3]);
        assert_eq!(raw.read(2, 4), [4, 5, 6, 7]);
        let mut other = join(&served, "trainer");
        assert_eq!(numbers(&other.read(&ask(4)).unwrap()), [8, 9, 10, 11]);
        drop(raw);
        // Data does not end before the lost samples arrive.
        let mut all = rest(&mut other, 5);
        all.sort_unstable();
        let expected: Vec<u64> = (4..8).chain(12..30).collect();
        assert_eq!(all, expected);
    }
}

#[test]
fn readers_of_one_name_share() {
    let served = serve_tcp(queue(200));
    let read = || {
        let mut reader = join(&served, "trainer");
        let all = rest(&mut reader, 3);
        reader.read(&ask(0)).unwrap();
        all
    };
    let all: Vec<u64> = thread::scope(|scope| {
        let readers = [scope.spawn(read), scope.spawn(read)];
        readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect()
    });
    assert_eq!(all.len(), 200);
    assert_eq!(all.into_iter().collect::<BTreeSet<_>>().len(), 200);
}

#[test]
fn acknowledged_samples_are_not_repeated() {
    let bed = Bed::jsonl();
    let buffer = bed.open();
    fill(&*buffer, 20);
    let served = serve_tcp(buffer);
    let (mut one, mut two) = (join(&served, "trainer"), join(&served, "trainer"));
    assert_eq!(numbers(&one.read(&ask(4)).unwrap()), [0, 1, 2, 3]);
    assert_eq!(numbers(&two.read(&ask(4)).unwrap()), [4, 5, 6, 7]);
    one.read(&ask(0)).unwrap();
    drop(one);
    assert_eq!(numbers(&two.read(&ask(4)).unwrap()), [8, 9, 10, 11]);
    two.read(&ask(0)).unwrap();
    drop(two);
    drop(served);
    let mut reader = bed.open().reader("trainer").unwrap();
    assert_eq!(rest(&mut *reader, 9), Vec::from_iter(12..20));
}

#[test]
fn a_position_covers_samples_held_by_others() {
    let bed = Bed::sqlite();
    let buffer = bed.open();
    fill(&*buffer, 30);
    let served = serve_tcp(buffer);
    let (mut one, mut two) = (join(&served, "trainer"), join(&served, "trainer"));
    assert_eq!(numbers(&one.read(&ask(4)).unwrap()), [0, 1, 2, 3]);
    assert_eq!(numbers(&two.read(&ask(4)).unwrap()), [4, 5, 6, 7]);
    // Another reader holds the first four.
    let position = two.position();
    two.seek(&position).unwrap();
    assert_eq!(numbers(&two.read(&ask(2)).unwrap()), [0, 1]);
    // The seek took back the samples of the other reader.
    assert_eq!(numbers(&one.read(&ask(2)).unwrap()), [2, 3]);
}

#[test]
fn a_read_that_waits_ends_with_data_and_with_its_trainer() {
    let queue = open_queue(QueueOptions::default());
    let mut writer = writer(&queue);
    let served = serve_tcp(queue);
    let mut gone = Raw::join(&served, "gone");
    gone.ask(1, 3);
    drop(gone);
    let mut reader = join(&served, "trainer");
    let reading = thread::spawn(move || {
        let samples = numbers(&reader.read(&ask(5)).unwrap());
        let end = reader.read(&ask(1)).unwrap().end;
        (samples, end)
    });
    // The first reader disconnects before or after it got them; the second gets them either way.
    writer.write(&lot(0..3)).unwrap();
    writer.close().unwrap();
    let (mut samples, end) = reading.join().unwrap();
    samples.sort_unstable();
    assert_eq!((samples, end), (vec![0, 1, 2], ReadEnd::Finished));
}

#[test]
fn old_versions_are_skipped_and_counted() {
    let served = serve_tcp(queue(10));
    let mut reader = join(&served, "trainer");
    let taken = reader.read(&ReadRequest { min_model_version: 4, ..ask(3) }).unwrap();
    assert_eq!((numbers(&taken), taken.stale), (vec![4, 5, 6], 4));
    let taken = reader.read(&now(9)).unwrap();
    assert_eq!((numbers(&taken), taken.end), (vec![7, 8, 9], ReadEnd::Finished));
}

#[test]
fn errors_of_the_buffer_keep_their_kind() {
    let served = serve_tcp(queue(3));
    let mut reader = join(&served, "trainer");
    let error = reader.seek("nowhere").unwrap_err();
    assert!(matches!(&error, BufferError::Unsupported { storage, .. } if storage == "queue"));
    assert_eq!(numbers(&reader.read(&ask(3)).unwrap()), [0, 1, 2]);
    let url = served.url();
    let secret = served.secret().clone();
    drop(served);
    let once = RetryTimeouts { reconnect_timeout: Duration::ZERO, ..RetryTimeouts::default() };
    let error = connect(&url, secret, "trainer", once).unwrap_err();
    assert!(matches!(error, BufferError::Unavailable { .. }), "{error}");
}
