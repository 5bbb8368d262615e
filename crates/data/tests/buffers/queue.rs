//! The FIFO queue in memory, and the registry of queues.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rollway_data::buffer::queue::{QueueFullPolicy, QueueOptions, SAMPLE_COST};
use rollway_data::buffer::{
    self, Buffer, BufferAddress, BufferError, BufferKind, BufferOptions, ExperienceQueue,
    ExperienceReader, ReadEnd, ReadRequest,
};

use crate::support::{
    LONG, batch, batch_of, ids, keep, now, numbered, open_queue, queue_options, reader, request,
    take, until, writer,
};

fn waiting() -> QueueOptions {
    QueueOptions { when_full: QueueFullPolicy::Wait { timeout: LONG }, ..QueueOptions::default() }
}

#[test]
fn reads_combine_and_split_batches() {
    let queue = open_queue(queue_options());
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    writer.write(&batch("1", &["a", "b", "c"])).unwrap();
    writer.write(&batch("2", &["d", "e"])).unwrap();

    let taken = reader.read(&now(2)).unwrap();
    assert_eq!((ids(&taken), taken.end), (vec!["a", "b"], ReadEnd::Full));
    let taken = reader.read(&now(2)).unwrap();
    assert_eq!((ids(&taken), taken.end), (vec!["c", "d"], ReadEnd::Full));
    let taken = reader.read(&now(2)).unwrap();
    assert_eq!((ids(&taken), taken.end), (vec!["e"], ReadEnd::TimedOut));
    assert_eq!(queue.usage().held, 1);
    reader.read(&now(0)).unwrap();
    assert_eq!((queue.usage().held, queue.usage().bytes), (0, 0));
}

#[test]
fn a_full_queue_refuses_at_the_timeout_and_stores_nothing() {
    let queue = open_queue(QueueOptions { capacity: 2, ..queue_options() });
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    for key in ["1", "2"] {
        writer.write(&batch(key, &[key])).unwrap();
    }
    let error = writer.write(&batch("3", &["3"])).unwrap_err();
    assert!(matches!(error, BufferError::Full { .. }), "{error}");
    assert!(error.to_string().contains("capacity = 2"), "{error}");

    assert_eq!(ids(&reader.read(&now(1)).unwrap()), ["1"]);
    assert_eq!(writer.write(&batch("3", &["3"])).unwrap().stored, 1);
    assert_eq!(ids(&reader.read(&now(9)).unwrap()), ["2", "3"]);
}

#[test]
fn an_interrupt_ends_the_waits_of_one_writer() {
    let queue = open_queue(QueueOptions { capacity: 1, ..waiting() });
    let (mut reader, mut one, mut other) = (reader(&queue), writer(&queue), writer(&queue));
    one.write(&batch("1", &["1"])).unwrap();
    let interrupt = one.interrupt().unwrap();
    thread::scope(|scope| {
        let interrupted = scope.spawn(move || {
            let waited = one.write(&batch("2", &["2"]));
            (waited, one.write(&batch("2", &["2"])), one)
        });
        until(|| queue.waiting_writers() == 1);
        let waiting = scope.spawn(move || other.write(&batch("3", &["3"])));
        until(|| queue.waiting_writers() == 2);
        interrupt();
        let (waited, later, mut one) = interrupted.join().unwrap();
        for error in [waited.unwrap_err(), later.unwrap_err()] {
            assert!(matches!(error, BufferError::Full { .. }), "{error}");
            assert!(error.to_string().contains("the writer was stopped"), "{error}");
        }
        assert_eq!(ids(&reader.read(&request(1, LONG)).unwrap()), ["1"]);
        assert_eq!(ids(&reader.read(&request(1, LONG)).unwrap()), ["3"]);
        assert_eq!(waiting.join().unwrap().unwrap().stored, 1);
        // With room an interrupted writer still writes.
        reader.read(&now(0)).unwrap();
        assert_eq!(one.write(&batch("2", &["2"])).unwrap().stored, 1);
    });
}

#[test]
fn an_oversized_batch_is_refused_at_once() {
    let queue = open_queue(QueueOptions { bytes_max: 1000, ..waiting() });
    let error = writer(&queue).write(&numbered(1, 1, 1000)).unwrap_err();
    assert!(error.to_string().contains("max_bytes = 1000"), "{error}");
}

