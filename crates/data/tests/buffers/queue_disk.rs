//! Durable and spilling queues: recovery, freed space and memory.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::time::Duration;

use rollway_data::buffer::queue::{QueueFullPolicy, QueueOptions};
use rollway_data::buffer::{BufferError, ExperienceQueue, ReadEnd};
use rollway_testkit::child_test;

use crate::support::{
    LONG, batch, batch_of, ids, keep, now, numbered, open_queue, queue_options, reader, request,
    until, writer,
};

fn durable(folder: &Path) -> QueueOptions {
    QueueOptions { path: Some(folder.to_owned()), ..queue_options() }
}

#[test]
fn unacknowledged_samples_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let queue = open_queue(durable(folder.path()));
    let mut writer_one = writer(&queue);
    let mut mixed = batch_of("1", 4, &["a", "b", "c"]);
    mixed.samples[0].reward = None;
    writer_one.write(&mixed).unwrap();
    writer_one.write(&batch_of("2", 5, &["d"])).unwrap();
    let mut reader_one = reader(&queue);
    assert_eq!(ids(&reader_one.read(&now(1)).unwrap()), ["a"]);
    assert_eq!(ids(&reader_one.read(&now(2)).unwrap()), ["b", "c"]);
    let position = reader_one.position();
    let error = ExperienceQueue::open(durable(folder.path())).unwrap_err().to_string();
    assert!(error.contains("in use"), "{error}");
    drop((writer_one, reader_one, queue));

    let queue = open_queue(durable(folder.path()));
    assert_eq!((queue.usage().unread, queue.usage().write_batches), (3, 2));
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    let again = writer.write(&mixed).unwrap();
    assert_eq!((again.stored, again.known), (0, 3));
    let again = writer.write(&batch("3", &["a", "d", "e"])).unwrap();
    assert_eq!((again.stored, again.known), (1, 2));
    let taken = reader.read(&now(1)).unwrap();
    assert_eq!(taken.samples, mixed.samples[1..2]);
    assert!(reader.seek("0").unwrap_err().to_string().contains("acknowledged"));
    reader.seek(&position).unwrap();
    assert_eq!(ids(&reader.read(&now(9)).unwrap()), ["d", "e"]);
}

#[test]
fn files_are_freed_and_ids_outlive_them() {
    let folder = tempfile::tempdir().unwrap();
    let options = || QueueOptions {
        disk_bytes_max: 1 << 20,
        known_max: 200,
        bytes_max: 100_000,
        ..durable(folder.path())
    };
    let queue = open_queue(options());
    let (mut writer_one, mut reader_one) = (writer(&queue), reader(&queue));
    let lot = |number: usize| numbered(number, 4, 8000);
    // Ten times the limit of the disk goes through.
    for number in 0..320 {
        assert_eq!(writer_one.write(&lot(number)).unwrap().stored, 4);
        assert_eq!(reader_one.read(&now(4)).unwrap().samples, lot(number).samples);
        let usage = queue.usage();
        assert!(usage.disk_bytes <= 1 << 20 && usage.bytes <= 100_000, "{usage:?}");
    }
    reader_one.read(&now(0)).unwrap();
    // Without a reader the disk fills up.
    let refused = (320..).map(|number| writer_one.write(&lot(number))).find_map(Result::err);
    let refused = refused.unwrap();
    assert!(matches!(refused, BufferError::Full { .. }), "{refused}");
    assert!(refused.to_string().contains("max_disk_bytes = 1048576"), "{refused}");
    let waiting = queue.usage().unread;
    drop((writer_one, reader_one, queue));

    let queue = open_queue(options());
    let mut writer = writer(&queue);
    assert_eq!(queue.usage().unread, waiting);
    // The last 200 removed ids are known, five per batch.
    for number in 281..320 {
        assert_eq!(writer.write(&lot(number)).unwrap().known, 4, "{number}");
    }
    let samples = reader(&queue).read(&now(4)).unwrap().samples;
    assert_eq!(samples, lot(320).samples);
}

