//! `rollway top` on a job that a few lines of this file make up, in a terminal and without one, and
//! on one that really runs.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::workspace::{Workspace, signal};

/// How long anything may take before a test gives up.
const LIMIT: Duration = Duration::from_secs(60);

const TOKEN: &str = "open-sesame";

/// Serves a job with a run that hangs, until it is cancelled, and leaves the card in a folder.
fn pretend(job: &Path) -> Arc<AtomicBool> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let card = json!({ "url": url, "token": TOKEN, "pid": 1 });
    fs::write(job.join("dashboard.json"), card.to_string()).unwrap();
    let cancelled = Arc::new(AtomicBool::new(false));
    let shared = Arc::clone(&cancelled);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            answer(stream, &shared);
        }
    });
    cancelled
}

/// Answers one request.
fn answer(mut stream: TcpStream, cancelled: &AtomicBool) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    let headers: Vec<String> =
        lines.take_while(|line| !line.is_empty()).map(|line| line.to_lowercase()).collect();
    let has = |header: &str| headers.iter().any(|line| line == header);
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let known = has(&format!("authorization: bearer {TOKEN}"));
    let (status, body) = match (method, path) {
        _ if !known => ("401 Unauthorized", json!({ "error": "the token is missing" })),
        ("GET", "/api/job") => ("200 OK", job()),
        ("GET", "/api/overview") => ("200 OK", overview()),
        ("GET", "/api/runners") => ("200 OK", runners(cancelled.load(Ordering::SeqCst))),
        ("POST", "/api/runs/12%2Feval/1/2/cancel") if has("x-rollway: 1") => {
            cancelled.store(true, Ordering::SeqCst);
            ("200 OK", json!({ "done": true, "message": "the run is cancelled" }))
        }
        _ => ("404 Not Found", json!({ "error": path })),
    };
    let body = body.to_string();
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    let _ = stream.write_all((head + &body).as_bytes());
}

fn job() -> Value {
    json!({
        "name": "arithmetic", "project": "examples", "mode": "both", "job_dir": "jobs/arithmetic",
        "state": "running", "live": true, "started": 1000.0, "now": 1125.0, "step": 12,
        "total_steps": 80, "version": 11, "runners_wanted": 40,
    })
}

fn overview() -> Value {
    let beat = |at: f64, done: u64| json!({ "at": at, "done": done, "answer_tokens": done * 100 });
    json!({
        "beats": [beat(1100.0, 100), beat(1120.0, 140)],
        "runs": {
            "submitted": 200, "succeeded": 140, "failed": {"timeout": 3}, "cancelled": {},
            "pending": 56, "running": 1,
        },
        "runners": { "busy": 1, "idle": 39 },
        "alarms": [{ "at": 1110.0, "kind": "no_progress", "words": "no run has ended for 5 min",
                     "raised": true }],
    })
}

fn runners(cancelled: bool) -> Value {
    let idle = |runner: u32| json!({ "runner": runner, "state": "idle", "age": 5.0 });
    let hangs = json!({
        "runner": 7, "life": 1, "state": "busy", "stuck": true, "age": 130.0,
        "batch": "12/eval", "task": 1, "run": 2, "attempt": 99,
        "stage": "compiling the tests", "stage_for": 125.0, "place": "flows/solve.py:41 compile",
        "model": "policy", "server": "http://127.0.0.1:8000", "node": "host-3",
    });
    let first = if cancelled { idle(7) } else { hangs };
    let others = (0..40).filter(|runner| *runner != 7).map(idle);
    [first].into_iter().chain(others).collect::<Vec<_>>().into()
}

fn rollway() -> Command {
    Command::new(env!("CARGO_BIN_EXE_rollway"))
}

#[test]
fn without_a_terminal_it_is_printed_once_and_who_is_stuck_comes_first() {
    let job = tempfile::tempdir().unwrap();
    pretend(job.path());
    let ran = rollway().arg("top").arg(job.path()).output().unwrap();
    let text = String::from_utf8(ran.stdout).unwrap();
    assert_eq!(ran.status.code(), Some(0), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("arithmetic  running  both  step 12 of 80"), "{text}");
    assert!(lines[1].contains("1 running  56 waiting  140 done  3 failed"), "{text}");
    assert!(lines[2].contains("1 busy (1 stuck)  39 idle   2.0 runs/s  200 tokens/s"), "{text}");
    assert!(lines[3].contains("no run has ended for 5 min"), "{text}");
    let (heading, first) = (lines[5], lines[6]);
    for (name, value) in [
        ("runner", "7 !"),
        ("work", "12/eval/1/2"),
        ("stage", "compiling the tests"),
        ("since", "2m05s"),
        ("place", "solve.py:41 compile"),
        ("model", "policy at http://127.0.0.1:8000"),
    ] {
        assert_eq!(heading.find(name), first.find(value), "{name}\n{text}");
        assert!(first.contains(value), "{text}");
    }
    assert_eq!(lines.len(), 6 + 40, "{text}");
    assert!(!text.contains('\x1b'));
}

