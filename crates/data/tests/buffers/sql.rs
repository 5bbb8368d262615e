//! Buffers in databases: cursors, races, tables.

use std::thread;

use rollway_data::buffer::sql::SqlOptions;
use rollway_data::buffer::{BufferError, BufferOwner, ReadEnd, table};

use crate::support::{Bed, LONG, lot, numbers, open_sql, request, take, written};

#[test]
fn a_batch_is_known_after_its_rows_were_deleted() {
    for bed in Bed::sql("deleted") {
        let buffer = bed.open();
        let (mut writer, mut reader) = (buffer.writer("w").unwrap(), buffer.reader("r").unwrap());
        writer.write(&lot(0..5)).unwrap();
        assert_eq!(numbers(&take(&mut *reader, 100)), [0, 1, 2, 3, 4]);
        bed.execute(&format!("DELETE FROM \"{}\"", bed.table));
        assert_eq!(writer.write(&lot(0..5)).unwrap(), written(0, 5));
        assert_eq!(numbers(&take(&mut *reader, 100)), [0; 0]);
        // Row ids are never reused, so that no cursor skips a new row.
        assert_eq!(writer.write(&lot(20..22)).unwrap(), written(2, 0));
        assert_eq!(numbers(&take(&mut *reader, 100)), [20, 21]);
    }
}

#[test]
fn a_reader_resumes_and_seeks() {
    for bed in Bed::sql("position") {
        let buffer = bed.open();
        let mut writer = buffer.writer("w").unwrap();
        writer.write(&lot(0..6)).unwrap();
        let mut reader = buffer.reader("r").unwrap();
        let start = reader.position();
        assert_eq!(numbers(&take(&mut *reader, 2)), [0, 1]);
        let kept = reader.position();
        assert_eq!(numbers(&take(&mut *reader, 2)), [2, 3]);

        // A restarted trainer with a saved position.
        let buffer = bed.open();
        let mut reader = buffer.reader("r").unwrap();
        assert_eq!(numbers(&take(&mut *reader, 1)), [4]);
        reader.seek(&kept).unwrap();
        assert_eq!(reader.position(), kept);
        assert_eq!(numbers(&take(&mut *reader, 9)), [2, 3, 4, 5]);
        reader.seek(&start).unwrap();
        assert_eq!(numbers(&take(&mut *reader, 1)), [0]);
        // Other reader names have their own cursors.
        assert_eq!(numbers(&take(&mut *buffer.reader("other").unwrap(), 3)), [0, 1, 2]);

        for bad in ["", "7", "id:", "id:-1", "claim:1", "id:99"] {
            let error = reader.seek(bad).unwrap_err();
            assert!(matches!(error, BufferError::Unsupported { .. }), "{bad}: {error}");
        }
        assert_eq!(numbers(&take(&mut *reader, 1)), [1]);
    }
}

/// Writers and readers with their own connections. The cursor must not skip a row whose
/// transaction began earlier and ended later.
#[test]
fn racing_readers_of_one_name_share_all_rows() {
    const LOTS: u64 = 20;
    for bed in Bed::sql("race") {
        let bed = &bed;
        let mut all: Vec<u64> = thread::scope(|scope| {
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(move || {
                        let mut reader = bed.open().reader("r").unwrap();
                        let mut all = Vec::new();
                        loop {
                            let taken = reader.read(&request(7, LONG)).unwrap();
                            all.extend(numbers(&taken));
                            if taken.end == ReadEnd::Finished {
                                return all;
                            }
                        }
                    })
                })
                .collect();
            // Both open before either closes, or data would end in between.
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
fn foreign_and_newer_tables_are_refused() {
    for bed in Bed::sql("foreign") {
        bed.execute(&format!("CREATE TABLE \"{}_lot\" (a INTEGER)", bed.table));
        let error =
            open_sql(&bed.address, bed.options()).err().expect("it is not ours").to_string();
        assert!(error.contains("is not Rollway's") && error.contains("`table`"), "{error}");

        let newer = SqlOptions { table: "newer".into(), ..bed.options() };
        drop(bed.open_with(newer.clone()));
        bed.execute("UPDATE newer_state SET version = 9");
        let error = open_sql(&bed.address, newer).err().expect("it is newer").to_string();
        assert!(error.contains("layout 9") && error.contains("layout 1"), "{error}");

        let bad = SqlOptions { table: "a;b".into(), ..bed.options() };
        let error = open_sql(&bed.address, bad).err().expect("it is no name").to_string();
        assert!(error.contains("\"a;b\""), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
}

#[test]
fn table_names_are_derived_from_buffer_names() {
    assert_eq!(table("experience_buffer"), SqlOptions::default().table);
    assert_eq!(table("gsm8k-Buffer.2"), "gsm8k_buffer_2");
    assert_eq!(table("8k"), "_8k");
}

/// A read of a job must never return experiences of another one.
#[test]
fn a_buffer_belongs_to_the_first_job_that_opens_it() {
    let owner = |id: &str| Some(BufferOwner { id: id.into(), name: format!("`job_{id}`") });
    for bed in Bed::sql("owned").into_iter().chain(Bed::files()) {
        drop(bed.open());
        bed.open_as(owner("a")).unwrap().writer("explorer").unwrap().write(&lot(0..2)).unwrap();
        bed.open_as(owner("a")).unwrap();
        let Err(error) = bed.open_as(owner("b")) else { panic!("{}: shared", bed.address) };
        let error = error.to_string();
        let parts = ["job_a", "job_b", "`name`", "`shared: true`"];
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        // Without an owner the buffer is shared.
        assert_eq!(numbers(&take(&mut *bed.open().reader("r").unwrap(), 9)), [0, 1]);
    }
}
