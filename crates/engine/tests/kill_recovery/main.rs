//! A job that is killed at arbitrary times and restarted loses and duplicates nothing.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod job;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::Path;
use std::time::Duration;

use rollway_data::buffer::{ReadEnd, ReadRequest};
use rollway_testkit::child_test;
use rollway_testkit::postgres::Server;

use self::job::{BATCHES, Plan};

const CHILD: &str = "ROLLWAY_TEST_SURVIVE_CHILD";

/// Kills per kind of buffer.
const KILLS: u32 = 100;

/// Seeded pseudo-random times.
struct Moments(u64);

impl Moments {
    fn next(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

#[test]
fn a_killed_job_with_sqlite_loses_and_doubles_nothing() {
    let home = tempfile::tempdir().unwrap();
    survive(|job| format!("sqlite:///{}", home.path().join(format!("{job}.db")).display()));
}

#[test]
fn a_killed_job_with_postgresql_loses_and_doubles_nothing() {
    let server = Server::start(&["fsync=off"]);
    survive(|job| format!("{}#job{job}", server.address("postgres")));
}

/// Kills jobs until there were enough kills; each is resumed until it is done, then checked.
fn survive(address: impl Fn(u32) -> String) {
    let mut moments = Moments(0x5eed);
    let (mut kills, mut job) = (0, 0);
    while kills < KILLS {
        let folder = tempfile::tempdir().unwrap();
        let address = address(job);
        let mut processes = 0;
        let mut acknowledged = Acknowledged::default();
        let printed = loop {
            processes += 1;
            assert!(processes < 400, "the job never comes to its end");
            // Mostly short lifetimes; every fourth is longer, and more on slow machines, to make
            // progress.
            let most = if processes % 4 == 0 { 600 } else { 90 } * (1 + processes / 20);
            let moment = Duration::from_millis(moments.next(most));
            let printed = run_and_kill(folder.path(), &address, &acknowledged, moment);
            acknowledged.record(&printed);
            if printed.contains("job done") {
                break printed;
            }
            kills += 1;
        };
        check(&address, &printed);
        job += 1;
    }
}

/// Acknowledgements of all processes of a job.
#[derive(Debug, Default)]
struct Acknowledged {
    submitted: BTreeSet<i64>,
    delivered: BTreeMap<i64, u64>,
}

impl Acknowledged {
    /// Parses the output of a process, which must not contradict earlier ones.
    fn record(&mut self, printed: &str) {
        // The last line of a killed process may be incomplete.
        let whole = printed.rsplit_once('\n').map_or("", |(whole, _)| whole);
        for line in whole.lines() {
            let Some((_, rest)) = line.split_once("batch ") else { continue };
            let (batch, event) = rest.split_once(' ').unwrap();
            let batch = batch.parse().unwrap();
            match event.split_once(' ') {
                None => drop(self.submitted.insert(batch)),
                Some((_, count)) => {
                    let count: u64 = count.trim().parse().unwrap();
                    let earlier = *self.delivered.entry(batch).or_insert(count);
                    assert_eq!(earlier, count, "batch {batch} was finalized with another result");
                }
            }
        }
    }
}

/// Starts or resumes the job and kills it after a while; returns its output.
fn run_and_kill(
    folder: &Path,
    address: &str,
    acknowledged: &Acknowledged,
    moment: Duration,
) -> String {
    let submitted: Vec<_> = acknowledged.submitted.iter().map(i64::to_string).collect();
    let given = format!("{} {address} {}", folder.display(), submitted.join(","));
    let mut child = child_test("child", CHILD, given).spawn().unwrap();
    std::thread::sleep(moment);
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.code().is_none_or(|code| code == 0), "it ended by itself: {printed}");
    printed
}

/// Entry point of the child process.
#[test]
fn child() {
    if let Ok(given) = env::var(CHILD) {
        let mut given = given.split(' ');
        let (folder, address) = (given.next().unwrap(), given.next().unwrap());
        let known = given.next().unwrap().split(',').filter_map(|batch| batch.parse().ok());
        job::run(Path::new(folder), address, known.collect());
    }
}

/// Compares the content of the buffer with the acknowledgements.
fn check(address: &str, printed: &str) {
    let buffer = job::buffer(address);
    let mut reader = buffer.reader("check").unwrap();
    let ask =
        ReadRequest { count: 1 << 20, timeout: Duration::ZERO, min_model_version: 0, keep: false };
    let taken = reader.read(&ask).unwrap();
    assert_ne!(taken.end, ReadEnd::Full);
    let mut ids = BTreeSet::new();
    let mut runs: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for sample in &taken.samples {
        assert!(ids.insert(sample.id.to_string()), "{} is there twice", sample.id);
        let experience = sample.decode().unwrap();
        let of_batch = runs.entry(experience.eid.batch.to_string()).or_default();
        let run = experience.eid.rid();
        assert!(of_batch.insert(run.clone()), "run {run} is there twice, under two names");
    }
    for number in 1..=BATCHES {
        let plan = Plan::of(number);
        let found = runs.get(&number.to_string()).map_or(0, BTreeSet::len) as u64;
        let delivered = printed
            .lines()
            .find_map(|line| line.split_once(&format!("batch {number} delivered ")))
            .map(|(_, count)| count)
            .unwrap_or_else(|| panic!("no output about batch {number}: {printed}"));
        let delivered: u64 = delivered.trim().parse().unwrap();
        assert_eq!(found, delivered, "batch {number} ({plan:?})");
        match plan {
            Plan::Whole => assert_eq!(delivered, job::RUNS, "batch {number}"),
            Plan::Enough => assert!(delivered >= job::ENOUGH, "batch {number}: {delivered}"),
            Plan::Abort => assert!(delivered <= job::RUNS, "batch {number}: {delivered}"),
            Plan::Eval => assert_eq!(delivered, 0),
        }
    }
}