#[test]
fn a_job_that_cannot_be_watched_is_told_in_words() {
    let job = tempfile::tempdir().unwrap();
    let ran = rollway().arg("top").arg(job.path()).output().unwrap();
    let words = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(2), "{words}");
    assert!(words.contains("has no dashboard.json") && words.contains("rollway view"), "{words}");
    // One that was killed leaves its card behind.
    let card = json!({ "url": "http://127.0.0.1:9", "token": TOKEN, "pid": 1 });
    fs::write(job.path().join("dashboard.json"), card.to_string()).unwrap();
    let ran = rollway().arg("top").arg(job.path()).output().unwrap();
    let words = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(2), "{words}");
    assert!(words.contains("does not answer") && words.contains("rollway view"), "{words}");
}

/// The command in a terminal that `script` makes.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    bytes: mpsc::Receiver<Vec<u8>>,
    seen: String,
}

impl Terminal {
    fn start(job: &Path) -> Self {
        let command = format!("{} top '{}'", env!("CARGO_BIN_EXE_rollway"), job.display());
        let mut child = Command::new("script")
            .args(["-qefc", &command, "/dev/null"])
            .envs([("TERM", "xterm"), ("COLUMNS", "100"), ("LINES", "16")])
            .env_remove("NO_COLOR")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let keys = child.stdin.take().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let (sender, bytes) = mpsc::channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = stdout.read(&mut buffer) {
                let _ = sender.send(buffer[..count].to_vec());
            }
        });
        Self { child, keys, bytes, seen: String::new() }
    }

    /// Waits until something is shown.
    fn shows(&mut self, words: &str) {
        let until = Instant::now() + LIMIT;
        while !self.seen.contains(words) {
            match self.bytes.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("`{words}` is not shown: {:?}", self.seen),
            }
        }
        // What was shown before is no answer to the next key.
        self.seen.clear();
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn in_a_terminal_keys_find_and_cancel_a_run_and_the_terminal_is_left_as_it_was() {
    let job = tempfile::tempdir().unwrap();
    let cancelled = pretend(job.path());
    let mut terminal = Terminal::start(job.path());
    terminal.shows("compiling the tests");
    terminal.press("h");
    terminal.shows("any key goes back");
    terminal.press(" ");
    terminal.shows("stuck first");
    terminal.press("\x1b[6~");
    terminal.shows(" of 40");
    terminal.press("/compil\r");
    terminal.shows("only `compil`");
    terminal.press("c");
    terminal.shows("cancel run 2 of task 1 of batch 12/eval?");
    terminal.press("n");
    terminal.shows("nothing was cancelled");
    assert!(!cancelled.load(Ordering::SeqCst));
    terminal.press("cy");
    terminal.shows("the run is cancelled");
    assert!(cancelled.load(Ordering::SeqCst));
    // Nobody is left who compiles.
    terminal.shows("no runner has `compil`");
    terminal.press("\x03");
    terminal.shows("\x1b[?25h\x1b[?1049l");
    assert_eq!(terminal.child.wait().unwrap().code(), Some(0));
}

#[test]
fn of_a_job_that_runs_it_shows_step_and_runners_until_somebody_has_seen_enough() {
    let workspace = Workspace::new();
    // It lasts for as long as it is looked at.
    let mut running = workspace.start(&[
        "buffer.total_steps=100000",
        "buffer.batch_size=4",
        "explorer.eval_interval=100000",
    ]);
    let runners = running.wait_for("began")["runners"].as_u64().unwrap();
    running.wait_for("step_done");
    let (id, running) = running.aside();
    let ran = rollway().arg("top").arg(workspace.job()).output().unwrap();
    let text = String::from_utf8(ran.stdout).unwrap();
    assert_eq!(ran.status.code(), Some(0), "{text}");
    assert!(text.starts_with("arithmetic  running  both  step "), "{text}");
    let mut rows = text.lines().skip_while(|line| !line.trim().starts_with("runner  state"));
    assert!(rows.next().is_some(), "{text}");
    let shown: BTreeSet<u64> =
        rows.map(|row| row.split_whitespace().next().unwrap().parse().unwrap()).collect();
    assert_eq!(shown, (0..runners).collect(), "{text}");

    let mut terminal = Terminal::start(&workspace.job());
    // Again and again, while the job goes on.
    for _ in 0..3 {
        terminal.shows("  both  step ");
        terminal.shows("stuck first");
    }
    terminal.press("q");
    terminal.shows("\x1b[?25h\x1b[?1049l");
    assert_eq!(terminal.child.wait().unwrap().code(), Some(0));

    // Whoever watches does not end the job, and is told when it has ended.
    assert!(!running.is_finished());
    signal(id, "INT");
    assert_eq!(running.join().unwrap().0, Some(130));
    let ran = rollway().arg("top").arg(workspace.job()).output().unwrap();
    assert_eq!(ran.status.code(), Some(2));
}
