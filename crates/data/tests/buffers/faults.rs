//! Full disks, cut connections, unresponsive servers: clear errors, nothing lost or duplicated.

use std::fs;
use std::thread;
use std::time::Duration;

use rollway_data::buffer::sql::SqlOptions;
use rollway_data::buffer::{BufferError, ReadEnd};
use rollway_data::{Sample, WriteBatch};
use rollway_experience::{Eid, Experience, ExperienceFields};
use rollway_testkit::postgres::address;

use crate::proxy::{Plan, Proxy};
use crate::support::{
    Bed, LONG, execute_postgres, lot, numbers, open_sql, request, server, take, written,
};

/// No retries, so that faults are visible.
fn once(bed: &Bed) -> SqlOptions {
    SqlOptions { max_retry_times: 0, ..bed.options() }
}

fn quick(bed: &Bed) -> SqlOptions {
    SqlOptions { max_retry_interval: Duration::from_millis(20), ..bed.options() }
}

/// A bed in PostgreSQL behind a proxy.
fn behind_proxy(table: &str) -> (Bed, Proxy) {
    let proxy = Proxy::to(server().port);
    (Bed::at(address(proxy.port, "postgres"), table), proxy)
}

#[test]
fn a_full_storage_takes_a_lot_whole_or_not_at_all() {
    for bed in Bed::sql("full") {
        let small = SqlOptions { max_bytes: Some(300_000), ..once(&bed) };
        let buffer = bed.open_with(small);
        let mut writer = buffer.writer("w").unwrap();
        let lots: Vec<_> = (0..40).map(|number| lot(number * 50..number * 50 + 50)).collect();
        let fit = lots.iter().take_while(|lot| match writer.write(lot) {
            Ok(_) => true,
            Err(error) => {
                assert!(matches!(error, BufferError::Full { .. }), "{error}");
                false
            }
        });
        let fit = fit.count();
        assert!((1..lots.len()).contains(&fit), "{fit}");
        // With room again all batches are accepted.
        let buffer = bed.open();
        let mut writer = buffer.writer("w").unwrap();
        for (number, lot) in lots.iter().enumerate() {
            let expected = if number < fit { written(0, 50) } else { written(50, 0) };
            assert_eq!(writer.write(lot).unwrap(), expected, "{number}");
        }
        let taken = take(&mut *buffer.reader("r").unwrap(), 9999);
        assert_eq!(numbers(&taken), (0..2000).collect::<Vec<_>>());
    }
}

#[test]
fn invalid_sqlite_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text.db");
    fs::write(&path, "no database, but long enough to be taken for one. ".repeat(50)).unwrap();
    let error =
        open_sql(&format!("sqlite:///{}", path.display()), SqlOptions::default()).err().unwrap();
    assert!(matches!(error, BufferError::Damaged { .. }), "{error}");
    let path = folder.path().join("absent/buffer.db");
    let error =
        open_sql(&format!("sqlite:///{}", path.display()), SqlOptions::default()).err().unwrap();
    assert!(matches!(error, BufferError::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("there is no folder"), "{error}");
    let error = open_sql("sqlite://", SqlOptions::default()).err().unwrap();
    assert!(matches!(error, BufferError::Unsupported { .. }), "{error}");
}

