//! A full disk, simulated by a file size limit: an error, then success once there is room.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;
use std::process::Command;

use rollway_ledger::log::{FramePart, LogOptions, SegmentLog};
use rustix::process::{Resource, Rlimit, setrlimit};

/// Folder for the child process.
const FOLDER: &str = "ROLLWAY_TEST_LOG_FULL";

fn limit(bytes: Option<u64>) {
    setrlimit(Resource::Fsize, Rlimit { current: bytes, maximum: None }).unwrap();
}

fn frames(dir: &Path) -> (SegmentLog, Vec<u8>) {
    let mut frames = Vec::new();
    let mut visit = |_, bytes: &[u8]| frames.push(bytes[0]);
    let (log, torn) = SegmentLog::open(dir, LogOptions::new("test", "me"), &mut visit).unwrap();
    assert_eq!(torn, None);
    (log, frames)
}

/// Child process with the limit; does nothing in the test process.
#[test]
fn append_beyond_the_limit() {
    let Some(dir) = std::env::var_os(FOLDER) else { return };
    let (log, _) = frames(dir.as_ref());
    limit(Some(4096));
    let append = |number: u8| log.append(&[FramePart::Copy(&[number; 1000])]).unwrap();
    let first = append(0);
    log.sync().unwrap();
    (1..6).for_each(|number| {
        append(number);
    });
    let error = log.sync().unwrap_err().to_string();
    assert!(error.starts_with("cannot write ") && error.contains("File too large"), "{error}");
    assert_eq!(log.read(first).unwrap()[..], [0; 1000], "what was durable still is");
    append(6);
    log.sync().unwrap_err();
    assert_eq!(log.unsynced_bytes(), 6 * 1013);
    limit(None);
    log.sync().unwrap();
    assert_eq!(log.unsynced_bytes(), 0);
    let mut numbers = Vec::new();
    log.each(0, &mut |_, bytes| numbers.push(bytes[0])).unwrap();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6]);
    append(7);
    drop(log);
    // Frames that were not written before closing were never acknowledged.
    let (log, _) = frames(dir.as_ref());
    limit(Some(4096));
    log.append(&[FramePart::Copy(&[8; 5000])]).unwrap();
    drop(log);
    println!("done");
}

#[test]
fn a_full_disk_is_an_error_until_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    // The signal of an exceeded limit would end the process.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["append_beyond_the_limit", "--exact", "--nocapture"])
        .env(FOLDER, dir.path())
        .output()
        .unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output_text.contains("done"), "{output_text}\n{errors}");
    assert_eq!(frames(dir.path()).1, [0, 1, 2, 3, 4, 5, 6, 7]);
}
