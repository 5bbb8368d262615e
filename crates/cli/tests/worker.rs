//! `rollway worker` with a script as worker and a listener as job.

#![expect(clippy::unwrap_used, reason = "a panic fails the test and names the line")]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Folder with a worker script and its output.
struct Fixture {
    folder: tempfile::TempDir,
    job: TcpListener,
}

impl Fixture {
    /// Creates a worker from a script that finds its folder in `$HERE`.
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
fn killed_worker_is_restarted_and_exit_0_ends_the_command() {
    let fixture = Fixture::new(
        "echo $ROLLWAY_WORKER_ADDRESS $ROLLWAY_WORKER_SECRET $ROLLWAY_WORKER_RUNNERS >> $HERE/seen
         [ -s \"$ROLLWAY_WORKER_EXECUTION_MARKS\" ] && [ -z \"$ROLLWAY_WORKER_TOKEN\" ] || exit 9
         [ $(wc -l < $HERE/seen) -ge 2 ] || kill -9 $$",
    );
    fs::write(fixture.path("secret"), "quite secret\n").unwrap();
    let (address, secret) = (fixture.address(), fixture.path("secret"));
    let secret = secret.to_str().unwrap();
    let arguments = ["--connect", &address, "--secret-file", secret, "--runners", "3"];
    let (code, stderr) = fixture.run(&arguments);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("worker 0 ended: signal: 9"), "{stderr}");
    let seen = fs::read_to_string(fixture.path("seen")).unwrap();
    assert_eq!(seen, format!("{address} quite secret 3\n").repeat(2));
}

#[test]
fn cluster_json_has_address_and_secret() {
    let fixture = Fixture::new("echo $ROLLWAY_WORKER_SECRET > $HERE/seen");
    let address_file = format!("{{\"address\": \"{}\", \"secret\": \"x\"}}", fixture.address());
    fs::write(fixture.path("cluster.json"), address_file).unwrap();
    let (code, stderr) =
        fixture.run(&["--connect", fixture.path("cluster.json").to_str().unwrap()]);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(fs::read_to_string(fixture.path("seen")).unwrap(), "x\n");
}

#[test]
fn input_errors_and_timeouts_end_the_command() {
    let fixture = Fixture::new("echo 'the secret is not the engine''s' >&2; exit 2");
    let address = fixture.address();
    let (code, stderr) = fixture.run(&["--connect", &address]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("secret of the job is missing"), "{stderr}");

    let (code, stderr) = fixture.run(&["--connect", "nonsense"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("neither HOST:PORT, tls:HOST:PORT#FINGERPRINT nor"), "{stderr}");

    fs::write(fixture.path("secret"), "wrong").unwrap();
    let secret = fixture.path("secret");
    let secret = secret.to_str().unwrap();
    let (code, stderr) = fixture.run(&["--connect", &address, "--secret-file", secret]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("refuses these workers"), "{stderr}");

    drop(fixture.job);
    let fixture = Fixture { job: TcpListener::bind("127.0.0.1:0").unwrap(), ..fixture };
    let arguments = ["--connect", &address, "--secret-file", secret, "--connect-timeout", "0"];
    let (code, stderr) = fixture.run(&arguments);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains(&format!("no connection to {address}")), "{stderr}");
}

#[test]
fn sigterm_is_forwarded_to_workers() {
    let fixture = Fixture::new(
        "trap 'echo goodbye > $HERE/output; exit 0' TERM; echo $$ > $HERE/begun.new
         mv $HERE/begun.new $HERE/begun; while :; do sleep 0.05; done",
    );
    let address = fixture.address();
    let mut command = fixture.command(&["--connect", &address]);
    let mut child = command.env("ROLLWAY_WORKER_SECRET", "x").spawn().unwrap();
    while !fixture.path("begun").exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read_to_string(fixture.path("output")).unwrap(), "goodbye\n");
}
