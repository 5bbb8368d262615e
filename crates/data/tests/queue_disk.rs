//! The queue in files: what survives, what is freed, and what memory it takes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod queue_help;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::time::Duration;

use queue_help::*;
use rollway_data::WriteBatch;
use rollway_data::buffer::queue::{QueueFullPolicy, QueueOptions};
use rollway_data::buffer::{BufferError, ExperienceQueue, ReadEnd, ReadRequest};
use rollway_testkit::child_test;

fn durable(folder: &Path) -> QueueOptions {
    QueueOptions { path: Some(folder.to_owned()), ..options() }
}

#[test]
fn what_was_not_acknowledged_comes_again_and_what_was_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let queue = open(durable(folder.path()));
    let mut writer_one = writer(&queue);
    let mut mixed = lot_of("1", 4, &["a", "b", "c"]);
    mixed.samples[0].reward = None;
    writer_one.write(&mixed).unwrap();
    writer_one.write(&lot_of("2", 5, &["d"])).unwrap();
    let mut reader_one = reader(&queue);
    assert_eq!(ids(&reader_one.read(&now(1)).unwrap()), ["a"]);
    assert_eq!(ids(&reader_one.read(&now(2)).unwrap()), ["b", "c"]);
    let position = reader_one.position();
    let error = ExperienceQueue::open(durable(folder.path())).unwrap_err().to_string();
    assert!(error.contains("in use"), "{error}");
    drop((writer_one, reader_one, queue));

    let queue = open(durable(folder.path()));
    assert_eq!((queue.usage().unread, queue.usage().lots), (3, 2));
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    let again = writer.write(&mixed).unwrap();
    assert_eq!((again.stored, again.known), (0, 3));
    let again = writer.write(&lot("3", &["a", "d", "e"])).unwrap();
    assert_eq!((again.stored, again.known), (1, 2));
    let taken = reader.read(&now(1)).unwrap();
    assert_eq!(taken.samples, mixed.samples[1..2]);
    assert!(reader.seek("0").unwrap_err().to_string().contains("acknowledged"));
    reader.seek(&position).unwrap();
    assert_eq!(ids(&reader.read(&now(9)).unwrap()), ["d", "e"]);
}

#[test]
fn files_are_freed_and_names_outlive_them() {
    let folder = tempfile::tempdir().unwrap();
    let options = || QueueOptions {
        disk_bytes_max: 1 << 20,
        known_max: 200,
        bytes_max: 100_000,
        ..durable(folder.path())
    };
    let queue = open(options());
    let (mut writer_one, mut reader_one) = (writer(&queue), reader(&queue));
    let lot = |number: usize| {
        let samples = (0..4).map(|at| sample(&format!("{number}/{at}"), 0, 8000)).collect();
        WriteBatch { key: number.to_string().into(), samples }
    };
    // Ten times the limit of the disk goes through.
    for number in 0..320 {
        assert_eq!(writer_one.write(&lot(number)).unwrap().stored, 4);
        assert_eq!(reader_one.read(&now(4)).unwrap().samples, lot(number).samples);
        let usage = queue.usage();
        assert!(usage.disk_bytes <= 1 << 20 && usage.bytes <= 100_000, "{usage:?}");
    }
    reader_one.read(&now(0)).unwrap();
    // Nobody reads: the disk fills up, and says so.
    let refused = (320..).map(|number| writer_one.write(&lot(number))).find_map(Result::err);
    let refused = refused.unwrap();
    assert!(matches!(refused, BufferError::Full { .. }), "{refused}");
    assert!(refused.to_string().contains("disk_bytes_max = 1048576"), "{refused}");
    let waiting = queue.usage().unread;
    drop((writer_one, reader_one, queue));

    let queue = open(options());
    let mut writer = writer(&queue);
    assert_eq!(queue.usage().unread, waiting);
    // Of what was acknowledged the last 200 names are known, five to a lot.
    for number in 281..320 {
        assert_eq!(writer.write(&lot(number)).unwrap().known, 4, "{number}");
    }
    let samples = reader(&queue).read(&now(4)).unwrap().samples;
    assert_eq!(samples, lot(320).samples);
}

#[test]
fn a_lot_that_a_crash_cut_short_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let queue = open(durable(folder.path()));
    let mut writer_one = writer(&queue);
    writer_one.write(&lot("1", &["a"])).unwrap();
    writer_one.write(&lot("2", &["b", "c"])).unwrap();
    drop((writer_one, queue));
    // The frame that makes the second lot count is cut in its middle.
    let segment = folder.path().join("samples/00000000000000000001.log");
    let file = std::fs::OpenOptions::new().write(true).open(segment).unwrap();
    file.set_len(file.metadata().unwrap().len() - 10).unwrap();

    let queue = open(durable(folder.path()));
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    assert_eq!(queue.usage().unread, 1);
    assert_eq!(writer.write(&lot("2", &["b", "c"])).unwrap().stored, 2);
    assert_eq!(ids(&reader.read(&now(9)).unwrap()), ["a", "b", "c"]);
    drop((writer, reader, queue));
    let queue = open(durable(folder.path()));
    assert_eq!(ids(&self::reader(&queue).read(&now(9)).unwrap()), ["a", "b", "c"]);
}