#[test]
fn an_interrupted_batch_is_discarded() {
    let folder = tempfile::tempdir().unwrap();
    let queue = open_queue(durable(folder.path()));
    let mut writer_one = writer(&queue);
    writer_one.write(&batch("1", &["a"])).unwrap();
    writer_one.write(&batch("2", &["b", "c"])).unwrap();
    drop((writer_one, queue));
    // Cuts the frame that commits the second batch.
    let segment = folder.path().join("samples/00000000000000000001.log");
    let file = std::fs::OpenOptions::new().write(true).open(segment).unwrap();
    file.set_len(file.metadata().unwrap().len() - 10).unwrap();

    // The batch was acknowledged, so that its loss is reported.
    let error = ExperienceQueue::open(durable(folder.path())).unwrap_err();
    assert!(matches!(error, BufferError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("was acknowledged"), "{error}");
    // A crash in the middle of the write has not recorded it.
    std::fs::remove_file(folder.path().join("samples/end")).unwrap();
    let queue = open_queue(durable(folder.path()));
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    assert_eq!(queue.usage().unread, 1);
    assert_eq!(writer.write(&batch("2", &["b", "c"])).unwrap().stored, 2);
    assert_eq!(ids(&reader.read(&now(9)).unwrap()), ["a", "b", "c"]);
    drop((writer, reader, queue));
    let queue = open_queue(durable(folder.path()));
    assert_eq!(ids(&self::reader(&queue).read(&now(9)).unwrap()), ["a", "b", "c"]);
}

#[test]
fn spilled_samples_return_in_order_and_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let spill =
        QueueFullPolicy::Spill { folder: folder.path().to_owned(), timeout: Duration::ZERO };
    let options = || QueueOptions {
        bytes_max: 100_000,
        disk_bytes_max: 4 << 20,
        when_full: spill.clone(),
        ..queue_options()
    };
    let queue = open_queue(options());
    let error = ExperienceQueue::open(options()).unwrap_err().to_string();
    assert!(error.contains("in use"), "{error}");
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    let lot = |number: usize| numbered(number, 2, 5000);
    let mut written = 0;
    let mut read = 0;
    // Writes twice as much as it reads, so that memory and files alternate.
    for _ in 0..100 {
        for _ in 0..2 {
            writer.write(&lot(written)).unwrap();
            written += 1;
        }
        assert_eq!(reader.read(&now(2)).unwrap().samples, lot(read).samples);
        read += 1;
    }
    assert!(queue.usage().disk_bytes > 500_000, "{:?}", queue.usage());
    // Held samples on disk can be read again, too.
    let position = reader.position();
    reader.read(&keep(20)).unwrap();
    reader.seek(&position).unwrap();
    while read < written {
        assert_eq!(reader.read(&now(2)).unwrap().samples, lot(read).samples);
        read += 1;
    }
    reader.read(&now(0)).unwrap();
    let usage = queue.usage();
    assert!(usage.bytes == 0 && usage.disk_bytes <= 1 << 20, "{usage:?}");
    assert!(usage.bytes_peak <= 100_000, "{usage:?}");
    drop((writer, reader, queue));
    assert!(!folder.path().join("spill").exists());
}

const CHILD: &str = "ROLLWAY_QUEUE_TEST_CHILD";

fn report(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "report {text}").and_then(|()| out.flush()).unwrap();
}

/// Writes batches of three, reads four samples at a time and reports each step until killed.
fn write_and_read(folder: &Path, first: usize) {
    let queue = open_queue(durable(folder));
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    for number in first.. {
        let batch = numbered(number, 3, 8);
        let names: Vec<&str> = batch.samples.iter().map(|sample| &*sample.id).collect();
        report(&format!("writing {}", names.join(" ")));
        writer.write(&batch).unwrap();
        report("written");
        if number % 2 == 1 {
            report("acknowledging");
            let taken = reader.read(&now(4)).unwrap();
            report(&format!("read {}", ids(&taken).join(" ")));
        }
    }
}

