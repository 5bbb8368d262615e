//! Cost of the ledger: records per second and CPU time per record with commits, beside a plain
//! write and sync of the same bytes; and the latency of one commit. Compare figures of one run
//! only.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::unwrap_used, reason = "a benchmark that fails has no figures")]

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rollway_core::{BatchId, BatchKey, BatchType, RunEnd, RunId, RunOutput, TaskId};
use rollway_ledger::{Ledger, LedgerEntry, LedgerOptions, TaskEntry};
use rustix::time::{ClockId, clock_gettime};

const TASKS: u32 = 1000;

const KEY: BatchKey = BatchKey(1);

fn main() {
    println!("processor time: of the thread that appends, and of the whole process");
    for (bytes, runs) in [(100, 1000), (4096, 150)] {
        println!("records with {bytes} bytes of payload, {} of them", TASKS * runs);
        for every in [16, 1024] {
            appended(bytes, runs, every);
        }
        plain(bytes, runs);
    }
    alone();
}

fn now(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn open(dir: &std::path::Path, runs: u32) -> Ledger {
    let (ledger, _) = Ledger::open(dir, LedgerOptions::new("bench")).unwrap();
    let task = TaskEntry {
        workflow: "noop".into(),
        common: None,
        repeat_times: runs,
        bytes: Bytes::from_static(b"task"),
    };
    let tasks = vec![task; TASKS as usize];
    let batch = BatchId::from(1);
    let kind = BatchType::Train;
    let submitted =
        LedgerEntry::Submitted { key: KEY, batch: &batch, kind, min_wait_num: None, tasks: &tasks };
    ledger.append(submitted).unwrap();
    ledger.sync().unwrap();
    ledger
}

fn payload(bytes: usize) -> RunEnd<RunOutput<Bytes>> {
    let metrics = [("reward", 1.0), ("time/run_execution", 0.5)].into_iter().collect();
    RunEnd::Succeeded(RunOutput { payload: Some(Bytes::from(vec![7; bytes])), metrics })
}

/// Appends, with a commit after every `every` records.
fn appended(bytes: usize, runs: u32, every: u32) {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path(), runs);
    let end = payload(bytes);
    let clocks = [ClockId::ThreadCPUTime, ClockId::ProcessCPUTime];
    let (begin, before) = (Instant::now(), clocks.map(now));
    let mut count = 0;
    for task in 0..TASKS {
        for run in 0..runs {
            let (task, run) = (TaskId(task), RunId(run));
            ledger.append(LedgerEntry::RunEnded { key: KEY, task, run, end: &end }).unwrap();
            count += 1;
            if count % every == 0 {
                ledger.commit(Box::new(|done| done.unwrap()));
            }
        }
    }
    let thread = now(clocks[0]) - before[0];
    ledger.sync().unwrap();
    let (time, process) = (begin.elapsed(), now(clocks[1]) - before[1]);
    let each = |time: Duration| time.as_secs_f64() * 1e9 / f64::from(count);
    println!(
        "  a commit every {every:4} records {:10.0} records/s {:7.0} ns {:7.0} ns",
        f64::from(count) / time.as_secs_f64(),
        each(thread),
        each(process),
    );
}

/// Writes as many bytes, a mebibyte and a sync at a time.
fn plain(bytes: usize, runs: u32) {
    let dir = tempfile::tempdir().unwrap();
    let mut file = File::create(dir.path().join("plain")).unwrap();
    let (begin, before) = (Instant::now(), now(ClockId::ThreadCPUTime));
    // A record is its payload, a frame and two metrics.
    let all = (bytes + 60) * (TASKS * runs) as usize;
    let chunk = vec![7; 1 << 20];
    for _ in 0..all.div_ceil(chunk.len()) {
        file.write_all(&chunk).unwrap();
        file.sync_data().unwrap();
    }
    let (time, thread) = (begin.elapsed(), now(ClockId::ThreadCPUTime) - before);
    let count = f64::from(TASKS * runs);
    println!(
        "  plain write and sync        {:10.0} records/s {:7.0} ns",
        count / time.as_secs_f64(),
        thread.as_secs_f64() * 1e9 / count,
    );
}

/// One record, one commit, one wait; beside one write and one sync.
fn alone() {
    const ROUNDS: u32 = 300;
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path(), ROUNDS);
    let end = payload(100);
    let mut file = File::create(dir.path().with_extension("plain")).unwrap();
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    for run in 0..ROUNDS {
        let begin = Instant::now();
        let (task, run) = (TaskId(0), RunId(run));
        ledger.append(LedgerEntry::RunEnded { key: KEY, task, run, end: &end }).unwrap();
        ledger.sync().unwrap();
        ours.push(begin.elapsed());
        let begin = Instant::now();
        file.write_all(&[7; 160]).unwrap();
        file.sync_data().unwrap();
        plain.push(begin.elapsed());
    }
    std::fs::remove_file(dir.path().with_extension("plain")).unwrap();
    let median = |times: &mut Vec<Duration>| {
        times.sort();
        times[times.len() / 2].as_micros()
    };
    println!("one commit alone, median: {} us", median(&mut ours));
    println!("one plain write and sync, median: {} us", median(&mut plain));
}