#[test]
fn what_is_spilled_comes_back_in_order_and_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let spill =
        QueueFullPolicy::Spill { folder: folder.path().to_owned(), timeout: Duration::ZERO };
    let options = || QueueOptions {
        bytes_max: 100_000,
        disk_bytes_max: 4 << 20,
        when_full: spill.clone(),
        ..options()
    };
    let queue = open(options());
    let error = ExperienceQueue::open(options()).unwrap_err().to_string();
    assert!(error.contains("in use"), "{error}");
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    let lot = |number: usize| {
        let samples = (0..2).map(|at| sample(&format!("{number}/{at}"), 0, 5000)).collect();
        WriteBatch { key: number.to_string().into(), samples }
    };
    let mut written = 0;
    let mut read = 0;
    // Twice what is read, so that memory and files take turns.
    for _ in 0..100 {
        for _ in 0..2 {
            writer.write(&lot(written)).unwrap();
            written += 1;
        }
        assert_eq!(reader.read(&now(2)).unwrap().samples, lot(read).samples);
        read += 1;
    }
    assert!(queue.usage().disk_bytes > 500_000, "{:?}", queue.usage());
    // What is held on disk can be read again, too.
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

fn say(words: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "say {words}").and_then(|()| out.flush()).unwrap();
}

/// Writes lots of three and reads fours, and says so each time, until it is killed.
fn write_and_read(folder: &Path, first: usize) {
    let queue = open(durable(folder));
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    for number in first.. {
        let names: Vec<String> = (0..3).map(|at| format!("{number}/{at}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        say(&format!("writing {}", names.join(" ")));
        writer.write(&lot(&number.to_string(), &names)).unwrap();
        say("written");
        if number % 2 == 1 {
            say("acknowledging");
            let taken = reader.read(&now(4)).unwrap();
            say(&format!("read {}", ids(&taken).join(" ")));
        }
    }
}

#[test]
fn killed_at_any_moment_nothing_is_lost_and_nothing_comes_twice() {
    let test = "killed_at_any_moment_nothing_is_lost_and_nothing_comes_twice";
    if let Some((number, folder)) =
        std::env::var(CHILD).as_deref().ok().and_then(|words| words.split_once(' '))
    {
        return write_and_read(Path::new(folder), number.parse().unwrap());
    }
    let folder = tempfile::tempdir().unwrap();
    // What must be there, what must not, and what may be.
    let mut there = BTreeSet::new();
    let mut gone = BTreeSet::new();
    let mut maybe = BTreeSet::new();
    for (round, lines) in [1, 2, 7, 23, 58, 101].into_iter().enumerate() {
        let words = format!("{} {}", round * 1000, folder.path().display());
        let mut child = child_test(test, CHILD, words).spawn().unwrap();
        let mut held: Vec<String> = Vec::new();
        let mut writing: Vec<String> = Vec::new();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = said.map_while(Result::ok);
        let said = said.filter_map(|line| Some(line.split_once("say ")?.1.to_owned()));
        let mut heard = 0;
        // What it said before it died counts, also what it said after the kill was decided.
        for line in said {
            heard += 1;
            if heard == lines {
                child.kill().unwrap();
            }
            let mut words = line.split(' ').map(str::to_owned);
            match words.next().as_deref() {
                Some("writing") => writing = words.collect(),
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
                    held = words.collect();
                    // They had been in doubt and are there after all.
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
        let queue = open(durable(folder.path()));
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

/// What a queue may take beside its budget: names and entries of what is on disk, what is on its
/// way through the log or in the hands of the reader, and what the allocator keeps.
const CONSTANT: usize = 16 << 20;

fn memory(field: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// Offers ten times the budget and says what memory that took.
fn offer(when_full: QueueFullPolicy, consume: bool) {
    let queue = open(QueueOptions { bytes_max: BUDGET, when_full, ..options() });
    let before = memory("VmRSS");
    std::thread::scope(|scope| {
        let mut writer = writer(&queue);
        scope.spawn(move || {
            for number in 0..10 * BUDGET / (4 * 32_768) {
                let sample = |at: usize| sample(&format!("{number}/{at}"), 0, 32_768);
                let samples = (0..4).map(sample).collect();
                writer.write(&WriteBatch { key: number.to_string().into(), samples }).unwrap();
            }
            writer.close().unwrap();
        });
        let mut reader = reader(&queue);
        let ask = ReadRequest { timeout: LONG, ..now(16) };
        until(|| !consume || queue.waiting_writers() > 0);
        while consume && reader.read(&ask).unwrap().end != ReadEnd::Finished {}
    });
    let (grown, usage) = (memory("VmHWM").saturating_sub(before), queue.usage());
    assert!(usage.bytes_peak <= BUDGET, "{usage:?}");
    // It was full at some time, or this test would show nothing.
    assert!(usage.bytes_peak > BUDGET - 5 * 32_768, "{usage:?}");
    say(&format!("{grown} {}", usage.disk_bytes));
}

#[test]
fn memory_stays_within_the_budget_under_ten_times_as_much() {
    let test = "memory_stays_within_the_budget_under_ten_times_as_much";
    let folder = tempfile::tempdir().unwrap();
    match std::env::var(CHILD).as_deref().map(|words| words.split_once(' ').unwrap()) {
        Ok(("spill", folder)) => {
            let folder = Path::new(folder).to_owned();
            return offer(QueueFullPolicy::Spill { folder, timeout: LONG }, false);
        }
        Ok(_) => return offer(QueueFullPolicy::Wait { timeout: LONG }, true),
        Err(_) => {}
    }
    for how in ["spill", "wait"] {
        let told = format!("{how} {}", folder.path().display());
        let child = child_test(test, CHILD, told).spawn().unwrap();
        let output = child.wait_with_output().unwrap();
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = output.split_once("say ").unwrap_or_else(|| panic!("{output}")).1;
        let mut numbers =
            said.split_whitespace().map(|number| number.parse::<usize>().unwrap_or(0));
        let (grown, on_disk) = (numbers.next().unwrap(), numbers.next().unwrap());
        assert!(grown <= BUDGET + CONSTANT, "{how}: {grown} bytes");
        assert_eq!(on_disk > 8 * BUDGET, how == "spill");
    }
}
