//! Pool mode: newest rows first, and reuse.

use rollway_data::buffer::sql::{ReadOrder, SqlOptions};
use rollway_data::buffer::{ReadEnd, ReadRequest};

use crate::support::{Bed, lot, now, numbers, take};

#[test]
fn the_newest_come_first_and_go_to_one_reader() {
    for bed in Bed::sql("newest") {
        let options = SqlOptions { order: ReadOrder::NewestFirst, ..bed.options() };
        let buffer = bed.open_with(options);
        let mut writer = buffer.writer("w").unwrap();
        writer.write(&lot(0..6)).unwrap();
        let mut reader = buffer.reader("r").unwrap();
        assert_eq!(numbers(&take(&mut *reader, 2)), [5, 4]);
        let kept = reader.position();
        let newer = ReadRequest { min_model_version: 2, ..now(1) };
        let taken = reader.read(&newer).unwrap();
        assert_eq!((numbers(&taken), taken.stale), (vec![3], 2));
        writer.write(&lot(6..7)).unwrap();
        assert_eq!(numbers(&take(&mut *buffer.reader("other").unwrap(), 1)), [6]);
        assert_eq!(numbers(&take(&mut *reader, 9)), [2]);
        // Later claims and skips of this name are read again, those of the other reader are not.
        let mut reader = bed
            .open_with(SqlOptions { order: ReadOrder::NewestFirst, ..bed.options() })
            .reader("r")
            .unwrap();
        reader.seek(&kept).unwrap();
        assert_eq!(numbers(&take(&mut *reader, 9)), [3, 2, 1, 0]);
        assert!(reader.seek("id:1").is_err());
        writer.close().unwrap();
        assert_eq!(take(&mut *reader, 1).end, ReadEnd::Finished);
    }
}

#[test]
fn rows_are_used_again_until_the_writers_close() {
    for (order, first, second) in
        [(ReadOrder::Fifo, [0, 1], [2, 0]), (ReadOrder::NewestFirst, [2, 1], [0, 2])]
    {
        for bed in Bed::sql(&format!("reuse_{}", first[0])) {
            let buffer = bed.open_with(SqlOptions { order, reuse: true, ..bed.options() });
            let mut writer = buffer.writer("w").unwrap();
            writer.write(&lot(0..3)).unwrap();
            let mut reader = buffer.reader("r").unwrap();
            assert_eq!(numbers(&take(&mut *reader, 2)), first);
            assert_eq!(numbers(&take(&mut *reader, 2)), second);
            writer.write(&lot(3..4)).unwrap();
            writer.close().unwrap();
            let last = take(&mut *reader, 2);
            assert_eq!((numbers(&last), last.end), (vec![3], ReadEnd::Finished));
        }
    }
}
