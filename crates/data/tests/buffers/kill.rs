//! Writing processes that are killed at arbitrary moments and restarted, and parallel writers.

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rollway_data::WriteBatch;
use rollway_data::buffer::BufferError;
use rollway_testkit::child_test;

use crate::support::{Bed, everything, large_lot, samples, take};

/// Task of a child: first batch, end of batches, growth of tokens, writer, table, address.
const TASK: &str = "ROLLWAY_TEST_BUFFER_CHILD";

fn grown(number: u64, growth: usize) -> WriteBatch {
    large_lot(number, 20 + number as usize * growth)
}

/// The child process: writes batches and reports acknowledged ones. Does nothing without a task.
#[test]
fn child() {
    let Ok(task) = env::var(TASK) else { return };
    let parts: Vec<&str> = task.splitn(6, ' ').collect();
    let [first, end, growth, writer, table, address] = parts[..] else { panic!("{task}") };
    let mut writer = Bed::at(address.into(), table).open().writer(writer).unwrap();
    for number in first.parse().unwrap()..end.parse().unwrap() {
        match writer.write(&grown(number, growth.parse().unwrap())) {
            Ok(_) => println!("\nstored {number}"),
            Err(BufferError::Full { .. }) => return println!("\nfull {number}"),
            Err(error) => panic!("{error}"),
        }
    }
}

fn child_of(bed: &Bed, writer: &str, numbers: std::ops::Range<u64>, growth: usize) -> Command {
    let Bed { table, address, .. } = bed;
    let task = format!("{} {} {growth} {writer} {table} {address}", numbers.start, numbers.end);
    child_test("kill::child", TASK, task)
}

fn write_all(bed: &Bed, count: u64, growth: usize) {
    let buffer = bed.open();
    let mut writer = buffer.writer("w").unwrap();
    (0..count).for_each(|number| drop(writer.write(&grown(number, growth)).unwrap()));
    writer.close().unwrap();
    let expected = samples((0..count).map(|number| grown(number, growth)));
    assert_eq!(everything(&*buffer), expected, "{bed:?}");
}

#[test]
fn a_killed_writer_loses_and_duplicates_nothing() {
    const KILLS: u32 = 10;
    for bed in Bed::all("killed") {
        drop(bed.open());
        let mut stored = 0;
        for kill in 0..KILLS {
            stored = write_until_killed(&bed, stored, f64::from(kill) / f64::from(KILLS));
            let buffer = bed.open();
            let mut reader = buffer.reader(&format!("reader-{kill}")).unwrap();
            let found = take(&mut *reader, usize::MAX >> 1).samples;
            // The batch after the last may have been stored without a report.
            let reported = samples((0..stored).map(|number| grown(number, 100)));
            let next = samples((0..=stored).map(|number| grown(number, 100)));
            assert!(found == reported || found == next, "{bed:?}: {} of {stored}", found.len());
        }
        write_all(&bed, stored + 2, 100);
    }
}

/// Lets a child write two more batches, kills it during the next one and returns the number of
/// acknowledged batches.
fn write_until_killed(bed: &Bed, mut stored: u64, part: f64) -> u64 {
    // The last batches are written again.
    let mut child = child_of(bed, "w", stored.saturating_sub(2)..u64::MAX, 100).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let number = |line: String| Some(line.strip_prefix("stored ")?.parse::<u64>().ok()? + 1);
    let mut reports = lines.filter_map(number);
    let until = stored + 2;
    let (mut last, mut between) = (Instant::now(), Duration::ZERO);
    while stored < until {
        stored = stored.max(reports.next().unwrap());
        between = last.elapsed();
        last = Instant::now();
    }
    // The next batch takes about as long as the last.
    while last.elapsed() < between.mul_f64(part) {
        std::hint::spin_loop();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    reports.fold(stored, u64::max)
}

#[test]
fn writing_continues_after_a_full_disk() {
    for bed in Bed::files() {
        // No file may grow beyond 512 or 1024 KiB, depending on the unit of the shell.
        let script = r#"trap "" XFSZ; ulimit -f 1024; exec "$0" "$@""#;
        let child = child_of(&bed, "w", 0..100, 5_000);
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).arg(child.get_program()).args(child.get_args());
        shell.envs(child.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let mut child = shell.stdout(Stdio::piped()).spawn().unwrap();
        let mut output = String::new();
        child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
        assert!(child.wait().unwrap().success(), "{output}");
        let full = output.lines().find_map(|line| line.strip_prefix("full ")).unwrap();
        let full: u64 = full.parse().unwrap();
        assert!(full > 0, "{output}");
        let found = take(&mut *bed.open().reader("r").unwrap(), usize::MAX).samples.len();
        assert_eq!(found as u64, full * 5, "{bed:?}");
        write_all(&bed, full + 1, 5_000);
    }
}

#[test]
fn writers_in_several_processes_do_not_disturb_each_other() {
    for bed in Bed::files().into_iter().chain(Bed::sql("parallel")) {
        drop(bed.open());
        // Both write batches 5 to 9.
        let mut children = [("a", 0..10), ("b", 5..15)]
            .map(|(writer, numbers)| child_of(&bed, writer, numbers, 10).spawn().unwrap());
        for child in &mut children {
            std::io::copy(&mut child.stdout.take().unwrap(), &mut std::io::sink()).unwrap();
            assert!(child.wait().unwrap().success());
        }
        let buffer = bed.open();
        for writer in ["a", "b"] {
            buffer.writer(writer).unwrap().close().unwrap();
        }
        let mut found = everything(&*buffer);
        found.sort_by(|a, b| a.id.rsplit('/').next().cmp(&b.id.rsplit('/').next()));
        assert_eq!(found, samples((0..15).map(|number| grown(number, 10))), "{bed:?}");
    }
}