#[test]
fn waiting_writers_are_served_in_order_and_woken_by_close() {
    let queue = open_queue(QueueOptions { capacity: 1, ..waiting() });
    let mut reader = reader(&queue);
    writer(&queue).write(&batch("0", &["0"])).unwrap();
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for id in ["1", "2", "3", "4"] {
            let mut writer = writer(&queue);
            threads.push(scope.spawn(move || writer.write(&batch(id, &[id]))));
            until(|| queue.waiting_writers() == threads.len());
        }
        for id in ["0", "1", "2"] {
            let request = request(1, LONG);
            assert_eq!(ids(&reader.read(&request).unwrap()), [id]);
        }
        until(|| queue.waiting_writers() == 1);
        queue.close();
        let written: Vec<bool> =
            threads.into_iter().map(|thread| thread.join().unwrap().is_ok()).collect();
        assert_eq!(written, [true, true, true, false]);
    });
    let taken = reader.read(&now(9)).unwrap();
    assert_eq!((ids(&taken), taken.end), (vec!["3"], ReadEnd::Finished));
    assert!(matches!(queue.writer("late"), Err(BufferError::Closed(_))));
}

#[test]
fn only_the_last_removed_ids_are_known() {
    let queue = open_queue(QueueOptions { known_max: 4, ..queue_options() });
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    for id in ["a", "b", "c"] {
        writer.write(&batch(id, &[id])).unwrap();
    }
    // Three batches and three samples leave; the last four of these six ids are known.
    reader.read(&now(3)).unwrap();
    reader.read(&now(0)).unwrap();
    assert_eq!(writer.write(&batch("a", &["a"])).unwrap().stored, 1);
    assert_eq!(writer.write(&batch("b", &["b"])).unwrap().stored, 0);
}

#[test]
fn unacknowledged_samples_can_be_read_again() {
    let queue = open_queue(queue_options());
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    writer.write(&batch("1", &["a", "b", "c", "d"])).unwrap();
    reader.read(&now(1)).unwrap();
    let after_a = reader.position();
    reader.read(&now(1)).unwrap();
    reader.read(&keep(1)).unwrap();
    assert_eq!(reader.position(), "3");
    reader.seek(&after_a).unwrap();
    assert_eq!(ids(&reader.read(&keep(2)).unwrap()), ["b", "c"]);
    // Seeking forward acknowledges.
    reader.seek("3").unwrap();
    assert_eq!(queue.usage().held, 0);
    let error = reader.seek(&after_a).unwrap_err().to_string();
    assert!(error.contains("acknowledged") && error.contains('3'), "{error}");
    assert!(reader.seek("5").unwrap_err().to_string().contains("after the newest position"));
    assert!(reader.seek("x").unwrap_err().to_string().contains("number"));
    assert_eq!(ids(&reader.read(&now(9)).unwrap()), ["d"]);
}

#[test]
fn readers_share_one_position_and_a_dropped_one_returns_its_samples() {
    let queue = open_queue(queue_options());
    let mut writer = writer(&queue);
    let (mut one, mut two) = (reader(&queue), reader(&queue));
    writer.write(&batch("1", &["a", "b", "c", "d", "e"])).unwrap();
    assert_eq!(ids(&one.read(&now(2)).unwrap()), ["a", "b"]);
    assert_eq!(ids(&two.read(&now(2)).unwrap()), ["c", "d"]);
    // Samples held by the other reader are not before a reader's position.
    assert_eq!((one.position(), two.position()), ("2".into(), "0".into()));
    drop(one);
    assert_eq!(ids(&two.read(&now(9)).unwrap()), ["a", "b", "e"]);
    let error = queue.reader("other").err().unwrap().to_string();
    assert!(error.contains("\"trainer\""), "{error}");
}

#[test]
fn stale_samples_are_removed_individually() {
    let queue = open_queue(QueueOptions { max_staleness: Some(4), ..queue_options() });
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    let mut mixed = batch_of("1", 3, &["a", "b", "c"]);
    mixed.samples[0].model_version = 1;
    mixed.samples[2].model_version = 5;
    writer.write(&mixed).unwrap();
    let start = reader.position();
    let taken = reader.read(&ReadRequest { min_model_version: 2, ..now(2) }).unwrap();
    assert_eq!((ids(&taken), taken.stale), (vec!["b", "c"], 1));
    reader.seek(&start).unwrap();
    // A newer version makes "b" stale, whatever the reader requests.
    writer.write(&batch_of("2", 8, &["d"])).unwrap();
    let taken = reader.read(&now(9)).unwrap();
    assert_eq!((ids(&taken), taken.stale), (vec!["c", "d"], 1));
}

