//! Buffers of files: positions and shared reader names.

use rollway_data::buffer::BufferError;

use crate::support::{Bed, keep, lot, numbers, take};

#[test]
fn unacknowledged_samples_are_read_again() {
    for bed in Bed::files() {
        let mut writer = bed.open().writer("w").unwrap();
        (0..3).for_each(|at| drop(writer.write(&lot(at * 3..at * 3 + 3)).unwrap()));

        let mut reader = bed.open().reader("r").unwrap();
        assert_eq!(numbers(&take(&mut *reader, 2)), [0, 1]);
        assert_eq!(numbers(&take(&mut *reader, 2)), [2, 3]);
        drop(reader);
        let mut reader = bed.open().reader("r").unwrap();
        assert_eq!(numbers(&take(&mut *reader, 2)), [2, 3], "{bed:?}");
        let position = reader.position();
        assert_eq!(numbers(&reader.read(&keep(3)).unwrap()), [4, 5, 6]);
        drop(reader);
        let mut reader = bed.open().reader("r").unwrap();
        assert_eq!(numbers(&take(&mut *reader, 1)), [2], "{bed:?}: kept");

        reader.seek(&position).unwrap();
        assert_eq!(numbers(&take(&mut *reader, 9)), [4, 5, 6, 7, 8]);
        reader.seek("0:0").unwrap();
        assert_eq!(numbers(&take(&mut *reader, 9)), (0..9).collect::<Vec<_>>());
        for invalid in ["", "1", "9:0", "1:4", "a:b"] {
            let error = reader.seek(invalid).unwrap_err();
            assert!(matches!(error, BufferError::Unsupported { .. }), "{invalid}: {error}");
        }
    }
}

#[test]
fn readers_of_one_name_share_a_position_in_one_process_at_a_time() {
    for bed in Bed::files() {
        let buffer = bed.open();
        buffer.writer("w").unwrap().write(&lot(0..3)).unwrap();
        let mut first = buffer.reader("r").unwrap();
        let mut second = buffer.reader("r").unwrap();
        assert_eq!(numbers(&take(&mut *first, 1)), [0]);
        assert_eq!(numbers(&take(&mut *second, 1)), [1]);
        // The second acknowledges its own samples, not those of the first.
        assert_eq!(numbers(&take(&mut *second, 1)), [2]);

        let other = bed.open();
        let error = other.reader("r").err().unwrap().to_string();
        assert!(error.contains("reads it as `r`; read under another name"), "{error}");
        drop((first, second));
        assert_eq!(numbers(&take(&mut *other.reader("r").unwrap(), 9)), [0, 1, 2]);
    }
}
