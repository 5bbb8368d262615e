//! What is written is read: in order, once, by those who wait for it.

use rollway_data::WriteBatch;
use rollway_data::buffer::{BufferError, ReadEnd, ReadRequest, WriteResult};

use crate::support::{Kind, LONG, ask, everything, lot, now, samples};

#[test]
fn what_was_written_is_read_bit_for_bit_and_in_order() {
    for kind in Kind::BOTH {
        let folder = tempfile::tempdir().unwrap();
        let buffer = kind.open(folder.path());
        let lots: Vec<WriteBatch> = (0..4).map(|number| lot(number, 10 * number)).collect();
        let mut writer = buffer.writer("w").unwrap();
        for lot in &lots {
            let written = writer.write(lot).unwrap();
            assert_eq!(
                written,
                WriteResult { stored: lot.samples.len(), ..WriteResult::default() }
            );
        }
        writer.close().unwrap();
        assert!(matches!(writer.write(&lots[0]), Err(BufferError::Closed(_))));
        assert_eq!(everything(&*buffer), samples(&lots), "{kind:?}");
    }
}

#[test]
fn lots_and_names_that_are_known_are_not_stored_again() {
    for kind in Kind::BOTH {
        let folder = tempfile::tempdir().unwrap();
        kind.open(folder.path()).writer("w").unwrap().write(&lot(1, 5)).unwrap();
        // After a restart too.
        let buffer = kind.open(folder.path());
        let mut writer = buffer.writer("w").unwrap();
        let known = |known| WriteResult { known, ..WriteResult::default() };
        assert_eq!(writer.write(&lot(1, 5)).unwrap(), known(3));
        let renamed = WriteBatch { key: "another".into(), ..lot(1, 5) };
        assert_eq!(writer.write(&renamed).unwrap(), known(3));
        let mut mixed = lot(2, 5);
        mixed.samples.extend(lot(1, 5).samples);
        mixed.samples.extend(lot(2, 5).samples);
        assert_eq!(writer.write(&mixed).unwrap(), WriteResult { stored: 3, ..known(6) });
        writer.close().unwrap();
        assert_eq!(everything(&*buffer), samples(&[lot(1, 5), lot(2, 5)]), "{kind:?}");
    }
}

#[test]
fn a_short_read_returns_what_there_is() {
    for kind in Kind::BOTH {
        let folder = tempfile::tempdir().unwrap();
        let buffer = kind.open(folder.path());
        let mut reader = buffer.reader("r").unwrap();
        assert_eq!(now(&mut *reader, 1).end, ReadEnd::TimedOut);
        let mut writer = buffer.writer("w").unwrap();
        let mut other = buffer.writer("other").unwrap();
        writer.write(&lot(0, 1)).unwrap();
        let taken = now(&mut *reader, 2);
        assert_eq!((taken.samples.len(), taken.end), (2, ReadEnd::Full));
        writer.close().unwrap();
        let taken = now(&mut *reader, 2);
        assert_eq!((taken.samples.len(), taken.end), (1, ReadEnd::TimedOut));
        // A writer that died is counted once, under its name.
        drop(other);
        other = buffer.writer("other").unwrap();
        assert_eq!(now(&mut *reader, 2).end, ReadEnd::TimedOut);
        other.close().unwrap();
        assert_eq!(now(&mut *reader, 2).end, ReadEnd::Finished);
    }
}

#[test]
fn a_waiting_reader_is_woken_by_news_and_by_the_end() {
    for kind in Kind::BOTH {
        let folder = tempfile::tempdir().unwrap();
        let buffer = kind.open(folder.path());
        let mut writer = kind.open(folder.path()).writer("w").unwrap();
        let mut reader = buffer.reader("r").unwrap();
        let (sender, read) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..4 {
                    sender.send(reader.read(&ask(3, LONG)).unwrap()).unwrap();
                }
            });
            // Each is written when the last one was read: the reader waits, or is about to.
            for number in 0..3 {
                writer.write(&lot(number, 1)).unwrap();
                let taken = read.recv().unwrap();
                assert_eq!((taken.samples, taken.end), (lot(number, 1).samples, ReadEnd::Full));
            }
            writer.close().unwrap();
            let taken = read.recv().unwrap();
            assert_eq!((taken.samples.len(), taken.end), (0, ReadEnd::Finished));
        });
    }
}

