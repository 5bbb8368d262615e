//! A repeatedly killed process: reported commits survive.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{BufRead, BufReader};
use std::path::Path;

use rollway_ledger::log::{FramePart, LogOptions, SegmentLog};
use rollway_testkit::child_test;

/// Folder for the child process.
const FOLDER: &str = "ROLLWAY_TEST_LOG_KILL";

fn open(dir: &Path) -> (SegmentLog, u64) {
    let options = LogOptions { segment_bytes: 20_000, ..LogOptions::new("test", "me") };
    let mut count = 0;
    let mut visit = |_, bytes: &[u8]| {
        assert_eq!(bytes[..8], u64::to_le_bytes(count), "in order, none missing, none twice");
        count += 1;
    };
    let (log, _) = SegmentLog::open(dir, options, &mut visit).unwrap();
    (log, count)
}

/// Child process that is killed; does nothing in the test process.
#[test]
fn append_until_killed() {
    let Some(dir) = std::env::var_os(FOLDER) else { return };
    let (log, count) = open(dir.as_ref());
    for number in count.. {
        let length = 8 + (number as usize * 37) % 500;
        let mut bytes = vec![7; length];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        log.append(&[FramePart::Copy(&bytes)]).unwrap();
        if number % 3 == 0 {
            log.commit(Box::new(move |done| {
                done.unwrap();
                println!("committed {number}");
            }));
        }
        if number % 50 == 49 {
            log.sync().unwrap();
        }
    }
}

#[test]
fn committed_frames_survive_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let mut total = 0;
    for round in 0..20 {
        let mut child = child_test("append_until_killed", FOLDER, dir.path()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        // Lines after the kill count as well.
        let (mut count_of_lines, mut committed) = (0, None);
        for line in lines {
            let Some((_, number)) = line.rsplit_once("committed ") else { continue };
            // The last line may be cut.
            committed = number.parse::<u64>().ok().max(committed);
            count_of_lines += 1;
            if count_of_lines == 1 + round * 13 % 60 {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        let (_, count) = open(dir.path());
        assert!(Some(count) > committed, "{committed:?} was committed, {count} are there");
        assert!(count > total, "it goes on where it was");
        total = count;
    }
}
