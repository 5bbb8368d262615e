//! `rollway worker` as whoever starts workers meets it: a script stands for the worker, and a port
//! for the job.

#![expect(clippy::unwrap_used, reason = "what goes wrong here fails the test, and says where")]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A folder with a worker, and what it leaves there.
struct Bench {
    folder: tempfile::TempDir,
    job: TcpListener,
}

impl Bench {
    /// Makes a worker of a script, which finds its folder in `$HERE`.
    fn new(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker");
        fs::write(&path, format!("#!/bin/sh\nHERE={}\n{script}\n", folder.path().display()))
            .unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder, job: TcpListener::bind("127.0.0.1:0").unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn address(&self) -> String {
        self.job.local_addr().unwrap().to_string()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rollway"));
        command.arg("worker").args(arguments).arg("--python").arg(self.path("worker"));
        command.env_remove("ROLLWAY_WORKER_SECRET").stderr(Stdio::piped());
        command
    }

    fn run(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let Output { status, stderr, .. } = self.command(arguments).output().unwrap();
        (status.code(), String::from_utf8(stderr).unwrap())
    }
}

#[test]
fn a_worker_that_dies_is_started_again_and_one_that_is_not_needed_ends_it() {
    let bench = Bench::new(
        "echo $ROLLWAY_WORKER_ADDRESS $ROLLWAY_WORKER_SECRET $ROLLWAY_WORKER_RUNNERS >> $HERE/seen
         [ -s \"$ROLLWAY_WORKER_EXECUTION_MARKS\" ] && [ -z \"$ROLLWAY_WORKER_TOKEN\" ] || exit 9
         [ $(wc -l < $HERE/seen) -ge 2 ] || kill -9 $$",
    );
    fs::write(bench.path("secret"), "quite secret\n").unwrap();
    let (address, secret) = (bench.address(), bench.path("secret"));
    let secret = secret.to_str().unwrap();
    let given = ["--connect", &address, "--secret-file", secret, "--runners", "3"];
    let (code, words) = bench.run(&given);
    assert_eq!(code, Some(0), "{words}");
    assert!(words.contains("worker 0 ended: signal: 9"), "{words}");
    let seen = fs::read_to_string(bench.path("seen")).unwrap();
    assert_eq!(seen, format!("{address} quite secret 3\n").repeat(2));
}

#[test]
fn a_file_of_the_job_has_all_that_is_needed() {
    let bench = Bench::new("echo $ROLLWAY_WORKER_SECRET > $HERE/seen");
    let card = format!("{{\"address\": \"{}\", \"secret\": \"x\"}}", bench.address());
    fs::write(bench.path("cluster.json"), card).unwrap();
    let (code, words) = bench.run(&["--connect", bench.path("cluster.json").to_str().unwrap()]);
    assert_eq!(code, Some(0), "{words}");
    assert_eq!(fs::read_to_string(bench.path("seen")).unwrap(), "x\n");
}

#[test]
fn what_cannot_work_is_said_and_not_tried_for_ever() {
    let bench = Bench::new("echo 'the secret is not the engine''s' >&2; exit 2");
    let address = bench.address();
    let (code, words) = bench.run(&["--connect", &address]);
    assert_eq!(code, Some(2), "{words}");
    assert!(words.contains("secret of the job is missing"), "{words}");

    let (code, words) = bench.run(&["--connect", "nonsense"]);
    assert_eq!(code, Some(2), "{words}");
    assert!(words.contains("neither HOST:PORT nor"), "{words}");

    fs::write(bench.path("secret"), "wrong").unwrap();
    let secret = bench.path("secret");
    let secret = secret.to_str().unwrap();
    let (code, words) = bench.run(&["--connect", &address, "--secret-file", secret]);
    assert_eq!(code, Some(2), "{words}");
    assert!(words.contains("does not take these workers in"), "{words}");

    drop(bench.job);
    let bench = Bench { job: TcpListener::bind("127.0.0.1:0").unwrap(), ..bench };
    let given = ["--connect", &address, "--secret-file", secret, "--patience", "0"];
    let (code, words) = bench.run(&given);
    assert_eq!(code, Some(1), "{words}");
    assert!(words.contains(&format!("nobody answers at {address}")), "{words}");
}

#[test]
fn told_to_end_it_has_workers_say_goodbye() {
    let bench = Bench::new(
        "trap 'echo goodbye > $HERE/said; exit 0' TERM; echo $$ > $HERE/begun.new
         mv $HERE/begun.new $HERE/begun; while :; do sleep 0.05; done",
    );
    let address = bench.address();
    let mut command = bench.command(&["--connect", &address]);
    let mut child = command.env("ROLLWAY_WORKER_SECRET", "x").spawn().unwrap();
    while !bench.path("begun").exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read_to_string(bench.path("said")).unwrap(), "goodbye\n");
}
