//! How fast samples go through the queue, beside a bare channel, a copy of the same bytes, and a
//! plain write with a sync. All figures come from one run: compare them with each other only.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::unwrap_used, reason = "a benchmark that fails has no figures")]

use std::hint::black_box;
use std::io::Write;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rollway_data::buffer::queue::QueueOptions;
use rollway_data::buffer::{Buffer, ExperienceQueue, ReadEnd, ReadRequest};
use rollway_data::{Sample, WriteBatch};

/// Samples in a lot, and in a read.
const LOT: usize = 16;

/// Makes the lots: what a payload costs to make is part of every figure.
fn lots(count: usize, bytes: usize) -> impl Iterator<Item = WriteBatch> {
    (0..count).map(move |number| {
        let sample = |at: usize| Sample {
            id: format!("{number}/{at}").into(),
            model_version: 1,
            reward: None,
            payload: Bytes::from(vec![at as u8; bytes]),
        };
        WriteBatch { key: number.to_string().into(), samples: (0..LOT).map(sample).collect() }
    })
}

fn through_queue(options: QueueOptions, count: usize, bytes: usize) -> Duration {
    let queue = ExperienceQueue::open(options).unwrap();
    let mut writer = queue.writer("explorer").unwrap();
    let mut reader = queue.reader("trainer").unwrap();
    let start = Instant::now();
    let writing = thread::spawn(move || {
        for lot in lots(count, bytes) {
            writer.write(&lot).unwrap();
        }
        writer.close().unwrap();
    });
    let timeout = Duration::from_secs(60);
    let ask = ReadRequest { count: LOT, timeout, min_model_version: 0, keep: false };
    let mut read = 0;
    loop {
        let taken = reader.read(&ask).unwrap();
        read += taken.samples.len();
        if taken.end == ReadEnd::Finished {
            break;
        }
    }
    writing.join().unwrap();
    assert_eq!(read, count * LOT);
    start.elapsed()
}

fn through_channel(count: usize, bytes: usize) -> Duration {
    let (sender, receiver) = mpsc::sync_channel(10_000);
    let start = Instant::now();
    let writing =
        thread::spawn(move || lots(count, bytes).for_each(|lot| sender.send(lot).unwrap()));
    let read: usize = receiver.iter().map(|lot| black_box(lot).samples.len()).sum();
    writing.join().unwrap();
    assert_eq!(read, count * LOT);
    start.elapsed()
}

fn copied(count: usize, bytes: usize) -> Duration {
    let from = vec![1_u8; bytes];
    let mut to = vec![0_u8; bytes];
    let start = Instant::now();
    for _ in 0..count * LOT {
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
    }
    start.elapsed()
}

fn written_and_synced(count: usize, bytes: usize) -> Duration {
    let mut file = tempfile::tempfile().unwrap();
    let start = Instant::now();
    for lot in lots(count, bytes) {
        for sample in &lot.samples {
            file.write_all(&sample.payload).unwrap();
        }
        file.sync_data().unwrap();
    }
    start.elapsed()
}

fn show(what: &str, count: usize, bytes: usize, time: Duration) {
    let samples = (count * LOT) as f64 / time.as_secs_f64();
    let rate = samples * bytes as f64 / 1e6;
    println!("{what:<34} {bytes:>6} bytes  {samples:>12.0} samples/s  {rate:>9.0} MB/s");
}

fn main() {
    for (bytes, count) in [(1 << 10, 20_000), (32 << 10, 4_000)] {
        show("queue", count, bytes, through_queue(QueueOptions::default(), count, bytes));
        show("std::sync::mpsc, same lots", count, bytes, through_channel(count, bytes));
        show("copy of the same bytes", count, bytes, copied(count, bytes));
    }
    for (bytes, count) in [(1 << 10, 1_000), (32 << 10, 500)] {
        let folder = tempfile::tempdir().unwrap();
        let options =
            QueueOptions { path: Some(folder.path().to_owned()), ..QueueOptions::default() };
        show("durable queue", count, bytes, through_queue(options, count, bytes));
        show("write and sync of every lot", count, bytes, written_and_synced(count, bytes));
    }
}
