//! The contract of every buffer.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rollway_data::WriteBatch;
use rollway_data::buffer::{BufferError, ReadEnd, ReadRequest};

use crate::support::{Bed, LONG, lot, now, numbers, request, sample, take, written};

#[test]
fn batches_and_ids_are_stored_once() {
    for bed in Bed::all("once") {
        let buffer = bed.open();
        let mut writer = buffer.writer("w").unwrap();
        assert_eq!(writer.write(&lot(0..5)).unwrap(), written(5, 0));
        assert_eq!(writer.write(&lot(0..5)).unwrap(), written(0, 5));
        // Another key: some ids are known, one occurs twice.
        let mixed = WriteBatch { key: "mixed".into(), samples: [3, 5, 4, 6, 6].map(sample).into() };
        assert_eq!(writer.write(&mixed).unwrap(), written(2, 3));
        // After a restart too.
        drop((writer, buffer));
        let buffer = bed.open();
        let mut writer = buffer.writer("w").unwrap();
        assert_eq!(writer.write(&lot(0..5)).unwrap(), written(0, 5), "{bed:?}");
        let again = WriteBatch { key: "again".into(), samples: lot(0..7).samples };
        assert_eq!(writer.write(&again).unwrap(), written(0, 7), "{bed:?}");
        writer.close().unwrap();
        assert!(matches!(writer.write(&lot(9..10)), Err(BufferError::Closed(_))));
        let taken = take(&mut *buffer.reader("r").unwrap(), 100);
        assert_eq!((numbers(&taken), taken.end), ((0..7).collect(), ReadEnd::Finished), "{bed:?}");
    }
}

#[test]
fn short_reads_return_available_samples() {
    for bed in Bed::all("short") {
        let buffer = bed.open();
        let (mut writer, mut reader) = (buffer.writer("w").unwrap(), buffer.reader("r").unwrap());
        let mut other = buffer.writer("other").unwrap();
        let mut read = |count| {
            let taken = reader.read(&request(count, Duration::from_millis(1))).unwrap();
            (numbers(&taken), taken.end)
        };
        assert_eq!(read(4), (vec![], ReadEnd::TimedOut));
        writer.write(&lot(0..3)).unwrap();
        assert_eq!(read(2), (vec![0, 1], ReadEnd::Full));
        assert_eq!(read(4), (vec![2], ReadEnd::TimedOut));
        assert_eq!(read(0), (vec![], ReadEnd::Full));
        writer.close().unwrap();
        // A writer that crashed counts once, under its name.
        drop(other);
        other = buffer.writer("other").unwrap();
        assert_eq!(read(4).1, ReadEnd::TimedOut, "{bed:?}");
        other.close().unwrap();
        assert_eq!(read(4).1, ReadEnd::Finished, "{bed:?}");
    }
}

#[test]
fn a_blocked_reader_is_woken_by_samples_and_by_the_end() {
    for bed in Bed::all("blocked") {
        let buffer = bed.open();
        let mut first = buffer.writer("first").unwrap();
        let (sender, results) = mpsc::channel();
        let mut reader = buffer.reader("r").unwrap();
        let reading = thread::spawn(move || {
            for _ in 0..3 {
                let taken = reader.read(&request(2, LONG)).unwrap();
                sender.send((numbers(&taken), taken.end)).unwrap();
            }
        });
        first.write(&lot(0..1)).unwrap();
        first.write(&lot(1..2)).unwrap();
        assert_eq!(results.recv().unwrap(), (vec![0, 1], ReadEnd::Full));

        // A restarted writer counts once; this one has its own connection.
        let other = bed.open();
        drop(other.writer("second").unwrap());
        let mut second = other.writer("second").unwrap();
        first.close().unwrap();
        second.write(&lot(2..3)).unwrap();
        second.close().unwrap();
        assert_eq!(results.recv().unwrap(), (vec![2], ReadEnd::Finished));
        assert_eq!(results.recv().unwrap(), (vec![], ReadEnd::Finished));
        reading.join().unwrap();
    }
}

#[test]
fn old_versions_are_skipped_and_counted_once() {
    for bed in Bed::all("stale") {
        let buffer = bed.open();
        buffer.writer("w").unwrap().write(&lot(0..10)).unwrap();
        let mut reader = buffer.reader("r").unwrap();
        let newer = ReadRequest { min_model_version: 4, ..now(3) };
        let taken = reader.read(&newer).unwrap();
        assert_eq!((numbers(&taken), taken.stale, taken.end), (vec![4, 5, 6], 4, ReadEnd::Full));
        let taken = reader.read(&ReadRequest { min_model_version: 100, ..newer }).unwrap();
        assert_eq!((numbers(&taken), taken.stale, taken.end), (vec![], 3, ReadEnd::TimedOut));
        // They do not come back when the bound falls.
        assert_eq!(numbers(&take(&mut *reader, 9)), [0; 0], "{bed:?}");
    }
}
