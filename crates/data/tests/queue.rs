//! The plain queue in memory, through its public face.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod queue_help;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use queue_help::*;
use rollway_data::buffer::queue::{QueueFullPolicy, QueueOptions, SAMPLE_COST};
use rollway_data::buffer::{Buffer, BufferError, ExperienceReader, ReadEnd, ReadRequest};

fn waiting() -> QueueOptions {
    QueueOptions { when_full: QueueFullPolicy::Wait { timeout: LONG }, ..QueueOptions::default() }
}

#[test]
fn reads_flatten_lots_and_split_them() {
    let queue = open(options());
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    writer.write(&lot("1", &["a", "b", "c"])).unwrap();
    writer.write(&lot("2", &["d", "e"])).unwrap();

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
fn a_full_queue_refuses_when_time_is_up_and_stores_nothing() {
    let queue = open(QueueOptions { capacity: 2, ..options() });
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    for key in ["1", "2"] {
        writer.write(&lot(key, &[key])).unwrap();
    }
    let error = writer.write(&lot("3", &["3"])).unwrap_err();
    assert!(matches!(error, BufferError::Full { .. }), "{error}");
    assert!(error.to_string().contains("capacity = 2"), "{error}");

    assert_eq!(ids(&reader.read(&now(1)).unwrap()), ["1"]);
    assert_eq!(writer.write(&lot("3", &["3"])).unwrap().stored, 1);
    assert_eq!(ids(&reader.read(&now(9)).unwrap()), ["2", "3"]);
}

#[test]
fn a_lot_that_can_never_fit_is_refused_at_once() {
    let queue = open(QueueOptions { bytes_max: 1000, ..waiting() });
    let big = rollway_data::WriteBatch { key: "1".into(), samples: vec![sample("a", 0, 1000)] };
    let error = writer(&queue).write(&big).unwrap_err();
    assert!(error.to_string().contains("bytes_max = 1000"), "{error}");
}

#[test]
fn waiting_writers_are_served_in_order_and_woken_by_close() {
    let queue = open(QueueOptions { capacity: 1, ..waiting() });
    let mut reader = reader(&queue);
    writer(&queue).write(&lot("0", &["0"])).unwrap();
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for id in ["1", "2", "3", "4"] {
            let mut writer = writer(&queue);
            threads.push(scope.spawn(move || writer.write(&lot(id, &[id]))));
            until(|| queue.waiting_writers() == threads.len());
        }
        for id in ["0", "1", "2"] {
            let ask = ReadRequest { timeout: LONG, ..now(1) };
            assert_eq!(ids(&reader.read(&ask).unwrap()), [id]);
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
fn data_ends_with_the_last_writer_also_for_a_blocked_reader() {
    let queue = open(options());
    let (mut one, mut two) = (queue.writer("one").unwrap(), queue.writer("two").unwrap());
    // A writer that died and came back is the same.
    let mut again = queue.writer("two").unwrap();
    let mut reader = reader(&queue);
    let blocked = thread::spawn(move || {
        let ask = ReadRequest { timeout: LONG, ..now(3) };
        (reader.read(&ask).unwrap(), reader.read(&ask).unwrap())
    });
    two.write(&lot("1", &["a"])).unwrap();
    one.close().unwrap();
    again.write(&lot("2", &["b"])).unwrap();
    again.close().unwrap();
    let (rest, nothing) = blocked.join().unwrap();
    assert_eq!((ids(&rest), rest.end), (vec!["a", "b"], ReadEnd::Finished));
    assert_eq!((ids(&nothing), nothing.end), (vec![], ReadEnd::Finished));
    assert!(matches!(one.write(&lot("3", &["c"])), Err(BufferError::Closed(_))));
}

#[test]
fn what_was_there_is_known_by_lot_and_by_sample() {
    let queue = open(options());
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    assert_eq!(writer.write(&lot("1", &["a", "b", "a"])).unwrap().stored, 2);
    let again = writer.write(&lot("1", &["a", "b", "new"])).unwrap();
    assert_eq!((again.stored, again.known), (0, 3));
    reader.read(&now(2)).unwrap();
    reader.read(&now(0)).unwrap();
    let again = writer.write(&lot("1", &["a", "b"])).unwrap();
    assert_eq!((again.stored, again.known), (0, 2));
    let mixed = writer.write(&lot("2", &["b", "c"])).unwrap();
    assert_eq!((mixed.stored, mixed.known), (1, 1));
    assert_eq!(ids(&reader.read(&now(9)).unwrap()), ["c"]);
}

#[test]
fn only_the_last_names_that_left_are_known() {
    let queue = open(QueueOptions { known_max: 4, ..options() });
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    for id in ["a", "b", "c"] {
        writer.write(&lot(id, &[id])).unwrap();
    }
    // Three lots and three samples leave; of these six names the last four are known.
    reader.read(&now(3)).unwrap();
    reader.read(&now(0)).unwrap();
    assert_eq!(writer.write(&lot("a", &["a"])).unwrap().stored, 1);
    assert_eq!(writer.write(&lot("b", &["b"])).unwrap().stored, 0);
}

#[test]
fn what_is_not_acknowledged_can_be_read_again() {
    let queue = open(options());
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    writer.write(&lot("1", &["a", "b", "c", "d"])).unwrap();
    reader.read(&now(1)).unwrap();
    let after_a = reader.position();
    reader.read(&now(1)).unwrap();
    reader.read(&keep(1)).unwrap();
    assert_eq!(reader.position(), "3");
    reader.seek(&after_a).unwrap();
    assert_eq!(ids(&reader.read(&keep(2)).unwrap()), ["b", "c"]);
    // Going on acknowledges.
    reader.seek("3").unwrap();
    assert_eq!(queue.usage().held, 0);
    let error = reader.seek(&after_a).unwrap_err().to_string();
    assert!(error.contains("acknowledged") && error.contains('3'), "{error}");
    assert!(reader.seek("5").unwrap_err().to_string().contains("ahead"));
    assert!(reader.seek("x").unwrap_err().to_string().contains("number"));
    assert_eq!(ids(&reader.read(&now(9)).unwrap()), ["d"]);
}

#[test]
fn readers_share_one_position_and_a_dropped_one_gives_back() {
    let queue = open(options());
    let mut writer = writer(&queue);
    let (mut one, mut two) = (reader(&queue), reader(&queue));
    writer.write(&lot("1", &["a", "b", "c", "d", "e"])).unwrap();
    assert_eq!(ids(&one.read(&now(2)).unwrap()), ["a", "b"]);
    assert_eq!(ids(&two.read(&now(2)).unwrap()), ["c", "d"]);
    // What the other has in hand is not behind one's own position.
    assert_eq!((one.position(), two.position()), ("2".into(), "0".into()));
    drop(one);
    assert_eq!(ids(&two.read(&now(9)).unwrap()), ["a", "b", "e"]);
    let error = queue.reader("other").err().unwrap().to_string();
    assert!(error.contains("\"trainer\""), "{error}");
}

#[test]
fn stale_samples_are_gone_for_good_each_judged_by_itself() {
    let queue = open(QueueOptions { max_staleness: Some(4), ..options() });
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    let mut mixed = lot_of("1", 3, &["a", "b", "c"]);
    mixed.samples[0].model_version = 1;
    mixed.samples[2].model_version = 5;
    writer.write(&mixed).unwrap();
    let start = reader.position();
    let taken = reader.read(&ReadRequest { min_model_version: 2, ..now(2) }).unwrap();
    assert_eq!((ids(&taken), taken.stale), (vec!["b", "c"], 1));
    reader.seek(&start).unwrap();
    // A newer version makes "b" stale, whatever the reader asks for.
    writer.write(&lot_of("2", 8, &["d"])).unwrap();
    let taken = reader.read(&now(9)).unwrap();
    assert_eq!((ids(&taken), taken.stale), (vec!["c", "d"], 1));
}

#[test]
fn replacing_drops_the_oldest_unread_and_says_so() {
    let queue =
        open(QueueOptions { capacity: 2, when_full: QueueFullPolicy::Replace, ..options() });
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    writer.write(&lot("1", &["a", "b"])).unwrap();
    writer.write(&lot("2", &["c"])).unwrap();
    reader.read(&now(1)).unwrap();
    let written = writer.write(&lot("3", &["d"])).unwrap();
    assert_eq!((written.stored, written.dropped["replaced"]), (1, 1));
    assert_eq!(ids(&reader.read(&keep(9)).unwrap()), ["c", "d"]);
    assert_eq!(queue.usage().held, 3);
}

#[test]
fn a_reader_that_holds_everything_is_not_left_waiting() {
    // Room for two samples.
    let queue = open(QueueOptions { bytes_max: 2 * (9 + SAMPLE_COST), ..waiting() });
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    let ask = |keep| ReadRequest { timeout: LONG, keep, ..now(4) };
    thread::scope(|scope| {
        scope.spawn(move || {
            for id in ["a", "b", "c"] {
                writer.write(&lot(id, &[id])).unwrap();
            }
            writer.close().unwrap();
        });
        let taken = reader.read(&ask(true)).unwrap();
        assert_eq!((ids(&taken), taken.end), (vec!["a", "b"], ReadEnd::TimedOut));
        let error = reader.read(&ask(true)).unwrap_err().to_string();
        assert!(error.contains("keep"), "{error}");
        let taken = reader.read(&ask(false)).unwrap();
        assert_eq!((ids(&taken), taken.end), (vec!["c"], ReadEnd::Finished));
    });
}

#[test]
fn four_writers_and_four_readers_pass_every_sample_once() {
    let queue = open(QueueOptions { capacity: 8, bytes_max: 20_000, ..waiting() });
    let read = |mut reader: Box<dyn ExperienceReader>| {
        let mut all = Vec::new();
        loop {
            let taken = reader.read(&ReadRequest { timeout: LONG, ..now(7) }).unwrap();
            all.extend(taken.samples.into_iter().map(|sample| sample.id));
            if taken.end == ReadEnd::Finished {
                // Dropped without this, the reader would give its last batch to the others.
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
                    let names: Vec<String> =
                        (0..5).map(|sample| format!("{name}/{number}/{sample}")).collect();
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    writer.write(&lot(&format!("{name}/{number}"), &names)).unwrap();
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
fn options_that_cannot_be_are_refused() {
    let none = QueueOptions { capacity: 0, ..options() };
    assert!(
        rollway_data::buffer::ExperienceQueue::open(none)
            .unwrap_err()
            .to_string()
            .contains("capacity")
    );
    let forever =
        QueueOptions { when_full: QueueFullPolicy::Wait { timeout: Duration::MAX }, ..options() };
    open(forever);
}
