//! How fast a trainer reads: in its process, over sockets and from a file, beside what copying the
//! same bytes costs. Buffers are filled before the clock starts; a read takes `BATCH` samples.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark may fail, and reports")]

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rollway_base::Address;
use rollway_data::buffer::queue::QueueOptions;
use rollway_data::buffer::{
    Buffer, ExperienceQueue, ExperienceReader, ReadEnd, ReadRequest, SqliteBuffer, sql,
};
use rollway_data::reader::{ReaderServer, ReaderServerOptions, RetryTimeouts, connect, serve};
use rollway_data::{Sample, WriteBatch};

/// Samples in a lot.
const LOT: usize = 16;

/// Samples in a read.
const BATCH: usize = 256;

fn fill(buffer: &dyn Buffer, count: usize, bytes: usize) {
    let mut writer = buffer.writer("explorer").unwrap();
    for number in 0..count / LOT {
        let sample = |at: usize| Sample {
            id: format!("{number}/{at}").into(),
            model_version: 1,
            reward: Some(1.0),
            payload: Bytes::from(vec![at as u8; bytes]),
        };
        let samples = (0..LOT).map(sample).collect();
        writer.write(&WriteBatch { key: number.to_string().into(), samples }).unwrap();
    }
    writer.close().unwrap();
}

fn queue(count: usize, bytes: usize) -> Arc<dyn Buffer> {
    let options = QueueOptions { bytes_max: 4 << 30, capacity: count, ..QueueOptions::default() };
    let queue = ExperienceQueue::open(options).unwrap();
    fill(&*queue, count, bytes);
    queue
}

fn sqlite(folder: &Path, count: usize, bytes: usize) -> Arc<dyn Buffer> {
    let path = folder.join(format!("{bytes}.db"));
    let database = SqliteBuffer::open(path.to_str().unwrap(), sql::SqlOptions::default()).unwrap();
    fill(&database, count, bytes);
    Arc::new(database)
}

fn unix(folder: &Path) -> ReaderServerOptions {
    ReaderServerOptions {
        address: Address::Unix(folder.join("reader.sock")),
        ..ReaderServerOptions::default()
    }
}

/// Reads everything. Payloads are not looked at: in one process they are handed over, not copied.
fn read(reader: &mut dyn ExperienceReader, count: usize) -> Duration {
    let timeout = Duration::from_secs(60);
    let ask = ReadRequest { count: BATCH, timeout, min_model_version: 0, keep: false };
    let (mut read, start) = (0, Instant::now());
    loop {
        let taken = reader.read(&ask).unwrap();
        read += taken.samples.len();
        black_box(&taken.samples);
        if taken.end == ReadEnd::Finished {
            break;
        }
    }
    assert_eq!(read, count);
    start.elapsed()
}

fn read_from(served: &ReaderServer, name: &str, count: usize) -> Duration {
    let secret = served.secret().clone();
    read(&mut connect(&served.url(), secret, name, RetryTimeouts::default()).unwrap(), count)
}

/// Copies as many samples, each from where it lies to memory of its own.
fn copied(count: usize, bytes: usize) -> Duration {
    let from: Vec<Vec<u8>> = (0..count).map(|at| vec![at as u8; bytes]).collect();
    let start = Instant::now();
    for batch in from.chunks(BATCH) {
        black_box(batch.concat());
    }
    start.elapsed()
}

fn show(what: &str, count: usize, bytes: usize, time: Duration) {
    let samples = count as f64 / time.as_secs_f64();
    let rate = samples * bytes as f64 / 1e6;
    println!("{what:<28} {bytes:>6} bytes  {samples:>12.0} samples/s  {rate:>9.0} MB/s");
}

fn main() {
    let folder = tempfile::tempdir().unwrap();
    for (bytes, count) in [(1 << 10, 1 << 17), (32 << 10, 1 << 14)] {
        show("copy of the same bytes", count, bytes, copied(count, bytes));
        let mut reader = queue(count, bytes).reader("trainer").unwrap();
        show("queue, same process", count, bytes, read(&mut *reader, count));
        drop(reader);
        let served = serve(queue(count, bytes), unix(folder.path())).unwrap();
        show("queue, Unix socket", count, bytes, read_from(&served, "trainer", count));
        let served = serve(queue(count, bytes), ReaderServerOptions::default()).unwrap();
        show("queue, TCP on loopback", count, bytes, read_from(&served, "trainer", count));
        let database = sqlite(folder.path(), count, bytes);
        let mut reader = database.reader("trainer").unwrap();
        show("SQLite, same process", count, bytes, read(&mut *reader, count));
        let served = serve(database, ReaderServerOptions::default()).unwrap();
        show("SQLite, TCP on loopback", count, bytes, read_from(&served, "other", count));
    }
}