#[test]
fn a_locked_file_is_given_up_at_the_timeout() {
    let bed = Bed::sqlite();
    let buffer =
        bed.open_with(SqlOptions { call_timeout: Duration::from_millis(20), ..once(&bed) });
    let mut writer = buffer.writer("w").unwrap();
    let path = bed.address.strip_prefix("sqlite:///").unwrap();
    let other = rusqlite::Connection::open(path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = writer.write(&lot(0..1)).unwrap_err();
    assert!(matches!(error, BufferError::Unavailable { .. }), "{error}");
    other.execute_batch("COMMIT").unwrap();
    assert_eq!(writer.write(&lot(0..1)).unwrap(), written(1, 0));
}

#[test]
fn server_errors_name_the_cause_without_the_password() {
    let bed = Bed::postgres("refused");
    let port = server().port;
    bed.execute("CREATE ROLE outsider LOGIN PASSWORD 'secret'");
    bed.execute("CREATE DATABASE strange");
    let strange = server().address("strange");
    execute_postgres(&strange, "REVOKE CREATE ON SCHEMA public FROM public");
    let outsider = strange.replace("rollway:", "outsider:");
    let wrong = bed.address.replace(":secret@", ":secret-but-wrong@");
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    for (address, unavailable, word) in [
        (address(free, "postgres"), true, "refused"),
        (wrong, true, "password authentication failed"),
        (address(port, "absent"), true, "does not exist"),
        (outsider, false, "permission denied"),
    ] {
        let error = open_sql(&address, once(&bed)).err().expect(word);
        let text = error.to_string();
        assert_eq!(matches!(error, BufferError::Unavailable { .. }), unavailable, "{text}");
        assert!(text.contains(word) && text.contains("127.0.0.1:"), "{text}");
        assert!(!text.contains("secret"), "{text}");
    }
}

/// Cuts the writer's connection after various numbers of bytes and during the commit; then the
/// caller writes the batch again.
#[test]
fn a_connection_that_is_cut_while_writing_costs_nothing() {
    let (bed, proxy) = behind_proxy("cut_write");
    let buffer = bed.open_with(once(&bed));
    let mut writer = buffer.writer("w").unwrap();
    let cuts = (0..16).map(|number| Plan::CutAfter(1 + number * 97));
    let cuts = cuts.chain([Plan::CutBeforeCommit, Plan::CutAfterCommit]);
    let mut count = 0;
    for (number, plan) in (0..).zip(cuts) {
        let lot = lot(number * 10..number * 10 + 10);
        proxy.plan(plan);
        let error = writer.write(&lot).unwrap_err();
        assert!(matches!(error, BufferError::Unavailable { .. }), "{plan:?}: {error}");
        assert!(proxy.happened(), "{plan:?}");
        let again = writer.write(&lot).unwrap();
        let stored = plan == Plan::CutAfterCommit;
        assert_eq!(again, if stored { written(0, 10) } else { written(10, 0) }, "{plan:?}");
        count += 10;
    }
    // With retries the caller notices nothing, and the counts are right.
    let mut writer = bed.open_with(quick(&bed)).writer("w").unwrap();
    for (number, plan) in (100..).zip([Plan::CutBeforeCommit, Plan::CutAfterCommit]) {
        proxy.plan(plan);
        let lot = lot(number * 10..number * 10 + 10);
        assert_eq!(writer.write(&lot).unwrap(), written(10, 0), "{plan:?}");
        assert!(proxy.happened(), "{plan:?}");
        count += 10;
    }
    let taken = take(&mut *buffer.reader("r").unwrap(), 9999);
    assert_eq!(numbers(&taken).len(), count);
}

/// The claim of a read may be committed without a response; its rows must be returned.
#[test]
fn a_connection_that_is_cut_while_reading_loses_nothing() {
    let (bed, proxy) = behind_proxy("cut_read");
    bed.open().writer("w").unwrap().write(&lot(0..40)).unwrap();
    for (name, options) in [("once", once(&bed)), ("again", quick(&bed))] {
        let retries = options.max_retry_times > 0;
        let buffer = bed.open_with(options);
        let mut reader = buffer.reader(name).unwrap();
        let mut all = Vec::new();
        for plan in [Plan::CutBeforeCommit, Plan::CutAfterCommit, Plan::CutAfter(30)] {
            proxy.plan(plan);
            let mut read = reader.read(&request(10, Duration::ZERO));
            assert!(proxy.happened(), "{plan:?}");
            if !retries {
                let error = read.expect_err("it was cut");
                assert!(matches!(error, BufferError::Unavailable { .. }), "{error}");
                // Another reader of the name must not get the claimed rows.
                all.extend(numbers(&take(&mut *buffer.reader(name).unwrap(), 2)));
                // Requests fewer rows than were claimed; the rest follows.
                let first = reader.read(&request(4, Duration::ZERO)).unwrap();
                all.extend(numbers(&first));
                read = reader.read(&request(6, Duration::ZERO));
            }
            all.extend(numbers(&read.unwrap()));
        }
        all.extend(numbers(&take(&mut *reader, 99)));
        all.sort_unstable();
        assert_eq!(all, (0..40).collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn a_blocked_reader_survives_the_loss_of_its_connection() {
    let (bed, proxy) = behind_proxy("cut_wait");
    let direct = Bed::postgres("cut_wait");
    let mut writer = direct.open().writer("w").unwrap();
    let mut reader = bed.open_with(quick(&bed)).reader("r").unwrap();
    let reading = thread::spawn(move || {
        let taken = reader.read(&request(2, LONG)).unwrap();
        (numbers(&taken), taken.end)
    });
    writer.write(&lot(0..1)).unwrap();
    proxy.plan(Plan::CutNow);
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE pid IN (SELECT pid FROM pg_stat_activity WHERE query LIKE '%cut_wait%')
        AND pid <> pg_backend_pid()";
    direct.execute(end);
    assert_eq!(writer.write(&lot(1..2)).unwrap(), written(1, 0));
    assert_eq!(reading.join().unwrap(), (vec![0, 1], ReadEnd::Full));
}

#[test]
fn a_server_that_does_not_answer_is_given_up_at_the_limit() {
    let (bed, proxy) = behind_proxy("silent");
    let short = SqlOptions { call_timeout: Duration::from_millis(300), ..bed.options() };
    let buffer = bed.open_with(short);
    let mut writer = buffer.writer("w").unwrap();
    let mut reader = buffer.reader("r").unwrap();
    proxy.plan(Plan::Silence);
    let error = writer.write(&lot(0..3)).unwrap_err();
    assert!(error.to_string().contains("took longer than the 0.3 s"), "{error}");
    assert_eq!(writer.write(&lot(0..3)).unwrap(), written(3, 0));
    proxy.plan(Plan::Silence);
    let error = reader.read(&request(3, LONG)).unwrap_err();
    assert!(error.to_string().contains("took longer than the 0.3 s"), "{error}");
    assert_eq!(numbers(&take(&mut *reader, 3)), [0, 1, 2]);
    // A new connection times out as well.
    proxy.plan(Plan::Silence);
    let options = SqlOptions { connect_timeout: Duration::from_millis(100), ..once(&bed) };
    let error = open_sql(&bed.address, options).err().unwrap();
    assert!(error.to_string().contains("took longer than the 0.1 s"), "{error}");
}

#[test]
fn values_that_the_server_refuses_are_errors_of_the_content() {
    let bed = Bed::postgres("content");
    let mut writer = bed.open().writer("w").unwrap();
    let named = |suffix: String| {
        let eid = Eid { suffix, ..Eid::default() };
        let fields = ExperienceFields { eid, tokens: [1, 2].into(), ..Default::default() };
        let sample = Sample::new(&Experience::new(fields).unwrap()).unwrap();
        WriteBatch { key: "named".into(), samples: vec![sample] }
    };
    // A text with NUL, and an id that does not fit into the index even when compressed.
    let mut random = 1_u64;
    let mut letter = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        char::from(b'a' + (random >> 33) as u8 % 26)
    };
    let long = (0..60_000).map(|_| letter()).collect();
    for (suffix, code) in [("a\0b".to_owned(), "22021"), (long, "54000")] {
        let error = writer.write(&named(suffix)).unwrap_err();
        assert!(matches!(error, BufferError::Content { .. }), "{error}");
        assert!(error.to_string().contains(code), "{error}");
    }
    assert_eq!(writer.write(&lot(0..5)).unwrap(), written(5, 0));
}