#[test]
fn replacing_drops_and_counts_the_oldest_unread() {
    let queue = open_queue(QueueOptions {
        capacity: 2,
        when_full: QueueFullPolicy::Replace,
        ..queue_options()
    });
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    writer.write(&batch("1", &["a", "b"])).unwrap();
    writer.write(&batch("2", &["c"])).unwrap();
    reader.read(&now(1)).unwrap();
    let written = writer.write(&batch("3", &["d"])).unwrap();
    assert_eq!((written.stored, written.dropped["replaced"]), (1, 1));
    assert_eq!(ids(&reader.read(&keep(9)).unwrap()), ["c", "d"]);
    assert_eq!(queue.usage().held, 3);
}

#[test]
fn a_reader_that_holds_everything_does_not_block() {
    // Room for two samples.
    let queue = open_queue(QueueOptions { bytes_max: 2 * (9 + SAMPLE_COST), ..waiting() });
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    let request_of = |keep| ReadRequest { timeout: LONG, keep, ..now(4) };
    thread::scope(|scope| {
        scope.spawn(move || {
            for id in ["a", "b", "c"] {
                writer.write(&batch(id, &[id])).unwrap();
            }
            writer.close().unwrap();
        });
        let taken = reader.read(&request_of(true)).unwrap();
        assert_eq!((ids(&taken), taken.end), (vec!["a", "b"], ReadEnd::TimedOut));
        let error = reader.read(&request_of(true)).unwrap_err().to_string();
        assert!(error.contains("keep"), "{error}");
        let taken = reader.read(&request_of(false)).unwrap();
        assert_eq!((ids(&taken), taken.end), (vec!["c"], ReadEnd::Finished));
    });
}

#[test]
fn four_writers_and_four_readers_pass_every_sample_once() {
    let queue = open_queue(QueueOptions { capacity: 8, bytes_max: 20_000, ..waiting() });
    let read = |mut reader: Box<dyn ExperienceReader>| {
        let mut all = Vec::new();
        loop {
            let taken = reader.read(&request(7, LONG)).unwrap();
            all.extend(taken.samples.into_iter().map(|sample| sample.id));
            if taken.end == ReadEnd::Finished {
                // Acknowledges; a dropped reader returns its last samples.
                reader.read(&now(0)).unwrap();
                return all;
            }
        }
    };
    let writers: Vec<_> = (0..4).map(|name| queue.writer(&name.to_string()).unwrap()).collect();
    let mut all: Vec<Arc<str>> = thread::scope(|scope| {
        for (name, mut writer) in writers.into_iter().enumerate() {
            scope.spawn(move || {
                for number in 0..300 {
                    writer.write(&numbered(name * 300 + number, 5, 8)).unwrap();
                }
                writer.close().unwrap();
            });
        }
        let readers: Vec<_> = (0..4).map(|_| scope.spawn(|| read(reader(&queue)))).collect();
        readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect()
    });
    assert_eq!(all.len(), 4 * 300 * 5);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 4 * 300 * 5);
    let usage = queue.usage();
    assert!(usage.bytes_peak <= 20_000, "{usage:?}");
}

#[test]
fn invalid_options_are_refused() {
    let error = ExperienceQueue::open(QueueOptions { capacity: 0, ..queue_options() }).unwrap_err();
    assert!(error.to_string().contains("capacity"), "{error}");
    let timeout = Duration::MAX;
    open_queue(QueueOptions { when_full: QueueFullPolicy::Wait { timeout }, ..queue_options() });
}

#[test]
fn a_queue_exists_once_per_process() {
    let address = BufferAddress::new(BufferKind::Queue, "shared");
    let queue = QueueOptions { capacity: 0, ..QueueOptions::default() };
    let invalid = BufferOptions { queue, ..BufferOptions::default() };
    assert!(matches!(buffer::open(&address, &invalid), Err(BufferError::Unsupported { .. })));
    let folder = tempfile::tempdir().unwrap();
    for path in [None, Some(folder.path().join("queue"))] {
        let durable = path.is_some();
        let queue = QueueOptions { path, ..QueueOptions::default() };
        let options = BufferOptions { queue, ..BufferOptions::default() };
        let open = || buffer::open(&address, &options).unwrap();
        let (one, other) = (open(), open());
        let mut writer = one.writer("w").unwrap();
        writer.write(&batch("1", &["a"])).unwrap();
        let mut reader = other.reader("r").unwrap();
        assert_eq!(ids(&take(&mut *reader, 1)), ["a"]);
        drop((reader, writer, one, other));
        // A durable queue returns unacknowledged samples after the last handle was dropped.
        let taken = take(&mut *open().reader("r").unwrap(), 1);
        assert_eq!(taken.samples.len(), usize::from(durable));
    }
}
