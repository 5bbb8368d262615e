//! What both databases promise.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rollway_data::WriteBatch;
use rollway_data::buffer::sql::SqlOptions;
use rollway_data::buffer::{BufferError, ReadEnd, ReadRequest};

use crate::bed::{Bed, LONG, ask, lot, numbers, open, sample, take, written};

#[test]
fn a_lot_is_stored_once_whatever_happens_to_its_rows() {
    for bed in Bed::both("once") {
        let buffer = bed.open();
        let mut writer = buffer.writer("w").unwrap();
        assert_eq!(writer.write(&lot(0..5)).unwrap(), written(5, 0));
        assert_eq!(writer.write(&lot(0..5)).unwrap(), written(0, 5));
        // Another key, some of the names known, one of them twice.
        let mut mixed = WriteBatch { key: "mixed".into(), samples: vec![] };
        mixed.samples.extend([3, 5, 4, 6, 6].map(sample));
        assert_eq!(writer.write(&mixed).unwrap(), written(2, 3));

        let mut reader = buffer.reader("r").unwrap();
        assert_eq!(numbers(&take(&mut *reader, 100)), [0, 1, 2, 3, 4, 5, 6]);
        let mut again = WriteBatch { key: "again".into(), samples: lot(0..7).samples };
        assert_eq!(bed.open().writer("x").unwrap().write(&again).unwrap(), written(0, 7));
        // Somebody makes room: the lot is known by its key.
        bed.sql(&format!("DELETE FROM \"{}\"", bed.table));
        again.samples.truncate(1);
        assert_eq!(writer.write(&again).unwrap(), written(0, 1));
        assert_eq!(numbers(&take(&mut *reader, 100)), [0; 0]);
        // An id is never given out twice, so that no cursor passes over a new row.
        assert_eq!(writer.write(&lot(20..22)).unwrap(), written(2, 0));
        assert_eq!(numbers(&take(&mut *reader, 100)), [20, 21]);
    }
}

#[test]
fn a_reader_goes_on_where_it_was_and_back_to_where_it_is_sent() {
    for bed in Bed::both("position") {
        let buffer = bed.open();
        let mut writer = buffer.writer("w").unwrap();
        writer.write(&lot(0..6)).unwrap();
        let mut reader = buffer.reader("r").unwrap();
        let start = reader.position();
        assert_eq!(numbers(&take(&mut *reader, 2)), [0, 1]);
        let kept = reader.position();
        assert_eq!(numbers(&take(&mut *reader, 2)), [2, 3]);

        // Another life of the trainer, restored from what it kept.
        let buffer = bed.open();
        let mut reader = buffer.reader("r").unwrap();
        assert_eq!(numbers(&take(&mut *reader, 1)), [4]);
        reader.seek(&kept).unwrap();
        assert_eq!(reader.position(), kept);
        assert_eq!(numbers(&take(&mut *reader, 9)), [2, 3, 4, 5]);
        reader.seek(&start).unwrap();
        assert_eq!(numbers(&take(&mut *reader, 1)), [0]);
        // Readers of other names have cursors of their own.
        assert_eq!(numbers(&take(&mut *buffer.reader("other").unwrap(), 3)), [0, 1, 2]);

        for bad in ["", "7", "id:", "id:-1", "claim:1", "id:99"] {
            let error = reader.seek(bad).unwrap_err();
            assert!(matches!(error, BufferError::Unsupported { .. }), "{bad}: {error}");
        }
        assert_eq!(numbers(&take(&mut *reader, 1)), [1]);
    }
}

#[test]
fn old_versions_are_passed_over_and_counted_once() {
    for bed in Bed::both("stale") {
        let buffer = bed.open();
        buffer.writer("w").unwrap().write(&lot(0..10)).unwrap();
        let mut reader = buffer.reader("r").unwrap();
        let newer = ReadRequest { min_model_version: 4, ..ask(3, Duration::ZERO) };
        let taken = reader.read(&newer).unwrap();
        assert_eq!((numbers(&taken), taken.stale, taken.end), (vec![4, 5, 6], 4, ReadEnd::Full));
        let newer = ReadRequest { min_model_version: 100, ..newer };
        let taken = reader.read(&newer).unwrap();
        assert_eq!((numbers(&taken), taken.stale, taken.end), (vec![], 3, ReadEnd::TimedOut));
        // They do not come back when the bound falls.
        assert_eq!(numbers(&take(&mut *reader, 9)), [0; 0]);
    }
}