#[test]
fn what_was_not_acknowledged_is_read_again() {
    for kind in Kind::BOTH {
        let folder = tempfile::tempdir().unwrap();
        let all = samples(&[lot(0, 1), lot(1, 1), lot(2, 1)]);
        let mut writer = kind.open(folder.path()).writer("w").unwrap();
        (0..3).for_each(|number| drop(writer.write(&lot(number, 1)).unwrap()));

        let mut reader = kind.open(folder.path()).reader("r").unwrap();
        assert_eq!(now(&mut *reader, 2).samples, all[..2]);
        assert_eq!(now(&mut *reader, 2).samples, all[2..4]);
        drop(reader);
        let mut reader = kind.open(folder.path()).reader("r").unwrap();
        assert_eq!(now(&mut *reader, 2).samples, all[2..4], "{kind:?}");
        let place = reader.position();
        let kept = reader.read(&ReadRequest { keep: true, ..ask(3, LONG) }).unwrap();
        assert_eq!(kept.samples, all[4..7]);
        drop(reader);
        let mut reader = kind.open(folder.path()).reader("r").unwrap();
        assert_eq!(now(&mut *reader, 1).samples, all[2..3], "{kind:?}: kept");

        // The trainer knows better where it is, forward and back.
        reader.seek(&place).unwrap();
        assert_eq!(now(&mut *reader, 9).samples, all[4..]);
        reader.seek("0:0").unwrap();
        assert_eq!(now(&mut *reader, 9).samples, all);
        for nonsense in ["", "1", "9:0", "1:4", "a:b"] {
            let error = reader.seek(nonsense).unwrap_err();
            assert!(matches!(error, BufferError::Unsupported { .. }), "{nonsense}: {error}");
        }
    }
}

#[test]
fn readers_of_one_name_share_a_position_in_one_process_at_a_time() {
    for kind in Kind::BOTH {
        let folder = tempfile::tempdir().unwrap();
        let buffer = kind.open(folder.path());
        buffer.writer("w").unwrap().write(&lot(0, 1)).unwrap();
        let mut first = buffer.reader("r").unwrap();
        let mut second = buffer.reader("r").unwrap();
        assert_eq!(now(&mut *first, 1).samples, lot(0, 1).samples[..1]);
        assert_eq!(now(&mut *second, 1).samples, lot(0, 1).samples[1..2]);
        // The second acknowledges its own, not what the first still holds.
        assert_eq!(now(&mut *second, 1).samples, lot(0, 1).samples[2..]);

        let elsewhere = kind.open(folder.path());
        let error = elsewhere.reader("r").err().map(|error| error.to_string()).unwrap();
        assert!(error.contains("reads it as `r`; read under another name"), "{error}");
        drop((first, second));
        let taken = now(&mut *elsewhere.reader("r").unwrap(), 9);
        assert_eq!(taken.samples, lot(0, 1).samples);
    }
}

#[test]
fn samples_of_old_versions_are_passed_over_and_counted() {
    for kind in Kind::BOTH {
        let folder = tempfile::tempdir().unwrap();
        let buffer = kind.open(folder.path());
        let mut writer = buffer.writer("w").unwrap();
        (0..3).for_each(|number| drop(writer.write(&lot(number, 1)).unwrap()));
        writer.close().unwrap();
        let mut reader = buffer.reader("r").unwrap();
        let taken = reader.read(&ReadRequest { min_model_version: 2, ..ask(9, LONG) }).unwrap();
        assert_eq!((taken.samples, taken.stale), (lot(2, 1).samples, 6));
    }
}