#[test]
fn a_kill_at_any_moment_loses_and_duplicates_nothing() {
    let test = "queue_disk::a_kill_at_any_moment_loses_and_duplicates_nothing";
    if let Some((number, folder)) =
        std::env::var(CHILD).as_deref().ok().and_then(|parts| parts.split_once(' '))
    {
        return write_and_read(Path::new(folder), number.parse().unwrap());
    }
    let folder = tempfile::tempdir().unwrap();
    // Ids that must be stored, must not be, and may be.
    let (mut there, mut gone, mut maybe) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (round, lines) in [1, 2, 7, 23, 58, 101].into_iter().enumerate() {
        let parts = format!("{} {}", round * 1000, folder.path().display());
        let mut child = child_test(test, CHILD, parts).spawn().unwrap();
        let mut held: Vec<String> = Vec::new();
        let mut writing: Vec<String> = Vec::new();
        let reports = BufReader::new(child.stdout.take().unwrap()).lines();
        let reports = reports.map_while(Result::ok);
        let reports = reports.filter_map(|line| Some(line.split_once("report ")?.1.to_owned()));
        let mut count = 0;
        // Reports after the kill was decided count as well.
        for line in reports {
            count += 1;
            if count == lines {
                child.kill().unwrap();
            }
            let mut parts = line.split(' ').map(str::to_owned);
            match parts.next().as_deref() {
                Some("writing") => writing = parts.collect(),
                Some("written") => there.extend(writing.drain(..)),
                Some("acknowledging") => {
                    for id in &held {
                        there.remove(id);
                        maybe.insert(id.clone());
                    }
                }
                Some("read") => {
                    for id in held.drain(..) {
                        maybe.remove(&id);
                        gone.insert(id);
                    }
                    held = parts.collect();
                    // The uncertain ones are stored after all.
                    for id in &held {
                        assert!(!gone.contains(id), "{id} came twice");
                        maybe.remove(id);
                        there.insert(id.clone());
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        maybe.extend(writing);
        child.wait().unwrap();
        let queue = open_queue(durable(folder.path()));
        let taken = reader(&queue).read(&now(100_000)).unwrap();
        let found: BTreeSet<String> = ids(&taken).into_iter().map(str::to_owned).collect();
        assert_eq!(found.len(), taken.samples.len(), "something is there twice");
        assert!(there.is_subset(&found), "lost: {:?}", there.difference(&found));
        let allowed: BTreeSet<String> = there.union(&maybe).cloned().collect();
        assert!(found.is_subset(&allowed), "came back: {:?}", found.difference(&allowed));
    }
    assert!(gone.len() > 50, "{}", gone.len());
}

const BUDGET: usize = 16 << 20;

/// Memory beside the budget: ids and entries of samples on disk, samples in the log and with the
/// reader, and the allocator.
const CONSTANT: usize = 16 << 20;

fn memory(field: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// Writes ten times the budget and reports the memory used.
fn offer(when_full: QueueFullPolicy, consume: bool) {
    let queue = open_queue(QueueOptions { bytes_max: BUDGET, when_full, ..queue_options() });
    let before = memory("VmRSS");
    std::thread::scope(|scope| {
        let mut writer = writer(&queue);
        scope.spawn(move || {
            for number in 0..10 * BUDGET / (4 * 32_768) {
                writer.write(&numbered(number, 4, 32_768)).unwrap();
            }
            writer.close().unwrap();
        });
        let mut reader = reader(&queue);
        let request = request(16, LONG);
        until(|| !consume || queue.waiting_writers() > 0);
        while consume && reader.read(&request).unwrap().end != ReadEnd::Finished {}
    });
    let (grown, usage) = (memory("VmHWM").saturating_sub(before), queue.usage());
    assert!(usage.bytes_peak <= BUDGET, "{usage:?}");
    // The queue was full at some time; otherwise the test shows nothing.
    assert!(usage.bytes_peak > BUDGET - 5 * 32_768, "{usage:?}");
    report(&format!("{grown} {}", usage.disk_bytes));
}

#[test]
fn memory_stays_within_the_budget() {
    let test = "queue_disk::memory_stays_within_the_budget";
    let folder = tempfile::tempdir().unwrap();
    match std::env::var(CHILD).as_deref().map(|parts| parts.split_once(' ').unwrap()) {
        Ok(("spill", folder)) => {
            let folder = Path::new(folder).to_owned();
            return offer(QueueFullPolicy::Spill { folder, timeout: LONG }, false);
        }
        Ok(_) => return offer(QueueFullPolicy::Wait { timeout: LONG }, true),
        Err(_) => {}
    }
    for policy in ["spill", "wait"] {
        let task = format!("{policy} {}", folder.path().display());
        let child = child_test(test, CHILD, task).spawn().unwrap();
        let output = child.wait_with_output().unwrap();
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        let report = output.split_once("report ").unwrap_or_else(|| panic!("{output}")).1;
        let mut numbers =
            report.split_whitespace().map(|number| number.parse::<usize>().unwrap_or(0));
        let (grown, on_disk) = (numbers.next().unwrap(), numbers.next().unwrap());
        assert!(grown <= BUDGET + CONSTANT, "{policy}: {grown} bytes");
        assert_eq!(on_disk > 8 * BUDGET, policy == "spill");
    }
}