#[test]
fn a_blocked_reader_is_woken_by_samples_and_by_the_end() {
    for bed in Bed::both("blocked") {
        let buffer = bed.open();
        let mut first = buffer.writer("first").unwrap();
        let (told, heard) = mpsc::channel();
        let mut reader = buffer.reader("r").unwrap();
        let reading = thread::spawn(move || {
            for _ in 0..3 {
                let taken = reader.read(&ask(2, LONG)).unwrap();
                told.send((numbers(&taken), taken.end)).unwrap();
            }
        });
        first.write(&lot(0..1)).unwrap();
        first.write(&lot(1..2)).unwrap();
        assert_eq!(heard.recv().unwrap(), (vec![0, 1], ReadEnd::Full));

        // A writer that died and came back is one writer. It is of another process, so to say.
        let other = bed.open();
        drop(other.writer("second").unwrap());
        let mut second = other.writer("second").unwrap();
        first.close().unwrap();
        second.write(&lot(2..3)).unwrap();
        second.close().unwrap();
        assert_eq!(heard.recv().unwrap(), (vec![2], ReadEnd::Finished));
        assert_eq!(heard.recv().unwrap(), (vec![], ReadEnd::Finished));
        reading.join().unwrap();
        let error = second.write(&lot(3..4)).unwrap_err();
        assert!(matches!(error, BufferError::Closed(_)), "{error}");
    }
}

#[test]
fn a_short_read_returns_what_there_is() {
    for bed in Bed::both("short") {
        let buffer = bed.open();
        let mut writer = buffer.writer("w").unwrap();
        let mut reader = buffer.reader("r").unwrap();
        let empty = reader.read(&ask(4, Duration::from_millis(1))).unwrap();
        assert_eq!((empty.samples.len(), empty.end), (0, ReadEnd::TimedOut));
        writer.write(&lot(0..3)).unwrap();
        let taken = reader.read(&ask(4, Duration::from_millis(1))).unwrap();
        assert_eq!((numbers(&taken), taken.end), (vec![0, 1, 2], ReadEnd::TimedOut));
        assert_eq!(take(&mut *reader, 0).end, ReadEnd::Full);
        writer.close().unwrap();
        assert_eq!(take(&mut *reader, 4).end, ReadEnd::Finished);
    }
}

/// Two writers and two readers of one name, each with a connection of its own. The cursor must not
/// pass over a row whose transaction began earlier and ended later.
#[test]
fn racing_readers_share_everything_and_miss_nothing() {
    const LOTS: u64 = 20;
    for bed in Bed::both("race") {
        let bed = &bed;
        let mut all: Vec<u64> = thread::scope(|scope| {
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(move || {
                        let mut reader = bed.open().reader("r").unwrap();
                        let mut all = Vec::new();
                        loop {
                            let taken = reader.read(&ask(7, LONG)).unwrap();
                            all.extend(numbers(&taken));
                            if taken.end == ReadEnd::Finished {
                                return all;
                            }
                        }
                    })
                })
                .collect();
            // Both are open before either closes, or the data would end between them.
            let writers = ["a", "b"].map(|name| bed.open().writer(name).unwrap());
            for (half, mut writer) in (0..).zip(writers) {
                scope.spawn(move || {
                    for number in 0..LOTS {
                        let first = (number * 2 + half) * 5;
                        writer.write(&lot(first..first + 5)).unwrap();
                    }
                    writer.close().unwrap();
                });
            }
            readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect()
        });
        all.sort_unstable();
        assert_eq!(all, (0..LOTS * 10).collect::<Vec<_>>());
    }
}

#[test]
fn tables_of_others_are_left_alone() {
    for bed in Bed::both("foreign") {
        bed.sql(&format!("CREATE TABLE \"{}_lot\" (a INTEGER)", bed.table));
        let error = open(&bed.address, bed.options()).err().expect("it is not ours").to_string();
        assert!(error.contains("is not Rollway's") && error.contains("`table`"), "{error}");

        let newer = SqlOptions { table: "newer".into(), ..bed.options() };
        drop(bed.open_with(newer.clone()));
        bed.sql("UPDATE newer_state SET version = 9");
        let error = open(&bed.address, newer).err().expect("it is newer").to_string();
        assert!(error.contains("layout 9") && error.contains("layout 1"), "{error}");

        let bad = SqlOptions { table: "a;b".into(), ..bed.options() };
        let error = open(&bed.address, bad).err().expect("it is no name").to_string();
        assert!(error.contains("\"a;b\""), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
}
